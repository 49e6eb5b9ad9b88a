"""Sparse matrices in CSR format, stored as plain tensors: construction, transposition and packing.

Entries are sorted by row, then by column. Duplicate (row, column) pairs are allowed and stay adjacent until `from_coo`
sums them. Transposition and summation use scipy on a CPU and a stable sort on a GPU.
Verifier (tests/kernels/test_csr.py): dense matrices.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.base.device import is_on_gpu, record_upload


class Csr(NamedTuple):
    """A sparse matrix: `rowptr` int64 (rows + 1), `col` int32 (int64 if it is wide), `val` (nonzeros), and the width.

    A packed matrix has 32-bit row pointers where these can count the nonzeros.
    """

    rowptr: Tensor
    col: Tensor
    val: Tensor
    cols: int

    @property
    def rows(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def nnz(self) -> int:
        return self.val.numel()

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols


def index_dtype(cols: int) -> torch.dtype:
    """Return the narrowest dtype for the column indices of a matrix with `cols` columns. It also holds the width."""
    return torch.int32 if cols <= torch.iinfo(torch.int32).max else torch.int64


META = torch.device("meta")


def make_meta_csr(rows: int, cols: int, nonzeros: int, dtype: torch.dtype | None = None) -> Csr:
    """Return a matrix of this shape on the meta device, which has no entries to read."""
    return Csr(
        torch.empty(rows + 1, dtype=torch.int64, device=META),
        torch.empty(nonzeros, dtype=index_dtype(cols), device=META),
        torch.empty(nonzeros, dtype=dtype, device=META),
        cols,
    )


def from_coo(
    row: Tensor, col: Tensor, val: Tensor, shape: tuple[int, int], *, sum_duplicates: bool = False
) -> Csr:
    """Build a matrix from unsorted entries. Duplicates keep their input order, or are summed in that order."""
    rows, cols = shape
    assert rows * cols < 1 << 63
    if is_on_gpu(val):
        return _from_coo_torch(row, col, val, shape, sum_duplicates=sum_duplicates)
    _check_range(row, rows)
    _check_range(col, cols)
    order = torch.argsort(row.long() * cols + col, stable=True)
    rowptr = torch.nn.functional.pad(torch.bincount(row, minlength=rows).cumsum(0), (1, 0))
    A = Csr(rowptr, take(col, order).to(index_dtype(cols)), take(val, order), cols)
    return _sum_duplicates(A) if sum_duplicates else A


def _from_coo_torch(
    row: Tensor, col: Tensor, val: Tensor, shape: tuple[int, int], *, sum_duplicates: bool
) -> Csr:
    """`from_coo` on any device. Indices are not range-checked, because the check would synchronize with the GPU.

    Only integer duplicates are summed: floating-point sums would depend on the GPU's order of additions.
    """
    rows, cols = shape
    keys, order = torch.sort(row.long() * cols + col, stable=True)
    val = take(val, order)
    if sum_duplicates:
        assert not val.is_floating_point(), val.dtype
        keys, places = torch.unique_consecutive(keys, return_inverse=True)
        val = val.new_zeros(len(keys)).index_add_(0, places, val)
    starts = torch.searchsorted(keys, torch.arange(rows + 1, device=keys.device) * cols)
    return Csr(starts, (keys % max(cols, 1)).to(index_dtype(cols)), val, cols)


def relabel_columns(A: Csr, col: Tensor, cols: int) -> Csr:
    """Return A with new column indices, sorted again within each row; duplicates keep their order."""
    assert A.rows * cols < 1 << 63
    order = torch.argsort(row_indices(A) * cols + col, stable=True)
    return Csr(A.rowptr, take(col, order).to(index_dtype(cols)), take(A.val, order), cols)


def transpose(A: Csr) -> Csr:
    """Return A^T. Duplicate entries keep their order."""
    if A.val.is_meta:
        rowptr, col = A.rowptr.new_empty(A.cols + 1), A.col.new_empty(A.nnz, dtype=index_dtype(A.rows))
        return Csr(rowptr, col, torch.empty_like(A.val), A.rows)
    if is_on_gpu(A.val):
        return transpose_torch(A)
    M = _make_scipy_csr(_view_as_integers(A.val), A.col, A.rowptr, A.shape).tocsc()
    val = torch.from_numpy(M.data).view(A.val.dtype)
    return Csr(_to_tensor(M.indptr, torch.int64), _to_tensor(M.indices, index_dtype(A.rows)), val, A.rows)


def transpose_torch(A: Csr) -> Csr:
    """`transpose` on any device."""
    col, order = torch.sort(A.col, stable=True)
    rowptr = torch.searchsorted(col, torch.arange(A.cols + 1, device=col.device, dtype=col.dtype))
    del col  # a GPU has little memory
    return Csr(rowptr, take(row_indices(A, index_dtype(A.rows)), order), take(A.val, order), A.rows)


def cast(A: Csr, dtype: torch.dtype) -> Csr:
    """Return the matrix with its values converted to `dtype`."""
    return A._replace(val=A.val.to(dtype))


def to_device(A: Csr, device: torch.device | str) -> Csr:
    """Return the matrix on `device`. Meta tensors are returned unchanged."""
    if A.val.is_meta:
        return A
    return Csr(A.rowptr.to(device), A.col.to(device), A.val.to(device), A.cols)


def upload_csr(A: Csr, device: torch.device) -> Csr:
    """Copy a matrix from the host to `device` for one step, without waiting for the copy."""
    return Csr(
        record_upload(A.rowptr, device), record_upload(A.col, device), record_upload(A.val, device), A.cols
    )


def row_indices(A: Csr, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the row index of every entry."""
    counts = A.rowptr.diff()
    rows = torch.arange(A.rows, device=counts.device, dtype=dtype)
    return torch.repeat_interleave(rows, counts, output_size=A.nnz)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return `x[index]`: rows of a matrix or elements of a vector. Three times as fast as indexing with brackets."""
    return x.index_select(0, index)


def to_numpy(A: Csr) -> tuple[Any, Any, Any]:
    """Return row pointers, columns and values as NumPy arrays that share memory; bf16 is viewed as int16."""
    return A.rowptr.numpy(), A.col.numpy(), _view_as_integers(A.val).numpy()


def to_scipy(A: Csr) -> Any:
    """Return a scipy `csr_array` that shares memory if possible. bf16 becomes float32."""
    val = A.val.float() if A.val.dtype == torch.bfloat16 else A.val
    return _make_scipy_csr(val, A.col, A.rowptr, A.shape)


def from_scipy(M: Any, dtype: torch.dtype | None = None) -> Csr:
    """Build a matrix from any scipy sparse matrix. Duplicates of a CSR matrix are kept; other formats sum them."""
    M = M.tocsr()
    if not M.has_sorted_indices:
        M = M.sorted_indices()
    val = _to_tensor(M.data, dtype)
    return Csr(
        _to_tensor(M.indptr, torch.int64), _to_tensor(M.indices, index_dtype(M.shape[1])), val, M.shape[1]
    )


# A packed matrix is one byte buffer: a single call sends it, and the receiver multiplies without a conversion.
#
# Arrays are ordered by decreasing element size, so that each one is aligned. An unpacked matrix is a view of the
# buffer. Row pointers have 32 bits where these can count the nonzeros.
# Verifier (tests/kernels/test_packed.py): the matrix before packing.

COLUMN = torch.int32


class PackedFormat(NamedTuple):
    """The shape, number of nonzeros and dtype of a packed matrix: what the receiver needs to unpack it."""

    rows: int
    cols: int
    nnz: int
    dtype: torch.dtype

    @property
    def pointer_dtype(self) -> torch.dtype:
        """The narrowest dtype that holds every row pointer."""
        return index_dtype(self.nnz)

    @property
    def nbytes(self) -> int:
        return (
            self.pointer_dtype.itemsize * (self.rows + 1) + (self.dtype.itemsize + COLUMN.itemsize) * self.nnz
        )

    @property
    def words(self) -> int:
        """The number of elements in the buffer: rows + 1 pointers, and a value and a column for each nonzero."""
        return self.rows + 1 + 2 * self.nnz


def get_packed_format(A: Csr) -> PackedFormat:
    """Return the packed format of a matrix. A matrix wider than 2^31 cannot be packed."""
    assert A.col.dtype == COLUMN, A.cols
    return PackedFormat(A.rows, A.cols, A.nnz, A.val.dtype)


def pack(A: Csr) -> Tensor:
    """Pack a matrix into a byte buffer."""
    form = get_packed_format(A)
    buffer = A.val.new_empty(form.nbytes, dtype=torch.uint8)
    packed = unpack(buffer, form)
    for place, part in ((packed.rowptr, A.rowptr), (packed.col, A.col), (packed.val, A.val)):
        place.copy_(part)
    return buffer


def unpack(buffer: Tensor, form: PackedFormat) -> Csr:
    """Return the matrix in a packed buffer, as views of the buffer."""
    parts = {
        "rowptr": (form.pointer_dtype, form.rows + 1),
        "col": (COLUMN, form.nnz),
        "val": (form.dtype, form.nnz),
    }
    names = sorted(parts, key=lambda name: -parts[name][0].itemsize)
    pieces = buffer.split([parts[name][0].itemsize * parts[name][1] for name in names])
    arrays = {name: piece.view(parts[name][0]) for name, piece in zip(names, pieces, strict=True)}
    return Csr(**arrays, cols=form.cols)


def _check_range(index: Tensor, size: int) -> None:
    if index.numel():
        low, high = index.aminmax()
        assert 0 <= int(low) <= int(high) < size, f"indices {int(low)} to {int(high)} outside 0 .. {size - 1}"


def _sum_duplicates(A: Csr) -> Csr:
    M = to_scipy(A).copy()
    M.has_sorted_indices = True
    M.sum_duplicates()
    return from_scipy(M, A.val.dtype)


def _make_scipy_csr(val: Tensor, col: Tensor, rowptr: Tensor, shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_array

    return csr_array((val.numpy(), col.numpy(), rowptr.numpy()), shape=shape)


def _view_as_integers(val: Tensor) -> Tensor:
    """View bf16 as int16, because numpy and scipy have no bf16."""
    return val.view(torch.int16) if val.dtype == torch.bfloat16 else val


def _to_tensor(array: Any, dtype: torch.dtype | None) -> Tensor:
    """Return the array as a tensor of `dtype`. Memory is shared if the array is writable and has that dtype."""
    array = array if array.flags.writeable else np.array(array)
    return torch.from_numpy(array).to(dtype)
