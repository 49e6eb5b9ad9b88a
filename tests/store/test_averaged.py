"""Rows of an averaged graph equal scipy's means in every rectangle, and the code runs on meta tensors."""

import numpy as np
import pytest

from harness.conformance.case import make_check_graph
from harness.graph.averaged import AveragedBlocks
from harness.graph.store.memory_store import MemoryStore
from harness.kernels.csr import to_scipy


@pytest.mark.parametrize("directed", [False, True])
def test_rows_share_one_among_the_neighbours(directed: bool) -> None:
    store = MemoryStore(make_check_graph(61, directed=directed), "single", 3)
    everyone = range(61)
    edges = to_scipy(store.adjacency(everyone, everyone)).toarray() != 0
    np.fill_diagonal(edges, False)
    expected = edges / np.maximum(edges.sum(axis=1, keepdims=True), 1)
    averaged = AveragedBlocks(store)
    for rows, cols in [(everyone, everyone), (range(7, 30), range(20, 61)), (range(3), range(3, 3))]:
        found = averaged.adjacency(rows, cols)
        here = slice(rows.start, rows.stop), slice(cols.start, cols.stop)
        np.testing.assert_allclose(to_scipy(found).toarray(), expected[here], rtol=1e-15)
        assert found.nnz == store.adjacency(rows, cols).nnz
    assert averaged.directed
    assert averaged.n == store.n
