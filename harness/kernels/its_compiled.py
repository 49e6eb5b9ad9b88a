"""The loops of `harness.kernels.its`. Rows of a graph lie far apart: those that come soon are asked of memory ahead."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.prefetch import prefetch
from harness.kernels.random_compiled import bits_at
from harness.kernels.wide import upper_half

DARTS = np.uint64(16)
TOGETHER = 64  # rows whose darts are thrown before the first entry is read


@compiled(nogil=True)
def draw_uniformly(
    A: tuple[Any, Any, Any],
    stack: tuple[Any, Any],
    own: Any,
    fanout: int,
    keys: Any,
    S: tuple[Any, Any, Any],
) -> int:
    """Fills S, whose arrays hold `fanout` entries a row or all that there are; returns how many it has."""
    rowptr, col, val = A
    rows, starts = stack
    out_rowptr, out_col, out_val = S
    entries, scales = np.empty(TOGETHER * fanout, dtype=np.int64), np.empty(TOGETHER)
    at = 0
    for batch in range(starts.size - 1):
        first, second = np.uint64(keys[batch, 0]), np.uint64(keys[batch, 1])
        for begin in range(starts[batch], starts[batch + 1], TOGETHER):
            end = min(begin + TOGETHER, starts[batch + 1])
            for i in range(end, min(end + TOGETHER, rows.size)):
                prefetch(rowptr.ctypes.data + rowptr.itemsize * rows[i])
            thrown = 0
            for i in range(begin, end):
                start, of = rowptr[rows[i]], rowptr[rows[i] + 1] - rowptr[rows[i]]
                drawn = min(of, fanout)
                scales[i - begin] = of / drawn if drawn else 1.0
                choose(entries[thrown:], drawn, of, np.uint64(own[i]) << DARTS, first, second)
                for k in range(thrown, thrown + drawn):
                    entries[k] += start
                    prefetch(col.ctypes.data + col.itemsize * entries[k])
                    prefetch(val.ctypes.data + val.itemsize * entries[k])
                thrown += drawn
                out_rowptr[i + 1] = at + thrown
            for i in range(begin, end):
                for k in range(out_rowptr[i] - at, out_rowptr[i + 1] - at):
                    out_col[at + k] = col[entries[k]]
                    out_val[at + k] = val[entries[k]] * scales[i - begin]
            at += thrown
    return at


@compiled(nogil=True)
def choose(chosen: Any, drawn: int, of: int, counter: Any, first: Any, second: Any) -> None:
    """So many of the numbers 0 .. of - 1, ascending: a dart counts among those that are left."""
    if drawn == of:
        for k in range(drawn):
            chosen[k] = k
        return
    for k in range(drawn):
        dart = np.int64(upper_half(bits_at(counter + np.uint64(k), first, second), np.uint64(of - k)))
        place = 0
        while place < k and chosen[place] <= dart:
            place += 1
            dart += 1
        for j in range(k, place, -1):
            chosen[j] = chosen[j - 1]
        chosen[place] = dart


@compiled(nogil=True)
def draw_by_mass(
    P: tuple[Any, Any, Any], darts: int, replacement: bool, keys: Any, S: tuple[Any, Any, Any]
) -> int:
    """Fills S; returns how many entries it has."""
    rowptr, col, mass = P
    out_rowptr, out_col, out_weight = S
    at = 0
    for row in range(rowptr.size - 1):
        here = mass[rowptr[row] : rowptr[row + 1]]
        whole = here.size <= darts and not replacement
        times, total = np.full(here.size, 1 if whole else 0), here.sum()
        if here.size and not whole:
            throw(here, darts, replacement, np.uint64(keys[row, 0]), np.uint64(keys[row, 1]), times)
        for e in range(here.size):
            if times[e]:
                out_col[at] = col[rowptr[row] + e]
                out_weight[at] = 1.0 if whole else times[e] * (total / here[e] / darts)
                at += 1
        out_rowptr[row + 1] = at
    return at


@compiled(nogil=True)
def throw(mass: Any, darts: int, replacement: bool, first: Any, second: Any, times: Any) -> None:
    """Darts at one row; sums of its masses stand in a tree, so that what is taken can leave it."""
    sums, left = _tree(mass), mass.sum()
    for dart in range(darts):
        below: Any = np.int64(upper_half(bits_at(np.uint64(dart), first, second), np.uint64(left)))
        place = _find(sums, below)
        times[place] += 1
        if not replacement:
            left -= mass[place]
            _take(sums, place, mass[place])


@compiled(nogil=True)
def _tree(mass: Any) -> Any:
    """Fenwick's: place i, counted from 1, has the sum of as many masses up to it as its lowest bit says."""
    sums = np.zeros(mass.size + 1, dtype=np.int64)
    for i in range(1, sums.size):
        sums[i] += mass[i - 1]
        above = i + (i & -i)
        if above < sums.size:
            sums[above] += sums[i]
    return sums


@compiled(nogil=True)
def _find(sums: Any, below: int) -> int:
    """The first place whose running sum is above a number."""
    step = 1
    while 2 * step < sums.size:
        step *= 2
    place = 0
    while step:
        if place + step < sums.size and sums[place + step] <= below:
            place += step
            below -= sums[place]
        step //= 2
    return place


@compiled(nogil=True)
def _take(sums: Any, place: int, mass: int) -> None:
    i = place + 1
    while i < sums.size:
        sums[i] -= mass
        i += i & -i
