"""Sparse matrices with short rows, in a format for products with dense matrices on a CPU.

A product of a matrix with few entries in a row spends most of its time on mispredicted branches: the processor cannot
foresee where a row ends, or which rows are empty. Here, the rows of each window of consecutive rows are sorted by their
numbers of entries, so that neighbouring rows are equally long and empty rows come first. The entries of a row stay in
order, so that each row of a product is the same chain of additions and has the same bits.

A row is one 32-bit number: its number of entries and its position in the window. A packed matrix has as many bytes for
a row, so that messages have the same size in both formats.
Verifier (tests/kernels/test_sorted_rows.py): the matrix before sorting, and scipy.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr, PackedFormat, index_dtype, to_numpy, unpack
from harness.kernels.jit import compiled

POSITION_BITS = 9
"""The bits of a position. After a change, edit tiles.py too: numba's cache only watches the file of a function."""
WINDOW = 1 << POSITION_BITS
"""The number of rows in a window. With 16 columns of float32, these rows of a product fill a cache of 32 KiB."""
MOST_COLUMNS = (1 << 32 - POSITION_BITS) - 1
"""The largest number of columns of a matrix in this format: the largest number of entries that a row may have."""
SHORT_ROWS, SHORT_ROWS_IF_NARROW = 2, 8
"""The mean numbers of entries in a row up to which sorting pays, for products of any width, and for products of a few
columns, as where an axis splits the features (benchmarks/results/blocks.md). Sorting makes the reads and writes of wide
rows of the product less regular."""


class SortedRows(NamedTuple):
    """A sparse matrix whose rows are sorted by their numbers of entries within each window."""

    lengths: Tensor
    """For each row in sorted order, its number of entries times WINDOW plus its position in the window; int32."""
    col: Tensor
    val: Tensor
    """The entries of the rows in sorted order."""
    cols: int

    @property
    def rows(self) -> int:
        return self.lengths.numel()

    @property
    def nnz(self) -> int:
        return self.val.numel()

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols


def has_short_rows(rows: int, cols: int, nonzeros: int, *, narrow: bool) -> bool:
    """Return whether products on a CPU are faster if a matrix of this size is a `SortedRows`, and it can be one.

    `narrow` is True for products of a few columns.
    """
    fits = cols <= MOST_COLUMNS and index_dtype(nonzeros) == torch.int32
    return fits and nonzeros <= (SHORT_ROWS_IF_NARROW if narrow else SHORT_ROWS) * rows


def sort_rows(A: Csr) -> SortedRows:
    """Convert a matrix on the host or of meta tensors. No row may have more than MOST_COLUMNS entries."""
    lengths, col, val = (
        A.rowptr.new_empty(A.rows, dtype=torch.int32),
        A.col.new_empty(A.nnz),
        A.val.new_empty(A.nnz),
    )
    S = SortedRows(lengths, col, val, A.cols)
    if not A.val.is_meta:
        longest = int(A.rowptr.diff().max()) if A.rows else 0
        assert longest <= MOST_COLUMNS, f"a row has {longest:,} entries"
        _sort_windows(to_numpy(A), to_numpy(Csr(*S)))
    return S


def pack_sorted_rows(A: Csr, form: PackedFormat) -> Tensor:
    """Sort the rows of a matrix and pack it. Lengths take the place of row pointers, of which there is one more."""
    buffer, sorted_A = A.val.new_empty(form.nbytes, dtype=torch.uint8), sort_rows(A)
    pointers, col, val, _ = unpack(buffer, form)
    pointers[-1:].zero_()
    for place, part in ((pointers[:-1], sorted_A.lengths), (col, sorted_A.col), (val, sorted_A.val)):
        place.copy_(part)
    return buffer


def unpack_block(buffer: Tensor, form: PackedFormat) -> Csr | SortedRows:
    """Return the matrix in a packed buffer, in either format, as views of the buffer."""
    A = unpack(buffer, form)
    return SortedRows(A.rowptr[:-1], A.col, A.val, A.cols) if form.has_sorted_rows else A


@compiled()
def _sort_windows(A: tuple[Any, Any, Any], S: tuple[Any, Any, Any]) -> None:
    """Sort the rows of each window by counting, which keeps the order of equally long rows."""
    rowptr, col, val = A
    lengths, sorted_col, sorted_val = S
    rows, e = rowptr.size - 1, 0
    for top in range(0, rows, WINDOW):
        order = np.argsort(np.diff(rowptr[top : min(top + WINDOW, rows) + 1]), kind="mergesort")
        for k in range(order.size):
            first, last = rowptr[top + order[k]], rowptr[top + order[k] + 1]
            lengths[top + k] = (last - first) << POSITION_BITS | order[k]
            for place in range(first, last):
                sorted_col[e] = col[place]
                sorted_val[e] = val[place]
                e += 1


@compiled()
def balance_sorted_rows(lengths: Any, shares: int) -> Any:
    """Return shares of about equal numbers of rows plus entries, each as the first row, the end and the first entry.

    Rows are counted in sorted order.
    """
    bounds = np.empty((shares, 3), np.int64)
    bounds[:, 0], bounds[:, 1], bounds[:, 2] = lengths.size, lengths.size, 0
    total = lengths.size
    for k in range(lengths.size):
        total += np.int64(np.uint32(lengths[k]) >> POSITION_BITS)
    share, entries = 0, np.int64(0)
    for k in range(lengths.size):
        while share < shares and (k + entries) * shares >= total * share:
            bounds[share, 0], bounds[share, 2] = k, entries
            share += 1
        entries += np.int64(np.uint32(lengths[k]) >> POSITION_BITS)
    bounds[:-1, 1] = bounds[1:, 0]
    return bounds
