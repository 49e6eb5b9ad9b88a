"""A sparse matrix put together out of rectangles of others, with no copy but the result.

Verifier (tests/kernels/test_assemble.py): dense matrices.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype
from harness.kernels.jit import compiled


class Part(NamedTuple):
    """A rectangle of a matrix, and where its first row and column go."""

    source: Csr
    rows: range
    cols: range
    top: int
    left: int


class Scales(NamedTuple):
    """What an entry is, whatever it is in its source: the product of its row's scale and its column's, in a type."""

    rows: Tensor
    cols: Tensor
    dtype: torch.dtype


def assemble(parts: Sequence[Part], shape: tuple[int, int], scales: Scales | None = None) -> Csr:
    """A matrix of this shape. Parts that share rows come from left to right; places without a part are empty."""

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
        left, here = part.left, free[part.top :].numpy()
        place_entries(_arrays(part), _window(part), left, here, A.col.numpy(), A.val.numpy(), scales is None)
    if scales:
        scale_entries(starts.numpy(), A.col.numpy(), scales.rows.numpy(), scales.cols.numpy(), A.val.numpy())
    return A


def beside(pieces: Sequence[Csr]) -> Csr:
    """Matrices of the same rows, from left to right, as one."""
    if pieces[0].val.is_meta:
        return _shape_beside(pieces)
    lefts = accumulate((piece.cols for piece in pieces), initial=0)
    parts = [
        Part(piece, range(piece.rows), range(piece.cols), 0, left)
        for piece, left in zip(pieces, lefts, strict=False)
    ]
    return assemble(parts, (pieces[0].rows, sum(piece.cols for piece in pieces)))


def below(pieces: Sequence[Csr]) -> Csr:
    """Matrices of the same columns, one below the other, as one."""
    tops = accumulate((piece.rows for piece in pieces), initial=0)
    parts = [
        Part(piece, range(piece.rows), range(piece.cols), top, 0)
        for piece, top in zip(pieces, tops, strict=False)
    ]
    return assemble(parts, (sum(piece.rows for piece in pieces), pieces[0].cols))


def _arrays(part: Part) -> tuple[object, object, object]:
    A = part.source
    return A.rowptr.numpy(), A.col.numpy(), A.val.numpy()


def _window(part: Part) -> tuple[int, int, int, int]:
    return part.rows.start, part.rows.stop, part.cols.start, part.cols.stop


def _shape_beside(pieces: Sequence[Csr]) -> Csr:
    rowptr, col, val, _ = pieces[0]
    nnz, width = sum(piece.nnz for piece in pieces), sum(piece.cols for piece in pieces)
    return Csr(rowptr, col.new_empty(nnz, dtype=index_dtype(width)), val.new_empty(nnz), width)


# The compiled loops: how long each row will be, its entries, their
# values.


@compiled()
def count_entries(rowptr: Any, col: Any, window: tuple[int, int, int, int], lengths: Any) -> None:
    """Adds to lengths[i] the entries of row first + i that stand in the window of rows and columns."""
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
    """Puts the entries in the window where free[i] says, the left column of the window to column `shift`."""
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
    """Every value the product of its row's scale and its column's."""
    for i in range(row_scale.size):
        for e in range(rowptr[i], rowptr[i + 1]):
            val[e] = row_scale[i] * col_scale[col[e]]
