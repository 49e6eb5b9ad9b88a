"""A matrix without its diagonal, and the diagonal, against dense matrices; of shapes, as many entries."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels import Csr, from_coo, to_scipy
from harness.kernels.parts import apart


def dense(A: Csr) -> torch.Tensor:
    return torch.from_numpy(to_scipy(A).toarray())


@given(A=..., offset=st.integers(-12, 12))
def test_both_together_are_the_matrix(A: Csr, offset: int) -> None:
    whole, (without, values) = dense(A), apart(A, offset)
    rest = dense(without)
    row, col = torch.arange(A.rows)[:, None], torch.arange(A.cols)[None]
    on = row + offset == col
    assert torch.equal(rest, whole.masked_fill(on, 0))
    torch.testing.assert_close(values, whole[on].to(values.dtype))


@pytest.mark.parametrize("offset", [-9, -2, 0, 3, 9])
def test_of_shapes_one_entry_is_missing_wherever_the_diagonal_passes(offset: int) -> None:
    row, col = torch.arange(6).repeat_interleave(8), torch.arange(8).repeat(6)
    A = from_coo(row, col, torch.rand(48), (6, 8))
    shapes = Csr(A.rowptr.to("meta"), A.col.to("meta"), A.val.to("meta"), A.cols)
    (expected, loops), (rest, values) = apart(A, offset), apart(shapes, offset)
    assert rest.nnz == expected.nnz
    assert values.shape == loops.shape
