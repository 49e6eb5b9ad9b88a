"""The passes of `harness.kernels.assemble` as compiled loops: how long each row will be, its entries, their values."""

from typing import Any

from harness.kernels.jit import compiled


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
