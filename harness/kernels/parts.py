"""Slicing and assembly of sparse matrices: blocks, row and column selection, diagonals, vstack and hstack.

Meta tensors carry no indices, so their results have expected shapes: nonzeros are assumed to be distributed uniformly.
On a CPU, compiled loops select rows and ascending columns.
Verifiers (tests/kernels/test_parts.py, test_assemble.py, test_induced.py): dense matrices and scipy's indexing.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import expm1, log1p
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.base.device import is_on_gpu
from harness.kernels.csr import Csr, from_coo, index_dtype, make_meta_csr, row_indices, take, to_numpy
from harness.kernels.jit import compiled, popcount, prefetch


def extract_block(A: Csr, rows: range, cols: range) -> Csr:
    """Return A[rows, cols] with local indices. If `cols` covers all columns, the result is a view of A."""
    assert rows.step == cols.step == 1
    rows = range(min(rows.start, A.rows), min(max(rows.stop, rows.start), A.rows))
    if A.rowptr.is_meta:
        nnz = A.nnz * len(rows) * len(cols) // max(A.rows * A.cols, 1)
        return make_meta_csr(len(rows), len(cols), nnz, A.val.dtype)
    if len(cols) < A.cols and not is_on_gpu(A.val):
        return assemble([Placement(A, rows, cols, 0, 0)], (len(rows), len(cols)))
    rowptr = A.rowptr[rows.start : rows.stop + 1]
    ends = rowptr[:: max(len(rows), 1)].tolist()  # the host waits for a GPU once
    first, last = ends[0], ends[-1]
    col, val = A.col[first:last], A.val[first:last]
    rowptr = rowptr - first
    if len(cols) == A.cols:
        return Csr(rowptr, col, val, A.cols)
    inside = (col >= cols.start) & (col < cols.stop)
    kept = inside.nonzero()[:, 0]
    before = pad(inside.cumsum(0), (1, 0))
    col = (take(col, kept) - cols.start).to(index_dtype(len(cols)))
    return Csr(take(before, rowptr), col, take(val, kept), len(cols))


def select_rows(A: Csr, rows: Tensor) -> Csr:
    """Return A[rows]. Rows may be repeated and in any order."""
    if is_on_gpu(A.val):
        return select_rows_torch(A, rows)
    rowptr = torch.empty(len(rows) + 1, dtype=torch.int64)
    nnz = fill_rowptr(A.rowptr.numpy(), rows.numpy(), rowptr.numpy())
    B = Csr(rowptr, A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)
    copy_rows(to_numpy(A), rows.numpy(), to_numpy(B))
    return B


def select_rows_torch(A: Csr, rows: Tensor) -> Csr:
    """`select_rows` on any device."""
    first, last = take(A.rowptr, rows), take(A.rowptr, rows + 1)
    counts = last - first
    rowptr = pad(counts.cumsum(0), (1, 0))
    shift = torch.repeat_interleave(first - rowptr[:-1], counts)
    entry = torch.arange(len(shift), device=shift.device) + shift
    return Csr(rowptr, take(A.col, entry), take(A.val, entry), A.cols)


def vstack(pieces: Sequence[Csr]) -> Csr:
    """Stack matrices of equal width vertically."""
    starts = accumulate((piece.nnz for piece in pieces), initial=0)
    ends = [piece.rowptr[1:] + start for piece, start in zip(pieces, starts, strict=False)]
    col, val = (torch.cat(parts) for parts in zip(*(piece[1:3] for piece in pieces), strict=True))
    return Csr(pad(torch.cat(ends), (1, 0)), col, val, pieces[0].cols)


def select_columns(A: Csr, cols: Tensor) -> Csr:
    """Return A[:, cols]. Columns must be unique; ascending columns avoid a sort."""
    if is_on_gpu(A.val) or not bool((cols.diff() > 0).all()):
        return select_columns_torch(A, cols)
    return select_submatrix(A, torch.arange(A.rows), cols)


def select_submatrix(
    A: Csr, rows: Tensor, cols: Tensor, off_diagonal: tuple[int, float] | None = None
) -> Csr:
    """Return A[rows][:, cols] on the CPU, for ascending columns.

    `off_diagonal` is (d, x): entries (i, j) of A with j != i + d are multiplied by x.
    """
    assert off_diagonal is None or A.val.dtype != torch.bfloat16, "bf16 is moved as integers"
    rowptr = torch.empty(len(rows) + 1, dtype=torch.int64)
    most = fill_rowptr(A.rowptr.numpy(), rows.numpy(), rowptr.numpy())
    kept = Csr(rowptr, A.col.new_empty(most + 1), A.val.new_empty(most + 1), len(cols))
    nnz = copy_selected_entries(
        to_numpy(A), rows.numpy(), build_bitmap(cols.numpy(), A.cols), off_diagonal, to_numpy(kept)
    )
    col = kept.col[:nnz].to(index_dtype(len(cols)), copy=True)
    return kept._replace(col=col, val=kept.val[:nnz].clone())


def select_columns_torch(A: Csr, cols: Tensor, *, ascending: bool = False) -> Csr:
    """`select_columns` on any device, for columns in any order; `ascending` skips the check of their order."""
    width = len(cols)
    place = torch.full((A.cols,), -1, dtype=index_dtype(width), device=cols.device)
    place[cols] = torch.arange(width, dtype=place.dtype, device=cols.device)
    col = take(place, A.col)
    inside = col >= 0
    kept = inside.nonzero()[:, 0]
    col, val = take(col, kept), take(A.val, kept)
    if ascending or bool((cols.diff() > 0).all()):
        return Csr(take(pad(inside.cumsum(0), (1, 0)), A.rowptr), col, val, width)
    is_unique = take(place, cols) == torch.arange(width, device=cols.device)
    assert bool(is_unique.all()), "a column is selected twice"
    return from_coo(take(row_indices(A), kept), col, val, (A.rows, width))


def sample_rows(A: Csr, rows: Tensor, scale: float) -> Csr:
    """Return A[rows] scaled by `scale`. For meta tensors, the rows are assumed to be sampled uniformly."""
    if not A.val.is_meta:
        sampled = select_rows(A, rows)
        return sampled._replace(val=sampled.val * scale)
    nnz = round(A.nnz * len(rows) / max(A.rows, 1))
    return Csr(A.rowptr.new_empty(len(rows) + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)


def nonempty_columns(A: Csr, exclude: Tensor | None = None) -> Tensor:
    """Return the columns that contain a nonzero, ascending, int64, without `exclude` (ignored for meta tensors)."""
    if A.col.is_meta:
        return A.col.new_empty(expected_distinct(A.cols, A.nnz), dtype=torch.int64)
    nonempty = torch.zeros(A.cols, dtype=torch.bool, device=A.col.device)
    nonempty.index_fill_(0, A.col.long(), True)
    if exclude is not None:
        nonempty.index_fill_(0, exclude, False)
    return nonempty.nonzero()[:, 0]


def nonempty_rows(A: Csr) -> Tensor:
    """Return the rows that contain a nonzero, ascending, int64."""
    if A.rowptr.is_meta:
        return A.rowptr.new_empty(expected_distinct(A.rows, A.nnz))
    return A.rowptr.diff().nonzero()[:, 0]


def drop_empty_columns(A: Csr) -> Csr:
    """Return A without its empty columns; the others are renumbered from 0."""
    filled = nonempty_columns(A)
    dtype = index_dtype(len(filled))
    if A.col.is_meta:
        return A._replace(col=A.col.new_empty(A.nnz, dtype=dtype), cols=len(filled))
    place = torch.empty(A.cols, dtype=dtype)
    place[filled] = torch.arange(len(filled), dtype=dtype)
    return A._replace(col=place[A.col.long()], cols=len(filled))


def nonempty_columns_by_block(A: Csr, heights: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Return the nonempty columns of each block of rows, concatenated, and the number of columns of each block.

    The blocks are stacked vertically in A, and `heights` are their numbers of rows.
    """
    entries = A.rowptr[torch.tensor([0, *heights]).cumsum(0)].diff()
    block_of_entry = torch.repeat_interleave(torch.arange(len(heights)), entries, output_size=A.nnz)
    nonempty = torch.zeros(len(heights), A.cols, dtype=torch.bool)
    nonempty.view(-1).index_fill_(0, block_of_entry * A.cols + A.col, True)
    return nonempty.nonzero()[:, 1], nonempty.sum(1).tolist()


