"""The best order of a convolution is never more expensive than either order for all layers."""

from math import prod
from typing import Any

import pytest

from harness.experiment.known_graph import facts_of_card
from harness.ledger import Op
from harness.registry import load_strategy
from harness.replay import replay
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.store.catalog import load_card
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
    name: str, grid: dict[str, int], params: dict[str, Any], order: str, **model: Any
) -> Strategy:
    spec = Spec.model_validate(
        {
            "strategy": {"name": name, "params": params},
            "dataset": "reddit",
            "ranks": prod(grid.values()),
            "grid": grid,
            "machine": {"name": "test"},
            "model": {"order": order, **model},
        }
    )
    return admit(load_strategy(name), spec, facts_of_card(load_card(find_root(), "reddit")))


@pytest.mark.parametrize(("name", "grid", "params"), STRATEGIES, ids=str)
@pytest.mark.parametrize("model", [{"layers": 3, "hidden": 128}, {"layers": 2, "hidden": 400}], ids=str)
def test_the_best_order_has_the_fewest_multiplications_by_A(
    name: str, grid: dict[str, int], params: dict[str, Any], model: dict[str, Any]
) -> None:
    def count(order: str) -> int:
        entries = replay(make_strategy(name, grid, params, order, **model)).entries
        return sum(amounts.flops for key, amounts in entries.items() if key.op is Op.SPMM)

    flops = {order: count(order) for order in ORDERS}
    assert flops["best"] <= min(flops["aggregate_first"], flops["combine_first"])


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
