"""The best order of a convolution is never more expensive than either order for all layers."""

from math import prod
from typing import Any

import pytest

from harness.errors import UserError
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.ledger import Op
from harness.registry import load_strategy, registered_strategies
from harness.replay import replay
from harness.spec.root import find_root
from harness.spec.spec import ModelChoice, Spec
from harness.store.catalog import load_card
from harness.strategies.halo.partition_parallel import PartitionParallel
from harness.strategy import Strategy, admit

ORDERS = ("aggregate_first", "combine_first", "best")
STRATEGIES: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    ("serial", {"p": 1}, {}),
    ("cagnet-1d", {"p": 4}, {}),
    ("cagnet-1.5d", {"row": 2, "col": 2}, {}),
    ("cagnet-2d", {"row": 2, "col": 2}, {}),
    ("cagnet-3d", {"row": 2, "col": 1, "fibre": 2}, {}),
    ("bns-gcn", {"p": 4}, {"precompute": False}),
    ("bns-gcn", {"p": 4}, {"precompute": True}),
    ("adaqp", {"p": 4}, {}),
]
"""Strategies whose costs follow from the card of a graph."""


def make_strategy(
    name: str,
    grid: dict[str, int],
    params: dict[str, Any],
    order: str,
    *,
    recompute: bool = False,
    **model: Any,
) -> Strategy:
    spec = Spec.model_validate(
        {
            "strategy": {"name": name, "params": params},
            "dataset": "reddit",
            "ranks": prod(grid.values()),
            "grid": grid,
            "machine": {"name": "test"},
            "model": {"order": order, **model},
            "training": {"recompute": recompute},
        }
    )
    return admit(load_strategy(name), spec, facts_of_card(load_card(find_root(), "reddit")))


MODELS = [{"layers": 3, "hidden": 128}, {"layers": 2, "hidden": 400}]


@pytest.mark.parametrize(("name", "grid", "params"), STRATEGIES, ids=str)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_best_order_multiplies_and_sends_the_least(
    name: str, grid: dict[str, int], params: dict[str, Any], model: dict[str, Any], recompute: bool
) -> None:
    """Counted in a replay of the code: the flops of products with A, and the elements that arrive."""
    if recompute and not load_strategy(name).can_recompute:
        pytest.skip("it cannot recompute layers")
    flops, received = {}, {}
    for order in ORDERS:
        strategy = make_strategy(name, grid, params, order, recompute=recompute, **model)
        entries = replay(strategy).entries
        flops[order] = sum(amounts.flops for key, amounts in entries.items() if key.op is Op.SPMM)
        received[order] = sum(amounts.words_received for amounts in entries.values())
    assert flops["best"] <= min(flops["aggregate_first"], flops["combine_first"])
    assert received["best"] <= min(received["aggregate_first"], received["combine_first"])


def test_a_recomputed_layer_multiplies_once_more() -> None:
    """The 602 features of Reddit: 2 x 400 > 602 columns, but 3 x 400 < 2 x 602."""
    for recompute in (False, True):
        serial = make_strategy("serial", {"p": 1}, {}, "best", recompute=recompute, layers=2, hidden=400)
        assert serial.combines_first(0) == recompute


def find_refusal(name: str, model: dict[str, Any]) -> str:
    """Return why a strategy refuses reddit with these settings of the model, or an empty text."""
    strategy = load_strategy(name)
    request = {
        "strategy": name,
        "dataset": "reddit",
        "ranks": next(ranks for ranks in (4, 1) if strategy.grids(ranks)),
        "model": model,
        "training": {"batch": 1024 if strategy.mini_batches else 0},
    }
    facts = facts_of_card(load_card(find_root(), "reddit"))
    try:
        admit(strategy, make_spec(find_root(), request, "a test"), facts)
    except UserError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("name", sorted(point.name for point in registered_strategies()))
def test_the_default_is_refused_by_no_strategy_that_can_aggregate_first(name: str) -> None:
    assert ModelChoice().order == "best"
    assert find_refusal(name, {}) == find_refusal(name, {"order": "aggregate_first"})


def test_the_default_computes_A_X_once_where_aggregate_first_does() -> None:
    """Reddit's first layer would have fewer columns in A (H W), but its product with A takes nothing in an epoch."""
    for name in ("bns-gcn", "pipegcn"):
        strategy = make_strategy(name, {"p": 4}, {}, "best", hidden=16)
        assert isinstance(strategy, PartitionParallel)
        assert strategy.precomputes
        assert [strategy.combines_first(layer) for layer in range(3)] == [False, False, False]


@pytest.mark.parametrize(
    ("name", "stale", "fresh"),
    [("sancus", {"stale": 2}, {"stale": 0}), ("distgnn", {"delay": 2}, {"delay": 0}), ("pipegcn", {}, None)],
)
def test_rows_of_earlier_epochs_are_rows_of_H(
    name: str, stale: dict[str, Any], fresh: dict[str, Any] | None
) -> None:
    """Rows of H W would be old in W too, so the order would change the losses."""
    late = make_strategy(name, {"p": 4}, stale, "best", layers=3, hidden=400)
    assert [late.combines_first(layer) for layer in range(3)] == [False, False, False]
    if fresh:
        exact = make_strategy(name, {"p": 4}, fresh, "best", layers=3, hidden=400)
        assert exact.combines_first(2)


@pytest.mark.parametrize("order", ["aggregate_first", "best"])
def test_an_algorithm_with_one_order_accepts_the_best(order: str) -> None:
    plexus = make_strategy("plexus", {"x": 2, "y": 1, "z": 2}, {}, order, layers=2, hidden=400)
    assert [plexus.combines_first(layer) for layer in range(2)] == [False, False]


def test_layers_differ_in_their_best_order() -> None:
    """Reddit has 602 features and 41 classes. Only the first layer needs no gradient of its input."""
    serial = make_strategy("serial", {"p": 1}, {}, "best", layers=3, hidden=400)
    assert [serial.combines_first(layer) for layer in range(3)] == [False, False, True]
    narrow = make_strategy("serial", {"p": 1}, {}, "best", layers=3, hidden=128)
    assert [narrow.combines_first(layer) for layer in range(3)] == [True, False, True]
    cagnet = make_strategy("cagnet-1d", {"p": 4}, {}, "best", layers=3, hidden=400)
    assert [cagnet.combines_first(layer) for layer in range(3)] == [True, False, True]
