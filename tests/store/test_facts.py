"""What the double permutation is for: on sparse graphs a single one leaves the loops on the diagonal blocks."""

import pytest

from harness.graph.blocks import ceil_blocks
from harness.store.facts import nonzeros
from harness.store.memory import MemoryStore

ROADS = {"source": {"kind": "lattice", "height": 300, "width": 300}, "labels": {"kind": "uniform"}}
SIDE = 8


@pytest.fixture
def imbalance(make_graph):
    """The largest block over the mean one, of 8 x 8 blocks, and what loops on the diagonal alone explain."""
    graph = make_graph(**ROADS)

    def measure(permutation):
        store = MemoryStore(graph, permutation, seed=0)
        counts = nonzeros(store, ceil_blocks(graph.n, SIDE), ceil_blocks(graph.n, SIDE))
        assert int(counts.sum()) == graph.counts.nnz_adj
        return float(counts.max() / counts.double().mean())

    return measure, 1 + (SIDE - 1) * graph.n / graph.counts.nnz_adj


def test_a_road_map_in_its_own_order_is_a_diagonal(imbalance):
    measure, _ = imbalance
    assert measure("none") == pytest.approx(SIDE, rel=0.05)


def test_a_single_permutation_leaves_the_loops_on_the_diagonal(imbalance):
    measure, law = imbalance
    assert measure("single") == pytest.approx(law, rel=0.02)


def test_a_double_permutation_balances(imbalance):
    measure, _ = imbalance
    assert measure("double") < 1.05
