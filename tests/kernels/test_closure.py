"""The choice of replicas equals a search with sets of (vertex, height), in which every computed row has its inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.kernels.csr import Csr, from_scipy
from harness.strategies.halo.neutronstar import Prices, compute_heights, find_boundary, find_raised

LAYERS = 3


def graph_of(draw: np.random.Generator, n: int) -> Csr:
    """Return a directed graph with a loop at every vertex."""
    return from_scipy(csr_array(((draw.random((n, n)) < 2 / n) | np.eye(n, dtype=bool)).astype(float)))


@given(seed=st.integers(0, 2**31))
def test_chosen_replicas_equal_a_search_with_sets(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 30))
    A, ends = graph_of(draw, n), np.sort(draw.integers(0, n + 1, 2)).tolist()
    up = [np.cumsum(draw.integers(0, 4, LAYERS)).tolist() for _ in range(2)]
    prices = Prices(draw.integers(0, 40, LAYERS).tolist(), *up)
    room, own = int(draw.integers(0, n + 1)), range(*ends)
    computed = compute_heights(A, own, prices, room).tolist()
    rows = [A.col[A.rowptr[v] : A.rowptr[v + 1]].tolist() for v in range(n)]
    raised = find_raised(rows, own, prices, room)
    expected = {v: max(height for u, height in raised if u == v) for v, _ in raised}
    assert computed == [LAYERS if v in own else expected.get(v, -1) for v in range(n)]


@pytest.mark.parametrize(("worth", "raised"), [(0, False), (1e9, True)])
def test_zero_worth_fetches_all_rows_and_large_worth_computes_all(worth: float, raised: bool) -> None:
    A, own = graph_of(np.random.default_rng(0), 50), range(10, 30)
    height = compute_heights(A, own, Prices([worth] * LAYERS, [1, 2, 3], [0, 1, 2]), A.rows)
    at_the_boundary = height[find_boundary(A, own)]
    assert len(at_the_boundary) > 10
    assert bool((at_the_boundary == (LAYERS - 1 if raised else -1)).all())
