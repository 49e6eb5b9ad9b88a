"""Sparse matrices taken apart and put together: selected rows and columns, diagonals, matrices side by side.

Shapes alone have no columns: the number of filled columns is that of nonzeros thrown at random, and rows drawn at
random have their share of all nonzeros.
Verifiers (tests/kernels/test_parts.py, test_assemble.py): dense matrices and scipy's indexing.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import expm1, log1p
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr, from_coo, index_dtype, row_of, take
from harness.kernels.jit import compiled


def select_rows(A: Csr, rows: Tensor) -> Csr:
    """A[rows] = Q A, where Q has a single 1 in each row. Rows may repeat, in any order."""
    first, last = take(A.rowptr, rows), take(A.rowptr, rows + 1)
    counts = last - first
    rowptr = pad(counts.cumsum(0), (1, 0))
    shift = torch.repeat_interleave(first - rowptr[:-1], counts)
    entry = torch.arange(len(shift), device=shift.device) + shift
    return Csr(rowptr, take(A.col, entry), take(A.val, entry), A.cols)


def below(pieces: Sequence[Csr]) -> Csr:
    """One matrix of several with the same columns, from top to bottom."""
    starts = torch.tensor([0] + [piece.nnz for piece in pieces]).cumsum(0)
    ends = [piece.rowptr[1:] + start for piece, start in zip(pieces, starts, strict=False)]
    col, val = (torch.cat(parts) for parts in zip(*(piece[1:3] for piece in pieces), strict=True))
    return Csr(pad(torch.cat(ends), (1, 0)), col, val, pieces[0].cols)


def select_columns(A: Csr, cols: Tensor) -> Csr:
    """A[:, cols]. Columns may not repeat; ascending columns save a sort."""
    width = len(cols)
    place = torch.full((A.cols,), -1, dtype=index_dtype(width), device=cols.device)
    place[cols] = torch.arange(width, dtype=place.dtype, device=cols.device)
    col = take(place, A.col)
    inside = col >= 0
    kept = inside.nonzero()[:, 0]
    col, val = take(col, kept), take(A.val, kept)
    if bool((cols.diff() > 0).all()):
        return Csr(take(pad(inside.cumsum(0), (1, 0)), A.rowptr), col, val, width)
    assert bool((take(place, cols) == torch.arange(width, device=cols.device)).all()), (
        "a column is there twice"
    )
    return from_coo(take(row_of(A), kept), col, val, (A.rows, width))


def drawn_rows(A: Csr, rows: Tensor, scale: float) -> Csr:
    """A[rows] times a number. Rows drawn at random have an expected shape, for shapes alone."""
    if not A.val.is_meta:
        drawn = select_rows(A, rows)
        return drawn._replace(val=drawn.val * scale)
    nnz = round(A.nnz * len(rows) / max(A.rows, 1))
    return Csr(A.rowptr.new_empty(len(rows) + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)


def filled_columns(A: Csr) -> Tensor:
    """The columns that hold a nonzero, ascending, int64."""
    if A.col.is_meta:
        return A.col.new_empty(expected(A.cols, A.nnz), dtype=torch.int64)
    holds = torch.zeros(A.cols, dtype=torch.bool)
    holds[A.col.long()] = True
    return holds.nonzero()[:, 0]


def filled_rows(A: Csr) -> Tensor:
    """The rows that hold a nonzero, ascending, int64."""
    if A.rowptr.is_meta:
        return A.rowptr.new_empty(expected(A.rows, A.nnz))
    return A.rowptr.diff().nonzero()[:, 0]


def without_empty_columns(A: Csr) -> Csr:
    """The filled columns of A, numbered from 0 on."""
    filled = filled_columns(A)
    dtype = index_dtype(len(filled))
    if A.col.is_meta:
        return A._replace(col=A.col.new_empty(A.nnz, dtype=dtype), cols=len(filled))
    place = torch.empty(A.cols, dtype=dtype)
    place[filled] = torch.arange(len(filled), dtype=dtype)
    return A._replace(col=place[A.col.long()], cols=len(filled))


def expected(places: int, thrown: int) -> int:
    """The expected number of places that are hit at least once."""
    if places <= 1:
        return min(places, thrown)
    return min(round(-places * expm1(thrown * log1p(-1 / places))), thrown)


def apart(A: Csr, offset: int = 0) -> tuple[Csr, Tensor]:
    """A without its entries at (i, i + offset); and these entries, summed for each row that the diagonal passes.

    Shapes alone lose one entry for each of these rows.
    """
    rows = _rows_passed(A, offset)
    values = A.val.new_zeros(len(rows))
    if A.val.is_meta:
        nnz = max(A.nnz - len(rows), 0)
        return A._replace(col=A.col.new_empty(nnz), val=A.val.new_empty(nnz)), values
    row = row_of(A)
    on = row + offset == A.col
    values.index_add_(0, row[on] - rows.start, A.val[on])
    before = torch.nn.functional.pad(on.cumsum(0), (1, 0))
    return Csr(A.rowptr - before[A.rowptr], A.col[~on], A.val[~on], A.cols), values


def _rows_passed(A: Csr, offset: int) -> range:
    """The rows that the diagonal (i, i + offset) passes."""
    first = min(max(0, -offset), A.rows)
    return range(first, max(first, min(A.rows, A.cols - offset)))


class Placed(NamedTuple):
    """A rectangle of a matrix, and the place of its first row and column in the result."""

    source: Csr
    rows: range
    cols: range
    top: int
    left: int


class Scales(NamedTuple):
    """Values of entries that replace those of the source: the product of a row's and a column's scale, in a type."""

    rows: Tensor
    cols: Tensor
    dtype: torch.dtype


def assemble(parts: Sequence[Placed], shape: tuple[int, int], scales: Scales | None = None) -> Csr:
    """A matrix of this shape. Parts that share rows come from left to right; the rest of the matrix is empty."""
    rows, cols = shape
    lengths = torch.zeros(rows, dtype=torch.int64)
    for part in parts:
        rowptr, col, _ = _arrays(part)
        count_entries(rowptr, col, _window(part), lengths[part.top :].numpy())
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    entries = int(starts[-1])
    dtype = scales.dtype if scales else parts[0].source.val.dtype if parts else torch.float32
    A = Csr(starts, torch.empty(entries, dtype=index_dtype(cols)), torch.empty(entries, dtype=dtype), cols)
    free = starts[:-1].clone()
    for part in parts:
        left, rows_free = part.left, free[part.top :].numpy()
        place_entries(
            _arrays(part), _window(part), left, rows_free, A.col.numpy(), A.val.numpy(), scales is None
        )
    if scales:
        scale_entries(starts.numpy(), A.col.numpy(), scales.rows.numpy(), scales.cols.numpy(), A.val.numpy())
    return A


def beside(pieces: Sequence[Csr]) -> Csr:
    """One matrix of several with the same rows, from left to right."""
    if pieces[0].val.is_meta:
        return _shape_beside(pieces)
    lefts = accumulate((piece.cols for piece in pieces), initial=0)
    parts = [
        Placed(piece, range(piece.rows), range(piece.cols), 0, left)
        for piece, left in zip(pieces, lefts, strict=False)
    ]
    return assemble(parts, (pieces[0].rows, sum(piece.cols for piece in pieces)))


def _arrays(part: Placed) -> tuple[object, object, object]:
    A = part.source
    return A.rowptr.numpy(), A.col.numpy(), A.val.numpy()


def _window(part: Placed) -> tuple[int, int, int, int]:
    return part.rows.start, part.rows.stop, part.cols.start, part.cols.stop


def _shape_beside(pieces: Sequence[Csr]) -> Csr:
    rowptr, col, val, _ = pieces[0]
    nnz, width = sum(piece.nnz for piece in pieces), sum(piece.cols for piece in pieces)
    return Csr(rowptr, col.new_empty(nnz, dtype=index_dtype(width)), val.new_empty(nnz), width)


# The compiled loops: the lengths of rows, then the entries, then the values.


@compiled()
def count_entries(rowptr: Any, col: Any, window: tuple[int, int, int, int], lengths: Any) -> None:
    """Adds to lengths[i] the number of entries of row first + i in the window of rows and columns."""
    first, last, left, right = window
    for i in range(first, last):
        inside = 0
        for e in range(rowptr[i], rowptr[i + 1]):
            inside += left <= col[e] < right
        lengths[i - first] += inside


@compiled()
def place_entries(
    A: tuple[Any, Any, Any],
    window: tuple[int, int, int, int],
    shift: int,
    free: Any,
    out_col: Any,
    out_val: Any,
    with_values: bool,
) -> None:
    """Writes the entries in the window from free[i] on; the left column of the window becomes column `shift`."""
    rowptr, col, val = A
    first, last, left, right = window
    for i in range(first, last):
        at = free[i - first]
        for e in range(rowptr[i], rowptr[i + 1]):
            if left <= col[e] < right:
                out_col[at] = col[e] - left + shift
                if with_values:
                    out_val[at] = val[e]
                at += 1
        free[i - first] = at


@compiled()
def scale_entries(rowptr: Any, col: Any, row_scale: Any, col_scale: Any, val: Any) -> None:
    """Sets every value to the product of its row's and its column's scale."""
    for i in range(row_scale.size):
        for e in range(rowptr[i], rowptr[i + 1]):
            val[e] = row_scale[i] * col_scale[col[e]]
