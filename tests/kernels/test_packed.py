"""Unpacking a packed matrix gives the matrix, and its format states the right numbers of bytes and words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.csr import Csr, cast, get_packed_format, pack, unpack
from harness.kernels.spmm import multiply_library, multiply_tiled
from harness.strategy import packed_bytes


@given(A=..., dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_unpacked_matrix_equals_the_packed_one(A: Csr, dtype: torch.dtype) -> None:
    A = cast(A, dtype)
    form, buffer = get_packed_format(A), pack(A)
    B = unpack(buffer.clone(), form)
    assert (buffer.dtype, buffer.numel()) == (torch.uint8, form.nbytes)
    assert form.nbytes == sum(part.nbytes for part in B[:3])
    assert form.nbytes == (A.rows + 1) * 4 + A.nnz * (4 + dtype.itemsize)
    assert form.words == sum(part.numel() for part in A[:3])
    assert B.shape == A.shape
    for mine, theirs, kind in zip(B[:3], A[:3], (torch.int32, torch.int32, dtype), strict=True):
        assert mine.dtype == kind
        assert torch.equal(mine, theirs.to(kind))


def test_meta_tensors_are_packed_to_the_same_shape() -> None:
    A = Csr(torch.empty(5, dtype=torch.int64), torch.empty(7, dtype=torch.int32), torch.empty(7), 9)
    shapes = Csr(*(part.to("meta") for part in A[:3]), 9)
    assert pack(shapes).shape == pack(A).shape
    assert unpack(pack(shapes), get_packed_format(shapes)).shape == (4, 9)


@pytest.mark.parametrize(("nnz", "pointer"), [(2**31 - 1, torch.int32), (2**31, torch.int64)])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_pointers_are_64_bit_above_2_to_the_31_nonzeros(
    nnz: int, pointer: torch.dtype, precision: str
) -> None:
    """On meta tensors, because real ones would not fit in memory."""
    rowptr, col, val = (
        torch.empty(size, dtype=dtype, device="meta")
        for size, dtype in ((8, torch.int64), (nnz, torch.int32), (nnz, getattr(torch, precision)))
    )
    A = Csr(rowptr, col, val, 9)
    B = unpack(pack(A), get_packed_format(A))
    assert (B.rowptr.dtype, B.col.dtype, B.val.dtype) == (pointer, torch.int32, val.dtype)
    assert (B.shape, B.nnz) == ((7, 9), nnz)
    assert pack(A).numel() == packed_bytes(7, nnz, precision) == get_packed_format(A).nbytes


@given(A=...)
def test_products_with_32_and_64_bit_pointers_are_bitwise_equal(A: Csr) -> None:
    H = torch.linspace(-1, 1, A.cols * 24, dtype=A.val.dtype).view(A.cols, 24)
    B = unpack(pack(A), get_packed_format(A))
    for way in (multiply_library, multiply_tiled):
        assert torch.equal(way(B, H, None), way(A, H, None))


def test_packing_columns_beyond_32_bits_fails_an_assertion() -> None:
    wide = Csr(torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0), 1 << 32)
    with pytest.raises(AssertionError):
        pack(wide)
