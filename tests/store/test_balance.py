"""Shards are counted as scipy counts them, and a road-like graph balances as Plexus' Table 3 says."""

import numpy as np
import pytest
import torch
from scipy import sparse

from harness.conformance.case import make_check_graph
from harness.graph.generators.lattice import Lattice, keep_largest_component, subdivide_edges
from harness.graph.model import Graph, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.order import make_orders, permute_matrix
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.shard_balance import expect_loop_imbalance, measure_shard_balance
from harness.kernels import to_scipy


def bare(raw: RawGraph) -> MemoryStore:
    """A graph with nothing at its vertices."""
    A, counts = normalise_adjacency(raw, directed=False)
    nothing = torch.zeros(raw.n, dtype=torch.int64)
    return MemoryStore(Graph(A, torch.zeros(raw.n, 1), nothing, nothing.to(torch.uint8), 1, False, counts))


def counted(A: sparse.csr_array, shards: int) -> float:
    """The fullest shard over the mean, shard by shard."""
    size = -(-A.shape[0] // shards)
    cuts = [range(i * size, min((i + 1) * size, A.shape[0])) for i in range(shards)]
    counts = [A[rows.start : rows.stop, cols.start : cols.stop].nnz for rows in cuts for cols in cuts]
    return max(counts) / np.mean(counts)


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_shards_are_those_of_the_permuted_matrix(shards: int) -> None:
    graph = make_check_graph(101)
    found = dict(measure_shard_balance(MemoryStore(graph), shards, seed=5))
    for kind in ("none", "single", "double"):
        p, q = make_orders(kind, graph.n, 5)
        assert found[kind] == pytest.approx(counted(to_scipy(permute_matrix(graph.A, p, q)), shards))
    p, _ = make_orders("single", graph.n, 5)
    rest = to_scipy(permute_matrix(graph.A, p, p)).tolil()
    rest.setdiag(0)
    rest = rest.tocsr()
    rest.eliminate_zeros()
    assert found["single, loops apart"] == pytest.approx(counted(rest, shards))


def test_a_road_like_graph_balances_as_the_paper_says() -> None:
    """PLX-091 to PLX-094: 7.70, 3.24 and 1.001 on europe_osm, which has as many edges a vertex."""
    lattice = Lattice(600, 600, seed=1)
    source, target = lattice.edges(range(lattice.draws))
    raw = RawGraph(lattice.n, source.numpy(), target.numpy())
    store = bare(keep_largest_component(subdivide_edges(raw, 1.73, 1, lattice.draws)))
    edges_per_vertex = (store.nnz - store.n) / 2 / store.n
    assert edges_per_vertex == pytest.approx(108_109_320 / 2 / 50_912_018, rel=0.01)
    found = dict(measure_shard_balance(store, 8))
    law = expect_loop_imbalance(store.n, store.nnz, 8)
    assert law == pytest.approx(3.24, rel=0.01)
    assert found["none"] > 7
    assert found["single"] == pytest.approx(law, rel=0.01)
    assert 1 <= found["double"] < 1.02
    assert 1 <= found["single, loops apart"] < 1.02


def test_no_order_helps_a_star() -> None:
    hub = RawGraph(4096, np.zeros(4095, dtype=np.int64), np.arange(1, 4096))
    found = dict(measure_shard_balance(bare(hub), 8))
    assert min(found.values()) > 5