def compact_columns(A: Csr, parts: Sequence[range]) -> tuple[Csr, list[int]]:
    """Return the nonempty columns of A in ascending ranges, renumbered from 0, and the number in each range."""
    nonempty, inside = (torch.zeros(A.cols, dtype=torch.bool) for _ in range(2))
    for part in parts:
        inside[part.start : part.stop] = True
    nonempty.index_fill_(0, A.col.long(), True)
    before = pad((nonempty & inside).cumsum(0), (1, 0))
    width = int(before[-1])
    edges = torch.tensor([[part.start, part.stop] for part in parts], dtype=torch.int64).view(-1, 2)
    counts: list[int] = (before[edges[:, 1]] - before[edges[:, 0]]).tolist()
    kept = take(inside, A.col)
    col = take(before, A.col[kept]).to(index_dtype(width))
    return Csr(take(pad(kept.cumsum(0), (1, 0)), A.rowptr), col, A.val[kept], width), counts


def expected_distinct(places: int, draws: int) -> int:
    """Return the expected number of distinct places hit by `draws` uniform random draws."""
    if places <= 1:
        return min(places, draws)
    return min(round(-places * expm1(draws * log1p(-1 / places))), draws)


def split_diagonal(A: Csr, offset: int = 0) -> tuple[Csr, Tensor]:
    """Split A into its off-diagonal part and the diagonal (i, i + offset), whose duplicates are summed.

    The diagonal has a value for each row that it passes through. Meta tensors lose one entry for each such row.
    """
    rows = _diagonal_rows(A, offset)
    values = A.val.new_zeros(len(rows))
    if A.val.is_meta:
        nnz = max(A.nnz - len(rows), 0)
        return A._replace(col=A.col.new_empty(nnz), val=A.val.new_empty(nnz)), values
    row = row_indices(A)
    on = row + offset == A.col
    values.index_add_(0, row[on] - rows.start, A.val[on])
    before = torch.nn.functional.pad(on.cumsum(0), (1, 0))
    return Csr(A.rowptr - before[A.rowptr], A.col[~on], A.val[~on], A.cols), values


