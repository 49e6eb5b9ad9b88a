"""The best order of a convolution is never more expensive than either order for all layers."""

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.conformance.case import Case
from harness.conformance.case_list import list_choices
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.experiment.trained_models import describe_strategy
from harness.graph.cards.catalog import load_card
from harness.ledger import Op, TensorName
from harness.prediction.replay import replay
from harness.registry import load_strategy, registered_strategies
from harness.spec.root import find_root
from harness.spec.spec import ModelChoice, Spec
from harness.strategies.halo.neutronstar import NeutronStar
from harness.strategies.halo.partition_parallel import PartitionParallel
from harness.strategies.rdm import Rdm
from harness.strategy import Strategy, admit
from tests.cases import in_parts, make_case

ORDERS = ("aggregate_first", "combine_first", "best")
FULL_GRAPH = sorted(
    point.name for point in registered_strategies() if not load_strategy(point.name).mini_batches
)


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


def order_case(name: str, order: str, ranks: int, **settings: Any) -> Case:
    """Return a case of 13 features and 7 classes, by default with 6 hidden features.

    The first layer's input is just wider than twice its output, and the last layer's output is wider than its input.
    """
    strategy, settings = load_strategy(name), {"params": {}, "partition": "block", "grid": None, **settings}
    grid = settings.pop("grid") or strategy.grids(ranks)[0]
    params, partition = settings.pop("params"), settings.pop("partition")
    parts = grid[strategy.partitioned_over] if strategy.partitioned_over else 0
    model = {"layers": 3, "hidden": 6, **settings.pop("model", {}), "order": order}
    return make_case(name, grid, params, dataset=in_parts(parts, partition), model=model, **settings)


def count_costs(case: Case) -> dict[str, float]:
    """Replay an epoch of every rank, and sum what `order=best` minimises.

    NeutronStar minimises flops plus priced elements, RDM's plans the elements, and all others the elements and the
    flops of products with A. Matrices that add returned gradients have one nonzero for each column: they are left out.
    """
    strategy = case.strategy()
    flops = sparse = elements = 0.0
    for rank in range(strategy.spec.ranks):
        replayed = replay(strategy, rank, case.store(), skip_transient=True)
        for key, amounts in replayed.entries.items():
            is_product = key.op is Op.SPMM or (key.op is Op.GEMM and key.tensor is not TensorName.SCORES)
            flops += amounts.flops * is_product
            elements += amounts.elements_received
        sparse += sum(
            2 * product.nonzeros * product.columns
            for event in replayed.events
            for product in event.products
            if product.nonzeros not in (0, product.inner)
        )
    if isinstance(strategy, NeutronStar):
        return {"price": flops + strategy.params.flops_per_word * elements}
    return {"elements": elements} if isinstance(strategy, Rdm) else {"elements": elements, "sparse": sparse}


def compare_orders(name: str, ranks: int = 2, **settings: Any) -> None:
    """Assert that the best order costs no more than each order that keeps the results of the strategy."""
    cases = {order: order_case(name, order, ranks, **settings) for order in ORDERS}
    best = cases["best"].strategy()
    costs = {"best": count_costs(cases["best"]), "aggregate_first": count_costs(cases["aggregate_first"])}
    if reason := best.aggregate_first_reason:
        assert costs["best"] == costs["aggregate_first"], reason
        return
    costs["combine_first"] = count_costs(cases["combine_first"])
    for quantity, cost in costs["best"].items():
        assert cost <= min(each[quantity] for each in costs.values()) * (1 + 1e-12), (quantity, costs)


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in FULL_GRAPH for kind in load_strategy(name).models]
)
def test_best_order_costs_no_more_than_either_order(name: str, kind: str) -> None:
    ranks = 1 if name == "serial" else 2
    hidden = {"hidden": 1} if kind == "gat" else {}
    compare_orders(name, ranks, model={"kind": kind, **hidden})


