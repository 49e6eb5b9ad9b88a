"""Products of sparse matrices have the values of dense ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.csr import Csr, block, cast, row_of, to_scipy, transpose
from harness.kernels.parts import product, select_rows


def dense(A: Csr) -> torch.Tensor:
    return torch.from_numpy(to_scipy(A).toarray())


def ascending(A: Csr) -> bool:
    return bool((torch.diff(row_of(A) * A.cols + A.col) >= 0).all())


@given(st.from_type(Csr), st.lists(st.integers(0, 12), max_size=20))
def test_selected_rows(A, rows):
    rows = torch.tensor([row % A.rows for row in rows] if A.rows else [], dtype=torch.int64)
    B = select_rows(A, rows)
    assert (B.rowptr.dtype, B.col.dtype) == (A.rowptr.dtype, A.col.dtype)
    assert B.shape == (len(rows), A.cols)
    assert ascending(B)
    assert torch.equal(dense(B), dense(A)[rows])


@given(st.from_type(Csr), st.from_type(Csr), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_product(A, B, dtype):
    inner = min(A.cols, B.rows)
    A, B = block(A, range(A.rows), range(inner)), block(B, range(inner), range(B.cols))
    C = product(cast(A, dtype), cast(B, dtype))
    assert C.val.dtype == dtype
    assert ascending(C)
    assert torch.equal(dense(C).double(), dense(A) @ dense(B))
    assert product(transpose(B), transpose(A)).shape == (B.cols, A.rows)


def test_widths_that_do_not_meet_are_refused():
    A = Csr(torch.tensor([0, 1]), torch.tensor([2], dtype=torch.int32), torch.ones(1), 3)
    with pytest.raises(AssertionError, match="times"):
        product(A, A)