def _diagonal_rows(A: Csr, offset: int) -> range:
    """Return the rows that the diagonal (i, i + offset) passes through."""
    first = min(max(0, -offset), A.rows)
    return range(first, max(first, min(A.rows, A.cols - offset)))


class Placement(NamedTuple):
    """A rectangle of a source matrix, and the position of its top left corner in the result."""

    source: Csr
    rows: range
    cols: range
    top: int
    left: int


class EntryScales(NamedTuple):
    """Row and column scales whose products replace the values of the source, in `dtype`."""

    rows: Tensor
    cols: Tensor
    dtype: torch.dtype


def assemble(parts: Sequence[Placement], shape: tuple[int, int], scales: EntryScales | None = None) -> Csr:
    """Assemble a matrix of this shape. Parts that share rows are given from left to right; the rest is empty."""
    rows, cols = shape
    lengths = torch.zeros(rows, dtype=torch.int64)
    for part in parts:
        rowptr, col, _ = to_numpy(part.source)
        count_entries(rowptr, col, _window(part), lengths[part.top :].numpy())
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    entries = int(starts[-1])
    dtype = scales.dtype if scales else parts[0].source.val.dtype if parts else torch.float32
    A = Csr(starts, torch.empty(entries, dtype=index_dtype(cols)), torch.empty(entries, dtype=dtype), cols)
    free = starts[:-1].clone()
    for part in parts:
        out_col, out_val = to_numpy(A)[1:]
        places = part.left, free[part.top :].numpy()
        copy_window(to_numpy(part.source), _window(part), *places, out_col, out_val, scales is None)
    if scales:
        scale_entries(starts.numpy(), A.col.numpy(), scales.rows.numpy(), scales.cols.numpy(), A.val.numpy())
    return A


