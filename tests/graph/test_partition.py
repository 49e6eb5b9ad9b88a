"""A partition gives every vertex to one part, is a function of the seed, and meets the aim of its engine.

The graph has four communities of unequal degree: an engine that cuts along them exchanges few rows. It is directed,
so that rows and columns, and what is needed and who needs it, are not the same.
"""

import sys
from typing import get_args

import numpy as np
import pytest
import torch

from harness.base.errors import UserError
from harness.graph.generators.rmat import Rmat
from harness.graph.generators.sbm import Sbm
from harness.graph.model import RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.order import permute_matrix
from harness.graph.partitions.hypergraph import EPSILON, build_nets
from harness.graph.partitions.libra import partition_with_libra
from harness.graph.partitions.metis import find_neighbours
from harness.graph.partitions.partition import (
    Method,
    assign_random_parts,
    compute_parts,
    count_needed_rows,
    order_by_part,
)
from harness.graph.sources.source import generate_graph
from harness.kernels.csr import from_coo, to_scipy
from harness.kernels.random import Purpose, random_order
from harness.spec.dataset import COMPUTED

METHODS = get_args(Method)
N, PARTS = 307, 4


@pytest.fixture(scope="module")
def communities():
    """Edges from even vertices to odd ones are kept in both directions, others in one."""
    raw = generate_graph(Sbm(N, PARTS, 12, 0.95, seed=1))
    kept = (raw.source % 2 == 0) | (raw.source < raw.target)
    return normalise_adjacency(RawGraph(N, raw.source[kept], raw.target[kept]), directed=True)[0]


@pytest.fixture(scope="module")
def found(communities):
    """The part of every vertex, by method, computed once."""
    return {method: compute_parts(communities, method, PARTS, seed=3) for method in METHODS}


def total(A, part):
    """The number of rows exchanged by all parts."""
    partition = order_by_part(part, PARTS)
    return sum(count_needed_rows(permute_matrix(A, partition.order, partition.order), partition.bounds))


def test_a_spec_names_every_method_in_its_order():
    assert COMPUTED == METHODS


