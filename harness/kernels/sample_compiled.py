"""The loop of `harness.kernels.sample`: row after row, the places that Floyd's algorithm chooses, ascending."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random_compiled import bits_at

HALF, COUNTERS = np.uint64(32), np.uint64(12)


@compiled(nogil=True)
def draw_rows(
    A: tuple[Any, Any, Any],
    which: tuple[Any, Any],
    how: tuple[int, bool, Any, Any],
    out: tuple[Any, Any, Any],
) -> int:
    """Fills the drawn matrix; returns how many entries it has."""
    rowptr, col, val = A
    rows, vertices = which
    fanout, loops, first, second = how
    out_rowptr, out_col, out_val = out
    chosen = np.empty(fanout, dtype=np.int64)
    at = 0
    for i in range(rows.size):
        start, stop = rowptr[rows[i]], rowptr[rows[i] + 1]
        loop = _loop_of(col, start, stop, vertices[i]) if loops else stop
        others = stop - start - (1 if loop < stop else 0)
        drawn = min(fanout, others)
        choose(chosen, drawn, others, np.uint64(vertices[i]) << COUNTERS, first, second)
        scale = others / drawn if drawn else 1.0
        before = True
        for k in range(drawn):
            e = start + chosen[k]
            if e >= loop:
                e += 1
                if before:
                    out_col[at], out_val[at] = col[loop], val[loop]
                    at += 1
                    before = False
            out_col[at], out_val[at] = col[e], val[e] * scale
            at += 1
        if before and loop < stop:
            out_col[at], out_val[at] = col[loop], val[loop]
            at += 1
        out_rowptr[i + 1] = at
    return at


@compiled(nogil=True)
def choose(chosen: Any, drawn: int, of: int, counter: Any, first: Any, second: Any) -> None:
    """So many of the numbers 0 .. of - 1, ascending, into the first places of an array."""
    if drawn == of:
        for k in range(drawn):
            chosen[k] = k
        return
    for k in range(drawn):
        last = of - drawn + k
        word = bits_at(counter + np.uint64(k), first, second) >> HALF
        drawn_now = np.int64((word * np.uint64(last + 1)) >> HALF)
        taken = False
        for j in range(k):
            taken |= chosen[j] == drawn_now
        pick = last if taken else drawn_now
        place = k
        while place > 0 and chosen[place - 1] > pick:
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = pick


@compiled(nogil=True)
def _loop_of(col: Any, start: int, stop: int, vertex: int) -> int:
    """Where the row's own vertex stands, or the end of the row."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if col[middle] < vertex:
            low = middle + 1
        else:
            high = middle
    return low if low < stop and col[low] == vertex else stop