def hstack(pieces: Sequence[Csr]) -> Csr:
    """Stack matrices of equal height horizontally."""
    if pieces[0].val.is_meta:
        return _hstack_meta(pieces)
    lefts = accumulate((piece.cols for piece in pieces), initial=0)
    parts = [
        Placement(piece, range(piece.rows), range(piece.cols), 0, left)
        for piece, left in zip(pieces, lefts, strict=False)
    ]
    return assemble(parts, (pieces[0].rows, sum(piece.cols for piece in pieces)))


def _window(part: Placement) -> tuple[int, int, int, int]:
    return part.rows.start, part.rows.stop, part.cols.start, part.cols.start + len(part.cols)


def _hstack_meta(pieces: Sequence[Csr]) -> Csr:
    rowptr, col, val, _ = pieces[0]
    nnz, width = sum(piece.nnz for piece in pieces), sum(piece.cols for piece in pieces)
    return Csr(rowptr, col.new_empty(nnz, dtype=index_dtype(width)), val.new_empty(nnz), width)


# Compiled loops for selection. Selected rows may be far apart in memory, so the next rows are prefetched. Indices are
# unsigned, because numba checks whether a signed index counts from the end.

U = np.uint64
ONE, SIX, LOW = U(1), U(6), U(63)
LINE = U(64)
"""The size of a cache line in bytes."""
AHEAD = U(8)
"""The number of rows between the prefetch of a row and its use."""


@compiled(nogil=True)
def fill_rowptr(rowptr: Any, rows: Any, out_rowptr: Any) -> int:
    """Write the row pointers of the selected rows and return the number of their entries."""
    at = out_rowptr[U(0)] = 0
    for i in range(U(rows.size)):
        row = U(rows[i])
        if row >= U(rowptr.size - 1):
            raise IndexError("row index out of range")
        at += rowptr[row + ONE] - rowptr[row]
        out_rowptr[i + ONE] = at
    return at


@compiled(nogil=True)
def copy_rows(A: tuple[Any, Any, Any], rows: Any, B: tuple[Any, Any, Any]) -> None:
    """Copy the entries of the selected rows."""
    rowptr, col, val = A
    _, out_col, out_val = B
    places, at = get_addresses(rowptr, col, val), U(0)
    for i in range(U(rows.size)):
        _prefetch_row(rowptr, rows, i, places)
        row = U(rows[i])
        first, entries = U(rowptr[row]), U(rowptr[row + ONE] - rowptr[row])
        for k in range(entries):
            out_col[at + k] = col[first + k]
        for k in range(entries):
            out_val[at + k] = val[first + k]
        at += entries


@compiled(nogil=True)
def build_bitmap(cols: Any, width: int) -> tuple[Any, Any]:
    """Return a bitmap of the columns with bits set for `cols`, and the number of set bits before each 64-bit word."""
    words = U(width) >> SIX
    bits, before = np.zeros(words + ONE, dtype=np.uint64), np.empty(words + ONE, dtype=np.int64)
    for k in range(U(cols.size)):
        j = U(cols[k])
        if j >= U(width):
            raise IndexError("column index out of range")
        bits[j >> SIX] |= ONE << (j & LOW)
    total = U(0)
    for w in range(words + ONE):
        before[w] = total
        total += popcount(bits[w])
    return bits, before


@compiled(nogil=True)
def copy_selected_entries(
    A: tuple[Any, Any, Any], rows: Any, sample: tuple[Any, Any], off_diagonal: Any, S: tuple[Any, Any, Any]
) -> int:
    """Write the entries of selected rows and columns and return their number. S has room for all entries plus one.

    The loop is branch-free: an entry is written before it is known whether to keep it, which avoids mispredictions.
    """
    rowptr, col, val = A
    bits, before = sample
    out_rowptr, out_col, out_val = S
    places = get_addresses(rowptr, col, val)
    at = out_rowptr[U(0)] = U(0)
    for i in range(U(rows.size)):
        _prefetch_row(rowptr, rows, i, places)
        row, begin = U(rows[i]), at
        for e in range(U(rowptr[row]), U(rowptr[row + ONE])):
            j = U(col[e])
            out_col[at], out_val[at] = col[e], val[e]
            at += (bits[j >> SIX] >> (j & LOW)) & ONE
        for e in range(begin, at):
            j = U(out_col[e])
            if off_diagonal is not None:
                shift, scale = off_diagonal
                if rows[i] + shift != out_col[e]:
                    out_val[e] *= scale
            out_col[e] = U(before[j >> SIX]) + popcount(bits[j >> SIX] & ((ONE << (j & LOW)) - ONE))
        out_rowptr[i + ONE] = at
    return int(at)


