"""A packed matrix is the matrix, in as many bytes and numbers as its form says, in any type and of any size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.csr import Csr, cast
from harness.kernels.packed import form_of, pack, unpack


@given(A=..., dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_what_comes_out_is_what_went_in(A: Csr, dtype: torch.dtype) -> None:
    A = cast(A, dtype)
    form, buffer = form_of(A), pack(A)
    B = unpack(buffer.clone(), form)
    assert (buffer.dtype, buffer.numel()) == (torch.uint8, form.bytes)
    assert form.bytes == sum(part.nbytes for part in A[:3])
    assert form.words == sum(part.numel() for part in A[:3])
    assert B.shape == A.shape
    for mine, theirs in zip(B[:3], A[:3], strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_shapes_are_packed_without_numbers() -> None:
    A = Csr(torch.empty(5, dtype=torch.int64), torch.empty(7, dtype=torch.int32), torch.empty(7), 9)
    shapes = Csr(*(part.to("meta") for part in A[:3]), 9)
    assert pack(shapes).shape == pack(A).shape
    assert unpack(pack(shapes), form_of(shapes)).shape == (4, 9)


def test_a_matrix_too_wide_for_its_column_type_is_a_defect() -> None:
    wide = Csr(torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0), 1 << 32)
    with pytest.raises(AssertionError):
        pack(wide)
