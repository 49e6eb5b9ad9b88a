"""The halo exchange reaches the lower bound on boundary words, and no strategy of its kind sends fewer."""

from itertools import product
from math import inf
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.conformance.case import CLASSES, Case
from harness.conformance.case_list import list_choices
from harness.conformance.checks import ScipyCounts
from harness.registry import load_strategy, registered_strategies
from harness.runtime.recording import least_words_by_memory
from harness.strategy import Coordinates, Strategy
from harness.strategy.parallel.row_strategy import RowStrategy
from tests.cases import make_case

PARTS = 4


FULL_GRAPH = [
    point.name
    for point in registered_strategies()
    if point.value.startswith("harness.strategies.") and not load_strategy(point.name).mini_batches
]


def make_small_case(
    name: str,
    grid: dict[Any, int],
    params: dict[str, Any],
    *,
    directed: bool = False,
    hidden: int,
    vertices: int = 83,
) -> Case:
    model = {"layers": 3, "hidden": hidden}
    return make_case(name, grid, params, model=model, vertices=vertices, directed=directed)


def made(
    name: str, *, directed: bool = False, hidden: int = CLASSES, **params: Any
) -> tuple[Strategy, ScipyCounts]:
    grid = {"p": PARTS} if load_strategy(name).axes == ("p",) else {"row": PARTS // 2, "col": 2}
    case = make_small_case(name, grid, params, directed=directed, hidden=hidden, vertices=211)
    return case.strategy(), ScipyCounts(case.store())


def all_ranks(strategy: Strategy) -> list[Coordinates]:
    return [strategy.coordinates(rank) for rank in range(PARTS)]


def test_halo_exchange_reaches_the_bound_if_all_layers_have_equal_widths() -> None:
    """Except for the word of its loss, and for pairs of ranks for which rows of G would be fewer than sums of dH."""
    strategy, counts = made("bns-gcn")
    assert isinstance(strategy, RowStrategy)
    blocks = strategy.blocks()
    for own, at in enumerate(all_ranks(strategy)):
        others = [block for number, block in enumerate(blocks) if number != own]
        rows_of_G = [counts.nonempty_columns(blocks[own], other, transposed=True) for other in others]
        sums = [counts.nonempty_columns(other, blocks[own]) for other in others]
        saved = 2 * CLASSES * sum(max(0, many - few) for many, few in zip(sums, rows_of_G, strict=True))
        assert sum(strategy.words(at, counts).values()) == strategy.words_lower_bound(at, counts) + 1 + saved


@pytest.mark.parametrize("name", ["cagnet-1d", "cagnet-sa-1d", "pipegcn", "adaqp", "g3", "bns-gcn"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("hidden", [3, 20])
def test_no_strategy_of_the_kind_sends_fewer_words_than_the_bound(
    name: str, directed: bool, hidden: int
) -> None:
    strategy, counts = made(name, directed=directed, hidden=hidden)
    for at in all_ranks(strategy):
        least = strategy.words_lower_bound(at, counts)
        assert 0 < least <= sum(strategy.words(at, counts).values())


@pytest.mark.parametrize(
    ("name", "params"),
    [("neutronstar", {}), ("bns-gcn", {"p": 0.5}), ("cagnet-1.5d", {}), ("rdm", {}), ("compose", {})],
)
def test_strategies_with_replicas_or_samples_have_no_bound(name: str, params: dict[str, Any]) -> None:
    strategy, counts = made(name, **params)
    assert {strategy.words_lower_bound(at, counts) for at in all_ranks(strategy)} == {0.0}


@pytest.mark.parametrize("name", FULL_GRAPH)
@pytest.mark.parametrize("directed", [False, True])
def test_no_parameters_on_any_grid_send_fewer_words_than_the_bound(name: str, directed: bool) -> None:
    """Checks the words of the formula, which `harness check` compares with runs, for small models of growing widths."""
    strategy = load_strategy(name)
    choices = [{}, *({key: value} for key, values in list_choices(strategy).items() for value in values)]
    tried = 0
    for grid, params, hidden in product(strategy.grids(PARTS), choices, (3, 20)):
        case = make_small_case(name, grid, params, directed=directed, hidden=hidden)
        try:
            ready = case.strategy()
        except UserError:
            continue
        tried, counts = tried + 1, ScipyCounts(case.store())
        for rank in range(PARTS):
            at = ready.coordinates(rank)
            assert ready.words_lower_bound(at, counts) <= sum(ready.words(at, counts).values()), (
                grid,
                params,
            )
    assert tried or name == "serial"


def test_all_products_of_a_decoupled_model_have_the_width_of_its_last_layer() -> None:
    case = make_small_case("compose", {"row": PARTS, "col": 1}, {"decoupled": True}, hidden=20)
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    assert isinstance(strategy, RowStrategy)
    for at in all_ranks(strategy):
        others = [block for block in strategy.blocks() if block != strategy.rows(at)]
        boundary = sum(counts.nonempty_columns(strategy.rows(at), other) for other in others)
        trained = sum(a * b for a, b in strategy.shapes)
        assert strategy.words_lower_bound(at, counts) <= 2 * 3 * CLASSES * boundary + trained
        assert strategy.words_lower_bound(at, counts) > trained


def test_memory_gives_a_bound_only_if_it_is_much_smaller_than_the_products() -> None:
    """Computed exactly from the formula, for 3 layers, of which the first has two products with W and none with A."""
    strategy, _ = made("cagnet-1d")
    assert least_words_by_memory(strategy, 1e9) == 0
    n, nonzeros, h = strategy.facts.vertices, strategy.facts.nonzeros, CLASSES
    products = 2 * n * 13 * h + 2 * (3 * n * h * h + 2 * nonzeros * h)
    assert least_words_by_memory(strategy, 16) == pytest.approx((products / PARTS / 32 - 16) / 2)
    assert least_words_by_memory(strategy, 16) < inf