@compiled(forceinline=True)
def get_addresses(rowptr: Any, col: Any, val: Any) -> Any:
    """Return the address and the item size of each array. Loops call this once, because numba updates a reference count
    whenever it takes an array's address, which costs more than copying a row."""
    pointers, cols, vals = U(rowptr.ctypes.data), U(col.ctypes.data), U(val.ctypes.data)
    return pointers, U(rowptr.itemsize), cols, U(col.itemsize), vals, U(val.itemsize)


@compiled(forceinline=True)
def _prefetch_row(rowptr: Any, rows: Any, i: Any, places: Any) -> None:
    pointers, pointer_size, cols, col_size, vals, val_size = places
    if i + AHEAD + AHEAD < U(rows.size):
        prefetch(pointers + pointer_size * U(rows[i + AHEAD + AHEAD]))
    if i + AHEAD < U(rows.size):
        row = U(rows[i + AHEAD])
        first, last = U(rowptr[row]), U(rowptr[row + ONE])
        for byte in range(col_size * first, col_size * last, LINE):
            prefetch(cols + byte)
        for byte in range(val_size * first, val_size * last, LINE):
            prefetch(vals + byte)


# Compiled loops for assembly: row lengths first, then entries, then values.


@compiled()
def count_entries(rowptr: Any, col: Any, window: tuple[int, int, int, int], lengths: Any) -> None:
    """Add to `lengths[i]` the number of entries of row `first + i` in the window of rows and columns."""
    first, last, left, right = window
    start, begin, width = U(first), U(left), U(right - left)
    for i in range(start, U(last)):
        inside = U(0)
        for e in range(U(rowptr[i]), U(rowptr[i + ONE])):
            inside += U(U(col[e]) - begin < width)
        lengths[i - start] += inside


@compiled()
def copy_window(
    A: tuple[Any, Any, Any],
    window: tuple[int, int, int, int],
    shift: int,
    free: Any,
    out_col: Any,
    out_val: Any,
    with_values: bool,
) -> None:
    """Copy the entries of the window, each row from `free[i]` on; the window's left column becomes column `shift`."""
    rowptr, col, val = A
    first, last, left, right = window
    start, begin, width = U(first), U(left), U(right - left)
    for i in range(start, U(last)):
        at = U(free[i - start])
        for e in range(U(rowptr[i]), U(rowptr[i + ONE])):
            place = U(col[e]) - begin
            if place < width:
                out_col[at] = place + U(shift)
                if with_values:
                    out_val[at] = val[e]
                at += ONE
        free[i - start] = at


@compiled()
def scale_entries(rowptr: Any, col: Any, row_scale: Any, col_scale: Any, val: Any) -> None:
    """Set every value to the product of its row's and its column's scale."""
    for i in range(U(row_scale.size)):
        for e in range(U(rowptr[i]), U(rowptr[i + ONE])):
            val[e] = row_scale[i] * col_scale[U(col[e])]


def build_scatter_matrix(index_M: Tensor, rows: int, dtype: torch.dtype) -> Csr:
    """Build the matrix with a one at (index[m], m): multiplying by it is a deterministic `index_add_`.

    The product sums the rows of each target in order. `index_add_` is ten times slower on a CPU and has no fixed order
    on a GPU. Verifier (tests/kernels/test_gather.py): dense torch's indexing and its gradient.
    """
    sorted_M, order_M = torch.sort(index_M, stable=True)
    rowptr = torch.searchsorted(sorted_M, torch.arange(rows + 1, device=index_M.device))
    ones_M = torch.ones(index_M.shape, dtype=dtype, device=index_M.device)
    return Csr(rowptr, order_M.to(index_dtype(len(index_M))), ones_M, len(index_M))