def list_slow_cases() -> Iterator[Any]:
    models = [{"hidden": 16}, {"hidden": 4}, {"layers": 2, "hidden": 13}]
    for name in FULL_GRAPH:
        strategy = load_strategy(name)
        if strategy.combine_first_refusal:
            continue
        choices = [{}, *({key: value} for key, values in list_choices(strategy).items() for value in values)]
        for params in choices:
            yield pytest.param(name, {"params": params}, id=f"{name}-{params}")
        for model in models:
            yield pytest.param(name, {"model": model}, id=f"{name}-{model}")
            if strategy.can_recompute:
                settings = {"model": model, "training": {"recompute": True}}
                yield pytest.param(name, settings, id=f"{name}-{model}-recompute")
        if strategy.partitioned_over:
            yield pytest.param(name, {"partition": "metis"}, id=f"{name}-metis")
        yield pytest.param(name, {"training": {"features": True}}, id=f"{name}-trained features")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [*list_slow_cases()])
def test_best_order_costs_no_more_with_any_setting_on_any_grid(name: str, settings: dict[str, Any]) -> None:
    ranks = 1 if name == "serial" else 4
    for grid in load_strategy(name).grids(ranks):
        try:
            order_case(name, "aggregate_first", ranks, grid=grid, **settings).strategy()
        except UserError as refusal:
            pytest.skip(str(refusal))
        compare_orders(name, ranks, grid=grid, **settings)


def test_first_layer_may_send_fewer_elements_and_take_more_flops() -> None:
    """Owners add the gradients that return to them, which takes flops only if H W comes first."""
    replayed = {
        order: [
            replay(case.strategy(), rank, case.store()).entries
            for case in [order_case("bns-gcn", order, 4, params={"precompute": False}, model={"layers": 2})]
            for rank in range(4)
        ]
        for order in ("aggregate_first", "best")
    }
    elements = {
        order: sum(
            amounts.elements_received
            for entries in ranks
            for key, amounts in entries.items()
            if key.layer == 0 and key.op is Op.ALL_TO_ALL
        )
        for order, ranks in replayed.items()
    }
    flops = {
        order: sum(
            amounts.flops for entries in ranks for key, amounts in entries.items() if key.op is Op.SPMM
        )
        for order, ranks in replayed.items()
    }
    assert round(elements["best"] / elements["aggregate_first"], 2) == 0.92
    assert round(flops["best"] / flops["aggregate_first"], 2) == 1.04


def test_attention_sends_rows_of_H_W_if_both_orders_send_as_many() -> None:
    """Rows of H would be multiplied by W on every rank that receives them."""
    model = {"kind": "gat", "layers": 3, "hidden": 1, "heads": 8}
    strategy = order_case("bns-gcn", "best", 2, model=model).strategy()
    assert strategy.shapes[1] == (8, 8) and strategy.combines_first(1)
    flops = {
        order: sum(
            amounts.flops
            for key, amounts in replay(case.strategy(), 0, case.store()).entries.items()
            if key.layer == 1
        )
        for order in ("aggregate_first", "best")
        for case in [order_case("bns-gcn", order, 2, model=model)]
    }
    assert flops["best"] < flops["aggregate_first"]


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
    assert late.aggregate_first_reason == load_strategy(name).stale_order_reason
    if fresh:
        exact = make_strategy(name, {"p": 4}, fresh, "best", layers=3, hidden=400)
        assert exact.combines_first(2) and exact.aggregate_first_reason is None


@pytest.mark.parametrize("name", ["g3", "plexus", "scalegnn", "cluster-gcn", "pipegcn", "sancus", "distgnn"])
def test_strategies_that_aggregate_first_say_why(name: str) -> None:
    strategy = load_strategy(name)
    reason = strategy.combine_first_refusal or strategy.stale_order_reason
    assert reason and describe_strategy(name).order.endswith(reason)


def test_page_names_each_full_graph_strategy_that_does_not_choose() -> None:
    page = (find_root() / "docs/strategies/README.md").read_text()
    section = page.partition("## The order of products")[2].partition("\n## ")[0]
    strategies = {name: load_strategy(name) for name in FULL_GRAPH}
    fixed = [
        name
        for name, strategy in strategies.items()
        if strategy.combine_first_refusal or strategy.stale_order_reason
    ]
    assert fixed and all(f"`{name}`" in section for name in fixed), fixed


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
