"""A sparse matrix in one buffer of bytes, so that it travels in one call and arrives ready to be multiplied.

The widest numbers come first, so each array starts where its type may start. The matrix that comes out is
a view of the buffer: nothing is converted or copied. Row pointers have 32 bits where these can count the
nonzeros. Verifier (tests/kernels/test_packed.py): the matrix that went in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype

COLUMN = torch.int32


class Form(NamedTuple):
    """What somebody must know of a packed matrix to read it."""

    rows: int
    cols: int
    nnz: int
    dtype: torch.dtype

    @property
    def pointer(self) -> torch.dtype:
        """The narrowest type that holds every row pointer."""
        return index_dtype(self.nnz)

    @property
    def bytes(self) -> int:
        return self.pointer.itemsize * (self.rows + 1) + (self.dtype.itemsize + COLUMN.itemsize) * self.nnz

    @property
    def words(self) -> int:
        """Numbers in the buffer: a pointer for each row and one more, a value and a column for each nonzero."""
        return self.rows + 1 + 2 * self.nnz


def form_of(A: Csr) -> Form:
    """The form of a matrix; what is wider than 2^31 does not travel."""
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
    parts = {
        "rowptr": (form.pointer, form.rows + 1),
        "col": (COLUMN, form.nnz),
        "val": (form.dtype, form.nnz),
    }
    found, start = {}, 0
    for name, (dtype, size) in sorted(parts.items(), key=lambda part: -part[1][0].itemsize):
        stop = start + dtype.itemsize * size
        found[name], start = buffer[start:stop].view(dtype), stop
    return Csr(**found, cols=form.cols)
