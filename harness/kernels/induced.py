"""The submatrix at sampled rows and columns, and its transpose, for one sample after the other.

ScaleGNN's Algorithm 2, phases 2 to 4. A map of all columns gives a column's position in the sample. The map is never
cleared: an entry counts only if it has the tag of the current sample. Entries off the diagonal are divided by the
chance that their column was drawn once their row was, so a product with the matrix has the right mean. Compiled loops
on a CPU, tensor operations on a GPU; shapes alone have the mean number of entries.
Verifier (tests/kernels/test_induced.py): scipy's A[S][:, S].
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype, row_of, take
from harness.kernels.jit import compiled, prefetch
from harness.kernels.parts import select_rows

PLACE_BITS = 32


def places(cols: int, device: torch.device) -> Tensor:
    """A map of `cols` columns, none of which is in a sample yet."""
    return torch.zeros(cols, dtype=torch.int64, device=device)


def mark(where: Tensor, cols: Tensor, tag: int) -> None:
    """Writes a sample of columns into the map, under a new tag of 1 or more."""
    assert 0 < tag < 1 << 31, tag
    if where.is_meta:
        return
    where[cols] = (tag << PLACE_BITS) + torch.arange(len(cols), device=cols.device)


def induced_pair(
    A: Csr, rows: Tensor, cols: Tensor, where: Tensor, tag: int, diagonal: int, chance: float
) -> tuple[Csr, Csr]:
    """A[rows, cols] and its transpose; the map `where` has the columns under `tag`.

    Rows and columns ascend. The diagonal of the whole is at column i + `diagonal` of row i.
    """
    if A.val.is_meta:
        return _shapes(A, rows, cols, diagonal)
    if A.val.is_cuda:
        return by_tensors(A, rows, cols, where, tag, diagonal, chance)

    most = int((take(A.rowptr, rows + 1) - take(A.rowptr, rows)).sum())
    S = _zeros(A, len(rows), len(cols), most)
    sample = tag, diagonal, 1 / chance
    nnz = keep_entries(_arrays(A), rows.numpy(), where.numpy(), sample, _arrays(S))
    S = S._replace(col=S.col[:nnz].clone(), val=S.val[:nnz].clone())
    S_T = _zeros(A, len(cols), len(rows), nnz)
    turn(_arrays(S), _arrays(S_T))
    return S, S_T


def _zeros(A: Csr, rows: int, cols: int, nnz: int) -> Csr:
    rowptr = torch.zeros(rows + 1, dtype=torch.int64)
    return Csr(rowptr, torch.empty(nnz, dtype=index_dtype(cols)), A.val.new_empty(nnz), cols)


def _arrays(A: Csr) -> tuple[Any, Any, Any]:
    return A.rowptr.numpy(), A.col.numpy(), A.val.numpy()


def by_tensors(
    A: Csr, rows: Tensor, cols: Tensor, where: Tensor, tag: int, diagonal: int, chance: float
) -> tuple[Csr, Csr]:
    """`induced_pair` on any device."""
    A = select_rows(A, rows)
    place = take(where, A.col)
    kept = (place >> PLACE_BITS == tag).nonzero()[:, 0]
    row, column = take(row_of(A), kept), take(A.col, kept)
    val = take(A.val, kept)
    col = (take(place, kept) & ((1 << PLACE_BITS) - 1)).to(index_dtype(len(cols)))
    val = torch.where(take(rows, row) + diagonal == column, val, val * (1 / chance))
    order = torch.sort(col, stable=True).indices
    S = Csr(_pointers(row, len(rows)), col, val, len(cols))
    S_T = Csr(
        _pointers(col, len(cols)), take(row, order).to(index_dtype(len(rows))), take(val, order), len(rows)
    )
    return S, S_T


def _pointers(of: Tensor, parts: int) -> Tensor:
    """The start of each part, and the end of the last."""
    return torch.nn.functional.pad(torch.bincount(of, minlength=parts).cumsum(0), (1, 0))


def _shapes(A: Csr, rows: Tensor, cols: Tensor, diagonal: int) -> tuple[Csr, Csr]:
    """The expected shapes, with a loop at every vertex and all other nonzeros spread evenly."""
    loops = max(min(A.rows, A.cols - diagonal) - max(0, -diagonal), 0)
    drawn = int(torch.isin(rows + diagonal, cols).sum())
    off, places = max(A.nnz - loops, 0), A.rows * A.cols - loops
    nnz = drawn + (round(off * (len(rows) * len(cols) - drawn) / places) if places else 0)
    return _empty(A, len(rows), len(cols), nnz), _empty(A, len(cols), len(rows), nnz)


def _empty(A: Csr, rows: int, cols: int, nnz: int) -> Csr:
    col = A.col.new_empty(nnz, dtype=index_dtype(cols))
    return Csr(A.rowptr.new_empty(rows + 1), col, A.val.new_empty(nnz), cols)


# The compiled loops: the kept entries of every row, then the transpose. Sampled rows lie far apart in memory, so the
# next rows are prefetched.

PLACE = (1 << 32) - 1
LINE = 64  # bytes
AHEAD = 8  # rows from the prefetch of a row to its use


@compiled(nogil=True)
def keep_entries(
    A: tuple[Any, Any, Any],
    rows: Any,
    where: Any,
    sample: tuple[int, int, float],
    S: tuple[Any, Any, Any],
) -> int:
    """Writes kept entries in order of rows and columns to arrays long enough for all entries; returns their number."""
    rowptr, col, val = A
    tag, diagonal, scale = sample
    out_rowptr, out_col, out_val = S
    at = 0
    for i in range(rows.size):
        _prefetch_row(A, rows, i)
        row = rows[i]
        for e in range(rowptr[row], rowptr[row + 1]):
            place = where[np.uint64(col[e])]
            if place >> 32 == tag:
                out_col[at] = place & PLACE
                out_val[at] = val[e] if row + diagonal == col[e] else val[e] * scale
                at += 1
        out_rowptr[i + 1] = at
    return at


@compiled(nogil=True)
def turn(S: tuple[Any, Any, Any], S_T: tuple[Any, Any, Any]) -> None:
    """Writes the transpose of S to S_T, whose row pointers are zeros at first."""
    rowptr, col, val = S
    colptr, out_row, out_val = S_T
    free = np.zeros(colptr.size, dtype=np.int64)
    for e in range(col.size):
        free[np.uint64(col[e]) + np.uint64(1)] += 1
    for j in range(1, colptr.size):
        free[j] += free[j - 1]
        colptr[j] = free[j]
    for i in range(rowptr.size - 1):
        for e in range(rowptr[i], rowptr[i + 1]):
            column = np.uint64(col[e])
            out_row[free[column]], out_val[free[column]] = i, val[e]
            free[column] += 1


@compiled(forceinline=True)
def _prefetch_row(A: tuple[Any, Any, Any], rows: Any, i: int) -> None:
    rowptr, col, val = A
    if i + 2 * AHEAD < rows.size:
        prefetch(rowptr.ctypes.data + rowptr.itemsize * rows[i + 2 * AHEAD])
    if i + AHEAD < rows.size:
        first, last = rowptr[rows[i + AHEAD]], rowptr[rows[i + AHEAD] + 1]
        for byte in range(col.itemsize * first, col.itemsize * last, LINE):
            prefetch(col.ctypes.data + byte)
        for byte in range(val.itemsize * first, val.itemsize * last, LINE):
            prefetch(val.ctypes.data + byte)
