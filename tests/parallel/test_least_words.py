"""The lower bound of the boundary is reached by the halo exchange, and lies below all others of its kind."""

from math import inf
from typing import Any

import pytest

from harness.check.case import CLASSES, Case
from harness.check.laws import ScipyCounts
from harness.parallel.row_strategy import RowStrategy
from harness.registry import load_strategy
from harness.run.recording import words_by_memory
from harness.spec.spec import Spec
from harness.strategy import Coordinates, Strategy

PARTS = 4


def made(
    name: str, *, directed: bool = False, hidden: int = CLASSES, **params: Any
) -> tuple[Strategy, ScipyCounts]:
    grid = {"p": PARTS} if load_strategy(name).axes == ("p",) else {"row": PARTS // 2, "col": 2}
    spec = {
        "strategy": {"name": name, "params": params},
        "dataset": {"name": "check"},
        "ranks": PARTS,
        "grid": grid,
        "machine": {"name": "test"},
        "model": {"layers": 3, "hidden": hidden},
    }
    case = Case("test", Spec.model_validate(spec), vertices=211, directed=directed)
    return case.strategy(), ScipyCounts(case.store())


def all_ranks(strategy: Strategy) -> list[Coordinates]:
    return [strategy.coordinates(rank) for rank in range(PARTS)]


def test_a_halo_exchange_reaches_the_bound_where_all_layers_have_one_width() -> None:
    """But for the word of its loss, and for pairs of ranks for which rows of G would be fewer than sums of dH."""
    strategy, counts = made("bns-gcn")
    assert isinstance(strategy, RowStrategy)
    blocks = strategy.blocks()
    for own, at in enumerate(all_ranks(strategy)):
        others = [block for number, block in enumerate(blocks) if number != own]
        rows_of_G = [counts.filled(blocks[own], other, transposed=True) for other in others]
        sums = [counts.filled(other, blocks[own]) for other in others]
        saved = 2 * CLASSES * sum(max(0, many - few) for many, few in zip(sums, rows_of_G, strict=True))
        assert sum(strategy.words(at, counts).values()) == strategy.least_words(at, counts) + 1 + saved


@pytest.mark.parametrize("name", ["cagnet-1d", "cagnet-sa-1d", "pipegcn", "adaqp", "g3", "bns-gcn"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("hidden", [3, 20])
def test_no_strategy_of_the_kind_sends_less(name: str, directed: bool, hidden: int) -> None:
    strategy, counts = made(name, directed=directed, hidden=hidden)
    for at in all_ranks(strategy):
        least = strategy.least_words(at, counts)
        assert 0 < least <= sum(strategy.words(at, counts).values())


@pytest.mark.parametrize(
    ("name", "params"),
    [("neutronstar", {}), ("bns-gcn", {"p": 0.5}), ("cagnet-1.5d", {}), ("rdm", {}), ("compose", {})],
)
def test_replicas_and_samples_may_send_less_and_have_no_bound(name: str, params: dict[str, Any]) -> None:
    strategy, counts = made(name, **params)
    assert {strategy.least_words(at, counts) for at in all_ranks(strategy)} == {0.0}


def test_memory_bounds_words_only_where_it_is_far_smaller_than_the_products() -> None:
    """By its formula in exact numbers: 3 layers, of which the first has two products with W and none with A."""
    strategy, _ = made("cagnet-1d")
    assert words_by_memory(strategy, 1e9) == 0
    n, nonzeros, h = strategy.facts.vertices, strategy.facts.nonzeros, CLASSES
    products = 2 * n * 13 * h + 2 * (3 * n * h * h + 2 * nonzeros * h)
    assert words_by_memory(strategy, 16) == pytest.approx((products / PARTS / 32 - 16) / 2)
    assert words_by_memory(strategy, 16) < inf
