"""A sparse matrix in one buffer of bytes, so that it travels in one call and arrives ready to be multiplied.

The widest numbers come first, so each array starts where its type may start. The matrix that comes out is
a view of the buffer: nothing is converted or copied. Verifier (tests/kernels/test_packed.py): the matrix that went in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels.csr import Csr

POINTER, COLUMN = torch.int64, torch.int32


class Form(NamedTuple):
    """What somebody must know of a packed matrix to read it."""

    rows: int
    cols: int
    nnz: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return POINTER.itemsize * (self.rows + 1) + (self.dtype.itemsize + COLUMN.itemsize) * self.nnz

    @property
    def words(self) -> int:
        """Numbers in the buffer: a pointer for each row and one more, a value and a column for each nonzero."""
        return self.rows + 1 + 2 * self.nnz


def form_of(A: Csr) -> Form:
    """The form of a matrix; what is wider than 2^31 does not travel."""
    assert A.rowptr.dtype == POINTER, A.rowptr.dtype
    assert A.col.dtype == COLUMN, A.cols
    return Form(A.rows, A.cols, A.nnz, A.val.dtype)


def pack(A: Csr) -> Tensor:
    """The bytes of a matrix."""
    form = form_of(A)
    buffer = A.val.new_empty(form.bytes, dtype=torch.uint8)
    packed = unpack(buffer, form)
    for place, part in ((packed.rowptr, A.rowptr), (packed.col, A.col), (packed.val, A.val)):
        place.copy_(part)
    return buffer


def unpack(buffer: Tensor, form: Form) -> Csr:
    """The matrix in these bytes."""
    sizes = {POINTER: form.rows + 1, form.dtype: form.nnz, COLUMN: form.nnz}
    found, start = {}, 0
    for dtype in sorted(sizes, key=lambda dtype: -dtype.itemsize):
        stop = start + dtype.itemsize * sizes[dtype]
        found[dtype], start = buffer[start:stop].view(dtype), stop
    return Csr(found[POINTER], found[COLUMN], found[form.dtype], form.cols)
