"""RDM moves the fewest words among all orders of products and layouts, and its decoupled model is A^L MLP(X)."""

from itertools import product
from math import inf
from typing import Any

import pytest

from harness.conformance.case import Case
from harness.conformance.checks import ScipyCounts
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.graph.cards.catalog import load_card
from harness.ledger import TensorName
from harness.prediction.epoch import predict
from harness.prediction.replay import replay
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategies.rdm import ROW, LayerPlan, Rdm
from harness.strategy import Facts, Promise, Ready, admit

N, FEATURES, CLASSES = 96, 24, 6


def rdm_of(row: int = 1, col: int = 4, params: dict[str, Any] | None = None, **model: Any) -> Rdm:
    training = {key: model.pop(key, False) for key in ("features", "recompute")}
    spec = {
        "strategy": {"name": "rdm", "params": params or {}},
        "dataset": "any",
        "ranks": row * col,
        "grid": {"row": row, "col": col},
        "machine": {"name": "test"},
        "model": {"layers": 3, "hidden": 12, **model},
        "training": training,
    }
    strategy = admit(Rdm, Spec.model_validate(spec), Facts(N, 8 * N, FEATURES, CLASSES, False, N, N))
    assert isinstance(strategy, Rdm)
    return strategy


def widths_moved(forward: str, backward: str, before: str, after: str, f: int, h: int, needs_dH: bool) -> int:
    """Return the sum of the widths of all changes of layout in a layer with all of A on every rank."""
    total = 0
    rows = {"H"} if before == "rows" else set()
    if forward == "A first":
        total += f * (before == "rows") + f + h * (after == "columns")
        rows |= {"T"}
    else:
        total += f * (before == "columns") + h + h * (after == "rows")
        rows |= {"H"}
    rows |= {"G"} if after == "rows" else set()
    G_in_columns = after == "columns"
    if needs_dH and backward == "A first":
        total += h * (not G_in_columns) + h + f * (before == "columns")
        rows |= {"S"}
        G_in_columns = True
    elif needs_dH:
        total += h * ("G" not in rows) + f + f * (before == "rows")
        rows |= {"G"}
    by_T = h * ("G" not in rows) if "T" in rows else inf
    by_S = f * ("H" not in rows) + (0 if "S" in rows else h + h * (not G_in_columns))
    return total + int(min(by_T, by_S))


def fewest(shapes: list[tuple[int, int]], needs_dH: list[bool]) -> int:
    """Return the minimum of the sum over all orders of both directions and all layouts."""
    orders, layouts = ("A first", "W first"), ("rows", "columns")
    best = inf
    for held in product(layouts, repeat=len(shapes)):
        bounds = [*held, "rows"]
        each = [
            min(
                widths_moved(*way, bounds[layer], bounds[layer + 1], *shape, wants)
                for way in product(orders, orders)
            )
            for layer, (shape, wants) in enumerate(zip(shapes, needs_dH, strict=True))
        ]
        best = min(best, sum(each))
    return int(best)


@pytest.mark.parametrize("hidden", [2, 5, 12, 40])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("features", [False, True])
def test_no_orders_and_layouts_move_fewer_words_than_the_plan(
    hidden: int, layers: int, features: bool
) -> None:
    """In the plan the backward pass is the transpose; no other pair of orders would move fewer words."""
    strategy = rdm_of(layers=layers, hidden=hidden, features=features)
    wants = [strategy.needs_dH(layer) for layer in range(layers)]
    planned = sum(strategy.count_moved_words(layer, plan) for layer, plan in enumerate(strategy.layers))
    assert planned * 4 / 3 == pytest.approx(fewest(strategy.shapes, wants))


