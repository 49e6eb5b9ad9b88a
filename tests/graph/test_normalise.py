"""The normalised adjacency equals PyTorch Geometric's for any edges, and counts equal sets of pairs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from harness.graph.model import RawGraph
from harness.graph.normalise import normalise_adjacency
from tests.dense import to_dense


@st.composite
def raw_graphs(draw):
    """A few vertices and any edges among them: loops, duplicates, isolated vertices, no edge at all."""
    n = draw(st.integers(1, 12))
    vertex = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(vertex, vertex), max_size=40))
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return RawGraph(n, ends[:, 0].copy(), ends[:, 1].copy())


@given(raw_graphs(), st.booleans())
def test_equals_pyg(raw, directed):
    edge_index = torch.from_numpy(np.stack([raw.source, raw.target]))
    edge_index, _ = remove_self_loops(coalesce(edge_index, num_nodes=raw.n))
    if not directed:
        edge_index = to_undirected(edge_index, num_nodes=raw.n)
    (source, target), weight = gcn_norm(edge_index, num_nodes=raw.n, dtype=torch.float64)
    expected = torch.zeros(raw.n, raw.n, dtype=torch.float64)
    expected[target, source] = weight
    A, _ = normalise_adjacency(raw, directed)
    assert A.nnz == len(weight)
    np.testing.assert_allclose(to_dense(A), expected, rtol=1e-15)


@given(raw_graphs(), st.booleans())
def test_equals_the_matrix_formula(raw, directed):
    pattern = sparse.coo_array(
        (np.ones(len(raw.source)), (raw.target, raw.source)), shape=(raw.n, raw.n)
    ).toarray()
    pattern = pattern > 0 if directed else pattern + pattern.T > 0
    with_loops = np.where(np.eye(raw.n, dtype=bool), 1.0, pattern)
    scale = np.diag(with_loops.sum(axis=1) ** -0.5)
    A, _ = normalise_adjacency(raw, directed)
    np.testing.assert_allclose(to_dense(A), scale @ with_loops @ scale, rtol=1e-14)


@given(raw_graphs(), st.booleans())
def test_counts_are_those_of_sets(raw, directed):
    pairs = list(zip(raw.source.tolist(), raw.target.tolist(), strict=True))
    edges = {(u, v) for u, v in pairs if u != v}
    both_ways = edges if directed else edges | {(v, u) for u, v in edges}
    A, counts = normalise_adjacency(raw, directed)
    assert counts.stored == len(pairs)
    assert counts.loops == sum(u == v for u, v in pairs)
    assert counts.duplicates == len(pairs) - len(set(pairs))
    assert counts.nnz_sym == len(both_ways)
    assert counts.nnz_adj == len(both_ways) + raw.n == A.nnz


def test_the_directed_path_of_three_tells_rows_from_columns():
    """The graph 0 -> 1 -> 2: row 1 has vertex 0, row 2 has vertex 1; in-degrees with the loop are 1, 2, 2."""
    A, _ = normalise_adjacency(RawGraph(3, np.array([0, 1]), np.array([1, 2])), directed=True)
    expected = [[1.0, 0.0, 0.0], [0.5**0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    np.testing.assert_allclose(to_dense(A), expected, rtol=1e-15)


@pytest.mark.parametrize("directed", [False, True])
def test_a_symmetric_graph_has_a_symmetric_matrix_to_the_bit(directed):
    ends = np.random.default_rng(0).integers(0, 50, (2, 200))
    raw = RawGraph(50, np.concatenate(ends), np.concatenate(ends[::-1]))
    A = to_dense(normalise_adjacency(raw, directed)[0])
    np.testing.assert_array_equal(A, A.T)


@given(raw_graphs())
def test_rows_are_sorted_and_typed(raw):
    A, _ = normalise_adjacency(raw, directed=True)
    assert (A.rowptr.dtype, A.col.dtype, A.val.dtype) == (torch.int64, torch.int32, torch.float64)
    for first, last in zip(A.rowptr[:-1].tolist(), A.rowptr[1:].tolist(), strict=True):
        row = A.col[first:last].tolist()
        assert row == sorted(set(row))
