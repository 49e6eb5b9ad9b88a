"""The choice of replicas equals a search with sets of (vertex, height), in which every computed row has its inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.kernels.csr import Csr, from_scipy
from harness.strategies.halo.neutronstar import Prices, compute_heights, find_boundary

LAYERS = 3


def graph_of(draw: np.random.Generator, n: int) -> Csr:
    """Return a directed graph with a loop at every vertex."""
    return from_scipy(csr_array(((draw.random((n, n)) < 2 / n) | np.eye(n, dtype=bool)).astype(float)))


def by_sets(A: Csr, own: range, prices: Prices, room: int) -> dict[int, int]:
    """Apply the same rule with a set of (vertex, height), recomputing the needs of a vertex each time."""
    rows = {v: A.col[A.rowptr[v] : A.rowptr[v + 1]].tolist() for v in range(A.rows)}
    has: set[tuple[int, int]] = set()

    def takes(v: int, height: int) -> set[tuple[int, int]]:
        if v in own:
            return set()
        below = [takes(u, height - 1) for u in rows[v]] if height else []
        return {(v, height)}.union(*below)

    def cost(v: int, height: int) -> float:
        steps = [(each[height], each[height - 1] if height else 0) for each in (prices.vertex, prices.entry)]
        (vertex, vertex_below), (entry, entry_below) = steps
        return vertex - vertex_below + len(rows[v]) * (entry - entry_below)

    wanted = sorted({u for v in own for u in rows[v]} - set(own))
    for height in range(LAYERS):
        for v in sorted(wanted, key=lambda v: len(rows[v])):
            new = takes(v, height) - has
            came = len({u for u, low in new if low == 0})
            if new and sum(cost(*one) for one in new) < prices.worth[height] and came <= room:
                has |= new
                room -= came
    return {v: max(height for u, height in has if u == v) for v, _ in has}


@given(seed=st.integers(0, 2**31))
def test_chosen_replicas_equal_a_search_with_sets(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 30))
    A, ends = graph_of(draw, n), np.sort(draw.integers(0, n + 1, 2)).tolist()
    up = [np.cumsum(draw.integers(0, 4, LAYERS)).tolist() for _ in range(2)]
    prices = Prices(draw.integers(0, 40, LAYERS).tolist(), *up)
    room, own = int(draw.integers(0, n + 1)), range(*ends)
    computed = compute_heights(A, own, prices, room).tolist()
    expected = by_sets(A, own, prices, room)
    assert computed == [LAYERS if v in own else expected.get(v, -1) for v in range(n)]


@pytest.mark.parametrize(("worth", "raised"), [(0, False), (1e9, True)])
def test_zero_worth_fetches_all_rows_and_large_worth_computes_all(worth: float, raised: bool) -> None:
    A, own = graph_of(np.random.default_rng(0), 50), range(10, 30)
    height = compute_heights(A, own, Prices([worth] * LAYERS, [1, 2, 3], [0, 1, 2]), A.rows)
    at_the_boundary = height[find_boundary(A, own)]
    assert len(at_the_boundary) > 10
    assert bool((at_the_boundary == (LAYERS - 1 if raised else -1)).all())
