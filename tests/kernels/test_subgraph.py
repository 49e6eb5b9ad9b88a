"""Parts of a matrix by lists, as scipy indexes them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.csr import Csr, block, row_of, to_scipy
from harness.kernels.parts import induced, select_columns


def ascending(A: Csr) -> bool:
    return bool((torch.diff(row_of(A) * A.cols + A.col) >= 0).all())


def some_of(data, size: int, in_order: bool) -> torch.Tensor:
    chosen = data.draw(st.permutations(range(size)))[: data.draw(st.integers(0, size))]
    return torch.tensor(sorted(chosen) if in_order else chosen, dtype=torch.int64)


@given(st.from_type(Csr), st.data(), st.booleans())
def test_induced_subgraph(A, data, in_order):
    n = min(A.shape)
    A = block(A, range(n), range(n))
    v = some_of(data, n, in_order)
    B = induced(A, v)
    assert B.shape == (len(v), len(v))
    assert B.col.dtype == torch.int32
    assert ascending(B)
    assert np.array_equal(to_scipy(B).toarray(), to_scipy(A)[v.numpy()][:, v.numpy()].toarray())


@given(st.from_type(Csr), st.data(), st.booleans())
def test_selected_columns(A, data, in_order):
    cols = some_of(data, A.cols, in_order)
    B = select_columns(A, cols)
    assert ascending(B)
    assert np.array_equal(to_scipy(B).toarray(), to_scipy(A)[:, cols.numpy()].toarray())


def test_the_same_column_twice_is_refused():
    A = Csr(torch.tensor([0, 2]), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2), 2)
    with pytest.raises(AssertionError, match="twice"):
        select_columns(A, torch.tensor([1, 1]))
