"""A matrix cut into blocks and put together again is the same matrix, whatever the cuts."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from harness.graph.blocks import beside, ceil_blocks
from harness.kernels.csr import block, from_scipy


@given(st.integers(1, 100), st.integers(1, 20))
def test_ceil_blocks_cover_everything_once(n, blocks):
    ranges = ceil_blocks(n, blocks)
    assert len(ranges) == blocks
    assert [v for part in ranges for v in part] == list(range(n))
    assert max(len(part) for part in ranges) == -(-n // blocks)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 7), st.integers(0, 5))
def test_cut_and_put_together(rows, cols, across, seed):
    M = sparse.random_array((rows, cols), density=0.15, rng=np.random.default_rng(seed), format="csr")
    A = from_scipy(M)
    again = beside([block(A, range(rows), c) for c in ceil_blocks(cols, across)])
    assert again.cols == A.cols
    for mine, theirs in zip(again[:3], A[:3], strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