@pytest.mark.parametrize("method", METHODS)
def test_every_vertex_is_in_exactly_one_part_and_parts_keep_their_order(found, method):
    part = found[method]
    partition = order_by_part(part, PARTS)
    assert sorted(partition.order.tolist()) == list(range(N))
    assert (partition.bounds[0], partition.bounds[-1]) == (0, N)
    for number, rows in enumerate(partition.ranges):
        members = partition.order[rows.start : rows.stop]
        assert members.tolist() == torch.nonzero(part == number)[:, 0].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_the_partitioned_matrix_is_scipys(communities, found, method):
    part = found[method]
    order = order_by_part(part, PARTS).order
    P = np.eye(N)[order]
    expected = P @ to_scipy(communities).toarray() @ P.T
    np.testing.assert_array_equal(to_scipy(permute_matrix(communities, order, order)).toarray(), expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_partition_is_a_function_of_the_seed(communities, found, method):
    assert torch.equal(compute_parts(communities, method, PARTS, seed=3), found[method])
    assert not torch.equal(compute_parts(communities, method, PARTS, seed=4), found[method])


def test_a_hypergraph_is_cut_alike_on_any_number_of_threads(communities, found, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(compute_parts(communities, "hypergraph", PARTS, seed=3), found["hypergraph"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 7, N])
def test_any_number_of_parts_up_to_the_vertices(communities, method, parts):
    part = compute_parts(communities, method, parts, seed=0)
    assert part.shape == (N,)
    assert not part.is_floating_point()
    assert set(part.tolist()) <= set(range(parts))


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_without_edges(method):
    A, _ = normalise_adjacency(
        RawGraph(5, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)), directed=True
    )
    assert total(A, compute_parts(A, method, PARTS, seed=0)) == 0


def test_random_parts_are_equal_blocks_of_a_shuffle(communities):
    sizes = torch.bincount(assign_random_parts(N, PARTS, 0)).tolist()
    assert sizes == [77, 77, 77, N - 3 * 77]


@pytest.mark.parametrize("method", ["metis", "hypergraph"])
def test_an_engine_exchanges_far_fewer_rows_than_chance(communities, found, method):
    assert total(communities, found[method]) < 0.5 * total(communities, found["random"])


def test_metis_by_volume_sends_fewer_rows_where_hubs_have_many_edges():
    A = normalise_adjacency(generate_graph(Rmat(9, 8, seed=1)), directed=False)[0]
    rows = {method: total(A, compute_parts(A, method, PARTS, seed=3)) for method in ("metis", "metis-volume")}
    assert rows["metis-volume"] < 0.95 * rows["metis"]


@pytest.mark.parametrize("method", ["metis", "metis-volume"])
def test_metis_balances_vertices(found, method):
    """METIS tolerates an imbalance of 3 %."""
    assert max(torch.bincount(found[method])) <= np.ceil(1.03 * N / PARTS)


def test_a_hypergraph_balances_nonzeros_to_epsilon_and_one_row(communities, found):
    rows = communities.rowptr.diff()
    weights = torch.bincount(found["hypergraph"], weights=rows.double())
    assert float(weights.max()) <= (1 + EPSILON) * communities.nnz / PARTS + int(rows.max())


def test_metis_sees_an_undirected_graph_without_loops(communities):
    dense = to_scipy(communities).toarray() != 0
    expected = (dense | dense.T) & ~np.eye(N, dtype=bool)
    np.testing.assert_array_equal(find_neighbours(communities).toarray(), expected)


def test_the_metric_of_the_column_nets_is_the_volume(communities, found):
    """The sum over nets of (parts touched - 1), which the engine minimises."""
    part = found["random"].numpy()
    km1 = sum(len(set(part[net])) - 1 for net in build_nets(communities, np.arange(N)))
    assert km1 == total(communities, found["random"])


def test_a_net_holds_its_own_row_even_without_loops():
    path = from_coo(torch.tensor([1, 2]), torch.tensor([0, 1]), torch.ones(2), (3, 3))
    assert [sorted(net.tolist()) for net in build_nets(path, np.arange(3))] == [[0, 1], [1, 2], [2]]


def test_parts_may_be_empty():
    partition = order_by_part(torch.tensor([3, 0, 3, 0]), 5)
    assert partition.order.tolist() == [1, 3, 0, 2]
    assert partition.bounds == (0, 2, 2, 2, 4, 4)


# The vertex cut.


def by_the_rules(A, parts, seed):
    """The part of every edge by Libra's rules on sets, and the parts that have a copy of each vertex."""
    M = find_neighbours(A).tocoo()
    edges = sorted((int(u), int(v)) for u, v in zip(M.row, M.col, strict=True) if u < v)
    degree = np.bincount(M.row, minlength=A.rows)
    load, copies, part_of = [0] * parts, [set() for _ in range(A.rows)], {}
    for number in random_order(seed, Purpose.PARTITION, range(len(edges))).tolist():
        u, v = edges[number]
        fewer = u if degree[u] < degree[v] else v
        candidates = copies[u] & copies[v] or (
            copies[fewer] if copies[u] and copies[v] else copies[u] or copies[v] or set(range(parts))
        )
        part = min(candidates, key=lambda each: (load[each], each))
        load[part], part_of[u, v] = load[part] + 1, part
        copies[u].add(part)
        copies[v].add(part)
    return part_of, copies


@pytest.mark.parametrize("parts", [1, 3, 70])
def test_libra_follows_its_rules_and_counts_its_copies(communities, parts):
    """Seventy parts take two words a vertex. Copies are the rows and columns that scipy finds filled."""
    cut = partition_with_libra(communities, parts, seed=5)
    part_of, copies = by_the_rules(communities, parts, 5)
    A = to_scipy(communities).tocoo()
    for u, v, part in zip(A.row.tolist(), A.col.tolist(), cut.edges.tolist(), strict=True):
        assert part == (cut.part[u] if u == v else part_of[min(u, v), max(u, v)])
    for vertex, master in enumerate(cut.part.tolist()):
        assert master in (copies[vertex] or range(parts))
    for part in range(parts):
        mine = cut.edges.numpy() == part
        assert cut.copies[part] == len(np.union1d(A.row[mine], A.col[mine]))
    assert sum(cut.report["entries"]) == communities.nnz


def test_libra_copies_less_than_chance_and_balances_edges(communities):
    cut, part = partition_with_libra(communities, PARTS, seed=0), np.random.default_rng(0)
    A = to_scipy(communities).tocoo()
    drawn = part.integers(0, PARTS, A.nnz)
    by_chance = sum(len(np.union1d(A.row[drawn == p], A.col[drawn == p])) for p in range(PARTS))
    assert N <= sum(cut.copies) < 0.75 * by_chance
    entries = cut.report["entries"]
    assert max(entries) < 1.2 * np.mean(entries)
    assert max(torch.bincount(cut.part)) < 1.2 * N / PARTS


@pytest.mark.parametrize(("method", "package"), [("metis", "pymetis"), ("hypergraph", "mtkahypar")])
def test_a_missing_library_is_named_with_how_to_get_it(communities, monkeypatch, method, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"partition {method} needs .*{package}.*pip install"):
        compute_parts(communities, method, PARTS, seed=0)
