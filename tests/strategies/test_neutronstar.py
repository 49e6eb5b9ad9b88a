"""NeutronStar fetches or computes every needed row once, and replicas cost the estimated flops."""

from typing import Any

import numpy as np
import pytest

from harness.conformance.case import Case
from harness.conformance.checks import ScipyCounts
from harness.kernels.csr import to_scipy
from harness.ledger import Direction, Op, TensorName
from harness.prediction.replay import replay
from harness.strategies.halo.neutronstar import NeutronStar
from harness.strategy import Words
from tests.cases import DOUBLE, in_parts, make_case

PARTS, LAYERS = 4, 3


def make_neutronstar_case(name: str = "neutronstar", order: str = "aggregate_first", **params: float) -> Case:
    model = {"layers": LAYERS, "hidden": 10, "order": order}
    return make_case(name, {"p": PARTS}, params, dataset=in_parts(PARTS), model=model, **DOUBLE)


def words_of(case: Case) -> list[Words]:
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    return [strategy.words(strategy.coordinates(rank), counts) for rank in range(PARTS)]


@pytest.mark.parametrize("order", ["aggregate_first", "combine_first"])
def test_zero_flops_per_word_equals_the_halo_exchange(order: str) -> None:
    assert words_of(make_neutronstar_case(order=order, flops_per_word=0)) == words_of(
        make_neutronstar_case("bns-gcn", order, precompute=False)
    )


def test_large_flops_per_word_sends_only_gradients() -> None:
    for words in words_of(make_neutronstar_case(flops_per_word=1e9)):
        assert {key.op for key in words} == {Op.ALL_REDUCE}


@pytest.mark.parametrize("params", [{}, {"flops_per_word": 30}, {"flops_per_word": 1e9}, {"replicas": 0.4}])
def test_every_needed_row_is_present_once(params: dict[str, float]) -> None:
    strategy, A = (
        make_neutronstar_case(**params).strategy(),
        ScipyCounts(make_neutronstar_case().store()).adjacency(),
    )
    assert isinstance(strategy, NeutronStar)
    M, some = to_scipy(A), 0
    for own, choice in zip(strategy.blocks(), strategy.choose_replicas(A), strict=True):
        for layer, fetched in enumerate(choice.fetched):
            present, above = ({*own, *choice.replicas_at(level).tolist()} for level in (layer, layer + 1))
            assert not present & set(fetched.tolist())
            assert set(np.unique(M[list(own)].nonzero()[1])) <= present | set(fetched.tolist())
            assert set(np.unique(M[sorted(above - {*own})].nonzero()[1])) <= present
        assert len(choice.replicas) <= params.get("replicas", PARTS) * len(own)
        some += len(choice.replicas)
    assert some


def flops_of(case: Case, rank: int) -> int:
    """Return the flops of the products in the forward pass."""
    entries = replay(case.strategy(), rank, case.store()).entries
    products = (Op.SPMM, Op.GEMM)
    return sum(
        amounts.flops
        for key, amounts in entries.items()
        if key.op in products and key.direction is Direction.FORWARD
    )


@pytest.mark.parametrize("order", ["aggregate_first", "combine_first"])
def test_flops_of_replicas_equal_their_estimate(order: str) -> None:
    case, A = make_neutronstar_case(order=order), ScipyCounts(make_neutronstar_case().store()).adjacency()
    strategy, lengths = case.strategy(), A.rowptr.diff()
    assert isinstance(strategy, NeutronStar)
    prices = strategy.compute_prices()
    for rank, choice in enumerate(strategy.choose_replicas(A)):
        tops = [
            choice.replicas[below:above] for above, below in zip(choice.sizes, choice.sizes[1:], strict=False)
        ]
        priced = sum(
            len(top) * prices.vertex[height] + int(lengths[top].sum()) * prices.entry[height]
            for height, top in enumerate(tops)
        )
        plain = flops_of(make_neutronstar_case(order=order, flops_per_word=0), rank)
        assert flops_of(case, rank) - plain == priced > 0


PRICED = {Op.SPMM, Op.GEMM, Op.ALL_TO_ALL}


def count_price(case: Case, flops_per_word: float) -> float:
    """Return the flops of products and the price of arriving rows on all ranks, without the scores of attention."""
    entries = [replay(case.strategy(), rank, case.store()).entries for rank in range(PARTS)]
    return sum(
        amounts.flops + flops_per_word * amounts.elements_received
        for each in entries
        for key, amounts in each.items()
        if key.op in PRICED and (key.op, key.tensor) != (Op.GEMM, TensorName.SCORES)
    )


def make_priced_case(kind: str, order: str, price: float, hidden: int, **training: bool) -> Case:
    settings: dict[str, Any] = {
        "model": {"layers": LAYERS, "hidden": hidden, "kind": kind, "order": order},
        "training": training,
        "dataset": in_parts(PARTS),
    }
    return make_case("neutronstar", {"p": PARTS}, {"flops_per_word": price}, **settings)


@pytest.mark.parametrize(("kind", "hidden"), [("gcn", 5), ("sage", 5), ("gat", 1)])
@pytest.mark.parametrize("order", ["aggregate_first", "combine_first", "best"])
def test_price_of_an_epoch_equals_the_replay(kind: str, hidden: int, order: str) -> None:
    """All layers but the last are recomputed."""
    case = make_priced_case(kind, order, 100.0, hidden, recompute=True)
    strategy, A = case.strategy(), ScipyCounts(case.store()).adjacency()
    assert isinstance(strategy, NeutronStar)
    choices = strategy.choose_replicas(A)
    assert any(len(choice.replicas) for choice in choices)
    assert strategy.price_epoch(choices, A) == count_price(case, 100.0)


@pytest.mark.parametrize("price", [0.0, 100.0])
@pytest.mark.parametrize(("kind", "hidden"), [("gcn", 5), ("gcn", 16), ("sage", 16), ("gat", 1)])
def test_best_orders_have_no_higher_price_than_either_order(price: float, kind: str, hidden: int) -> None:
    prices = {
        order: count_price(make_priced_case(kind, order, price, hidden), price)
        for order in ("aggregate_first", "combine_first", "best")
    }
    assert prices["best"] == min(prices.values()), prices
