"""A breadth-first search visits every vertex once, component by component, in scipy's order."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from harness.kernels.csr import from_scipy
from harness.strategies.g3.bins import breadth_first


@given(seed=st.integers(0, 2**31))
def test_search_order_equals_scipy_in_every_component(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 30))
    dense = draw.random((n, n)) < 1.5 / n
    M = csr_array((dense | dense.T).astype(float))
    found, expected = breadth_first(from_scipy(M)).tolist(), []
    for v in range(n):
        if v not in expected:
            expected += breadth_first_order(M, v, return_predecessors=False).tolist()
    assert found == expected


def test_search_of_an_empty_graph_is_empty() -> None:
    assert torch.equal(breadth_first(from_scipy(csr_array((0, 0)))), torch.empty(0, dtype=torch.int64))
