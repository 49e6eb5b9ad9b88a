"""The passes of `harness.kernels.induced` as compiled loops: the kept entries of every row, then the transpose of that.

Sampled rows lie far apart, so those that come soon are asked of memory ahead.
"""

from typing import Any

import numpy as np

from harness.kernels.intrinsics import prefetch
from harness.kernels.jit import compiled

PLACE = (1 << 32) - 1
LINE = 64  # bytes
AHEAD = 8  # rows between asking for a row and reading it


@compiled(nogil=True)
def keep_entries(
    A: tuple[Any, Any, Any],
    rows: Any,
    where: Any,
    sample: tuple[int, int, float],
    S: tuple[Any, Any, Any],
) -> int:
    """Rows in order, each from left to right, into arrays that would hold all entries; returns how many it kept."""
    rowptr, col, val = A
    tag, diagonal, scale = sample
    out_rowptr, out_col, out_val = S
    at = 0
    for i in range(rows.size):
        _ask_for_row(A, rows, i)
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
    """The transpose; its row pointers come as zeros."""
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
def _ask_for_row(A: tuple[Any, Any, Any], rows: Any, i: int) -> None:
    rowptr, col, val = A
    if i + 2 * AHEAD < rows.size:
        prefetch(rowptr.ctypes.data + rowptr.itemsize * rows[i + 2 * AHEAD])
    if i + AHEAD < rows.size:
        first, last = rowptr[rows[i + AHEAD]], rowptr[rows[i + AHEAD] + 1]
        for byte in range(col.itemsize * first, col.itemsize * last, LINE):
            prefetch(col.ctypes.data + byte)
        for byte in range(val.itemsize * first, val.itemsize * last, LINE):
            prefetch(val.ctypes.data + byte)