@pytest.mark.parametrize("col", [2, 4])
def test_no_plan_receives_fewer_elements_when_layers_are_recomputed(col: int) -> None:
    """The recomputed layer redistributes its matrices once more, so another plan is the best."""
    strategy = rdm_of(col=col, layers=2, recompute=True)
    assert strategy.layers != rdm_of(col=col, layers=2).layers

    def count_received(plans: list[LayerPlan]) -> float:
        strategy.layers = plans
        replays = [replay(strategy, rank).entries for rank in range(col)]
        return sum(amounts.elements_received for entries in replays for amounts in entries.values())

    every = [
        [first, second]
        for before in strategy.allowed_layouts(0)
        for first in strategy.allowed_plans(0, before)
        for second in strategy.allowed_plans(1, first.rows_after)
    ]
    assert count_received(strategy.layers) == min(map(count_received, every))


def test_order_model_chooses_like_fewest_if_the_order_is_best() -> None:
    chosen = rdm_of(params={"order": "model"}, order="best", hidden=24, layers=3)
    assert chosen.layers == rdm_of(order="best", hidden=24, layers=3).layers


def test_plan_with_fewest_elements_is_predicted_slower_on_narrow_slices() -> None:
    """A product with one column takes as long as reading A, and A (H W) multiplies once more in the first layer."""
    root = find_root()
    facts, machine = facts_of_card(load_card(root, "reddit")), load_machine_card(root, "perlmutter")

    def predict_seconds(order: str) -> float:
        request = {
            "strategy": {"name": "rdm", "params": {"order": "model"}},
            "dataset": "reddit",
            "ranks": 16,
            "machine": "perlmutter",
            "model": {"layers": 3, "hidden": 16, "order": order},
        }
        strategy = admit(Rdm, make_spec(root, request, "a test"), facts)
        return predict(Ready(strategy), machine, ranks=[0]).seconds.value

    assert round(predict_seconds("best") / predict_seconds("aggregate_first"), 2) == 1.06


def test_order_model_uses_the_order_of_the_model() -> None:
    for order, combines_first in (("aggregate_first", False), ("combine_first", True)):
        strategy = rdm_of(params={"order": "model"}, order=order)
        assert [plan.combines_first for plan in strategy.layers] == [combines_first] * 3


def words_over(strategy: Rdm, axis: str) -> float:
    """Return the words of all ranks over an axis."""
    counts, ranks = ScipyCounts(Case("test", strategy.spec, vertices=N).store()), range(strategy.spec.ranks)
    tables = [strategy.words(strategy.coordinates(rank), counts) for rank in ranks]
    return sum(words for table in tables for key, words in table.items() if key.axis == axis)


@pytest.mark.parametrize("col", [2, 3, 7])
def test_ranks_together_receive_each_redistributed_matrix_once(col: int) -> None:
    """So the words per rank decrease with the number of ranks, also if it does not divide the width."""
    strategy = rdm_of(col=col, layers=2)
    assert strategy.describe_plan() == "columns (A H) W rows A (H W) rows"
    # T forward; T and Z of the second layer, and their gradients.
    moved = FEATURES + 0 + 2 * CLASSES + 2 * CLASSES
    assert words_over(strategy, "col") == N * moved


def test_words_of_the_decoupled_model_do_not_depend_on_the_number_of_layers() -> None:
    for layers in (2, 5):
        strategy = rdm_of(params={"decoupled": True}, layers=layers)
        assert strategy.effective_promise is Promise.OTHER_MODEL
        assert words_over(strategy, "col") == 4 * N * CLASSES


def test_chunks_split_A_and_gather_H() -> None:
    whole, chunked = rdm_of(1, 4, layers=1), rdm_of(4, 1, layers=1)
    counts = ScipyCounts(Case("test", whole.spec, vertices=N).store())
    each, *others = [whole.memory(whole.coordinates(rank), counts)[TensorName.A] for rank in range(4)]
    assert others == [each] * 3
    pointers = 8 * (N + 4) - 8 * (N + 1)
    assert (
        sum(chunked.memory(chunked.coordinates(rank), counts)[TensorName.A] for rank in range(4))
        == each + pointers
    )
    assert words_over(chunked, "row") == 2 * 4 * N * CLASSES and words_over(chunked, "col") == 0


def test_grids_are_listed_by_the_number_of_chunks() -> None:
    assert [grid[ROW] for grid in Rdm.grids(12)] == [1, 2, 3, 4, 6, 12]
