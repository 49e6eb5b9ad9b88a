"""Sparse times dense as a compiled loop over rows.

Four entries of a row are added at a time, so that a row of the result is read and written once for four rows
of H, and the rows of H that come soon are asked of memory ahead. A row is summed from left to right by one
thread, so the bits do not depend on how many threads there are. Verifier: scipy.
"""

from typing import Any

import numba

from harness.kernels.intrinsics import prefetch
from harness.kernels.jit import compiled

LINE = 64  # bytes
AHEAD = 8  # entries between asking for a row of H and using it

Arrays = tuple[Any, Any, Any]
"""rowptr, col, val."""


def multiply_arrays(A: Arrays, H: Any, Z: Any, *, add: bool, far: bool, threads: int) -> None:
    """Z = A H, or Z += A H; all arrays contiguous. `far`: ask for rows of H ahead, it is not in cache."""
    threads = min(threads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if threads == 1:
        multiply_rows(A, H, Z, add, far, 0, Z.shape[0])
    else:
        numba.set_num_threads(threads)
        multiply_shares(A, H, Z, add, far, threads)


@compiled(parallel=True)
def multiply_shares(A: Arrays, H: Any, Z: Any, add: bool, far: bool, shares: int) -> None:
    """A share of the rows for each thread; shares have equally much to do, not equally many rows."""
    for share in numba.prange(shares):
        first, last = first_row(A[0], share, shares), first_row(A[0], share + 1, shares)
        multiply_rows(A, H, Z, add, far, first, last)


@compiled(fastmath={"contract"})
def multiply_rows(A: Arrays, H: Any, Z: Any, add: bool, far: bool, first: int, last: int) -> None:
    """Rows first .. last - 1."""
    rowptr, col, val = A
    for i in range(first, last):
        row = Z[i]
        if not add:
            row[:] = 0
        e, end = rowptr[i], rowptr[i + 1]
        while e + 4 <= end:
            if far:
                _ask_for_rows(H, col, e + AHEAD, e + AHEAD + 4)
            h0, h1, h2, h3 = H[col[e]], H[col[e + 1]], H[col[e + 2]], H[col[e + 3]]
            a0, a1, a2, a3 = val[e], val[e + 1], val[e + 2], val[e + 3]
            for k in range(row.size):
                row[k] = row[k] + a0 * h0[k] + a1 * h1[k] + a2 * h2[k] + a3 * h3[k]
            e += 4
        while e < end:
            if far:
                _ask_for_rows(H, col, e + AHEAD, e + AHEAD + 1)
            h0, a0 = H[col[e]], val[e]
            for k in range(row.size):
                row[k] += a0 * h0[k]
            e += 1


@compiled()
def first_row(rowptr: Any, share: int, shares: int) -> int:
    """Where a share begins if all have about equally many rows and entries together."""
    rows = rowptr.size - 1
    target = (rows + rowptr[rows]) * share // shares
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        if middle + rowptr[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@compiled(forceinline=True)
def _ask_for_rows(H: Any, col: Any, first: int, last: int) -> None:
    width = H.shape[1] * H.itemsize
    if last <= col.size:
        for e in range(first, last):
            start = H.ctypes.data + col[e] * width
            for byte in range(0, width, LINE):
                prefetch(start + byte)
