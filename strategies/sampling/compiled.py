"""Compiled loops of samplers that draw many batches together: inverse transform sampling and extraction.

Rows of a graph are far apart in memory, so the loops prefetch rows before they read them. An element of the map in
`PositionMap` has the tag of a batch in its upper 32 bits and a position in its lower 32 bits.
"""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled, multiply_high, prefetch
from harness.kernels.random import hash_index

DARTS = np.uint64(16)
"""The bits of a counter that hold the number of a draw."""

ROWS_PER_PASS = 64  # rows whose darts are thrown before any of their entries is read
TAG = 32
PLACE = (1 << TAG) - 1
AHEAD = 24  # entries between the prefetch of an element of the map and its use

# Inverse transform sampling: draws from rows of equal masses, and from rows of arbitrary masses.


@compiled(nogil=True)
def draw_uniformly(
    A: tuple[Any, Any, Any],
    stack: tuple[Any, Any],
    own: Any,
    fanout: int,
    keys: Any,
    S: tuple[Any, Any, Any],
) -> int:
    """Fill S with at most `fanout` entries of each row, and return the number of its entries."""
    rowptr, col, val = A
    rows, starts = stack
    out_rowptr, out_col, out_val = S
    entries, scales = np.empty(ROWS_PER_PASS * fanout, dtype=np.int64), np.empty(ROWS_PER_PASS)
    at = 0
    for batch in range(starts.size - 1):
        first, second = np.uint64(keys[batch, 0]), np.uint64(keys[batch, 1])
        for begin in range(starts[batch], starts[batch + 1], ROWS_PER_PASS):
            end = min(begin + ROWS_PER_PASS, starts[batch + 1])
            for i in range(end, min(end + ROWS_PER_PASS, rows.size)):
                prefetch(rowptr.ctypes.data + rowptr.itemsize * rows[i])
            thrown = 0
            for i in range(begin, end):
                start, of = rowptr[rows[i]], rowptr[rows[i] + 1] - rowptr[rows[i]]
                drawn = min(of, fanout)
                scales[i - begin] = of / drawn if drawn else 1.0
                choose_by_darts(entries[thrown:], drawn, of, np.uint64(own[i]) << DARTS, first, second)
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
def choose_by_darts(chosen: Any, drawn: int, of: int, counter: Any, first: Any, second: Any) -> None:
    """Write `drawn` of the numbers 0 .. of - 1, in ascending order; a dart selects among the remaining numbers."""
    if drawn == of:
        for k in range(drawn):
            chosen[k] = k
        return
    for k in range(drawn):
        dart = np.int64(multiply_high(hash_index(counter + np.uint64(k), first, second), np.uint64(of - k)))
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
    """Fill S with the entries that darts take, and return the number of its entries."""
    rowptr, col, mass = P
    out_rowptr, out_col, out_weight = S
    at = 0
    for row in range(rowptr.size - 1):
        masses = mass[rowptr[row] : rowptr[row + 1]]
        whole = masses.size <= darts and not replacement
        times, total = np.full(masses.size, 1 if whole else 0), masses.sum()
        if masses.size and not whole:
            throw_darts(masses, darts, replacement, np.uint64(keys[row, 0]), np.uint64(keys[row, 1]), times)
        for e in range(masses.size):
            if times[e]:
                out_col[at] = col[rowptr[row] + e]
                out_weight[at] = 1.0 if whole else times[e] * (total / masses[e] / darts)
                at += 1
        out_rowptr[row + 1] = at
    return at


@compiled(nogil=True)
def throw_darts(mass: Any, darts: int, replacement: bool, first: Any, second: Any, times: Any) -> None:
    """Throw darts at one row. A Fenwick tree of the masses removes an entry in logarithmic time."""
    sums, left = _build_tree(mass), mass.sum()
    for dart in range(darts):
        below: Any = np.int64(multiply_high(hash_index(np.uint64(dart), first, second), np.uint64(left)))
        place = _find_entry(sums, below)
        times[place] += 1
        if not replacement:
            left -= mass[place]
            _remove_mass(sums, place, mass[place])


@compiled(nogil=True)
def _build_tree(mass: Any) -> Any:
    """Return a Fenwick tree: element i, counted from 1, is the sum of the last `i & -i` masses up to i."""
    sums = np.zeros(mass.size + 1, dtype=np.int64)
    for i in range(1, sums.size):
        sums[i] += mass[i - 1]
        above = i + (i & -i)
        if above < sums.size:
            sums[above] += sums[i]
    return sums


@compiled(nogil=True)
def _find_entry(sums: Any, below: int) -> int:
    """Return the first position whose running sum is above a number."""
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
def _remove_mass(sums: Any, place: int, mass: int) -> None:
    """Subtract the mass of an entry from every sum that contains it."""
    i = place + 1
    while i < sums.size:
        sums[i] -= mass
        i += i & -i


# Extraction: columns are renumbered by positions in their batch's list of vertices.


@compiled(nogil=True, forceinline=True)
def insert_entry(col: Any, val: Any, first: int, last: int, place: int, value: Any) -> None:
    """Insert an entry into the range from `first` to before `last`, whose columns ascend."""
    at = last
    while at > first and col[at - 1] > place:
        col[at], val[at] = col[at - 1], val[at - 1]
        at -= 1
    col[at], val[at] = place, value


@compiled(nogil=True)
def renumber_columns(
    S: tuple[Any, Any, Any],
    stack: tuple[Any, Any],
    at: tuple[Any, int],
    out: tuple[Any, Any],
    inputs: tuple[Any, Any],
) -> None:
    """Renumber columns row by row; within a row, the new numbers ascend."""
    rowptr, col, val = S
    vertices, starts = stack
    where, tag = at
    out_col, out_val = out
    input_vertices, input_starts = inputs
    total = 0
    for batch in range(starts.size - 1):
        own, base = (tag + batch) << TAG, total
        total += mark_vertices(where, vertices[starts[batch] : starts[batch + 1]], own, input_vertices[base:])
        for i in range(starts[batch], starts[batch + 1]):
            for e in range(rowptr[i], rowptr[i + 1]):
                if e + AHEAD < col.size:
                    prefetch(where.ctypes.data + where.itemsize * col[e + AHEAD])
                place = where[col[e]] ^ own
                if place > PLACE or place < 0:
                    place = total - base
                    where[col[e]] = own | place
                    input_vertices[total] = col[e]
                    total += 1
                insert_entry(out_col, out_val, rowptr[i], e, place, val[e])
        input_starts[batch + 1] = total


@compiled(nogil=True)
def mark_vertices(where: Any, vertices: Any, own: int, inputs: Any) -> int:
    """Copy vertices to `inputs`, mark the first of equal vertices on the map, and return their number."""
    for i in range(vertices.size):
        if i + AHEAD < vertices.size:
            prefetch(where.ctypes.data + where.itemsize * vertices[i + AHEAD])
        inputs[i] = vertices[i]
        if where[vertices[i]] >> TAG != own >> TAG:
            where[vertices[i]] = own | i
    return int(vertices.size)


@compiled(nogil=True)
def sum_columns(R: tuple[Any, Any, Any], starts: Any, sums: Any, P: tuple[Any, Any, Any]) -> int:
    """Sum the masses of each batch by column, and return the number of entries of P. `sums` is zeros, and is reset."""
    rowptr, col, mass = R
    out_rowptr, out_col, out_mass = P
    at = 0
    for batch in range(starts.size - 1):
        begin = at
        for e in range(rowptr[starts[batch]], rowptr[starts[batch + 1]]):
            if e + AHEAD < col.size:
                prefetch(sums.ctypes.data + sums.itemsize * col[e + AHEAD])
            if sums[col[e]] == 0:
                out_col[at] = col[e]
                at += 1
            sums[col[e]] += mass[e]
        out_col[begin:at].sort()
        for e in range(begin, at):
            out_mass[e] = sums[out_col[e]]
            sums[out_col[e]] = 0
        out_rowptr[batch + 1] = at
    return at


@compiled(nogil=True)
def join_columns(
    stack: tuple[Any, Any], chosen: tuple[Any, Any], at: tuple[Any, int], inputs: tuple[Any, Any]
) -> None:
    """List the vertices of each batch, then its new chosen vertices."""
    vertices, starts = stack
    rowptr, col = chosen
    where, tag = at
    input_vertices, input_starts = inputs
    total = 0
    for batch in range(starts.size - 1):
        own = (tag + batch) << TAG
        total += mark_vertices(
            where, vertices[starts[batch] : starts[batch + 1]], own, input_vertices[total:]
        )
        for e in range(rowptr[batch], rowptr[batch + 1]):
            if where[col[e]] >> TAG != tag + batch:
                input_vertices[total] = col[e]
                total += 1
        input_starts[batch + 1] = total


@compiled(nogil=True)
def keep_columns(
    R: tuple[Any, Any, Any],
    stacks: tuple[Any, Any, Any],
    chosen: tuple[Any, Any, Any],
    at: tuple[Any, int],
    out: tuple[Any, Any, Any],
) -> int:
    """Keep the entries of R in chosen columns, times the weights of the columns, and return their number."""
    rowptr, col, val = R
    starts, inputs, input_starts = stacks
    chosen_rowptr, chosen_col, weight = chosen
    where, tag = at
    out_rowptr, out_col, out_val = out
    kept = 0
    for batch in range(starts.size - 1):
        own = (tag + batch) << TAG
        batch_inputs = inputs[input_starts[batch] : input_starts[batch + 1]]
        times = np.zeros(mark_vertices(where, batch_inputs, own, batch_inputs))
        for e in range(chosen_rowptr[batch], chosen_rowptr[batch + 1]):
            times[where[chosen_col[e]] & PLACE] = weight[e]
        for i in range(starts[batch], starts[batch + 1]):
            for e in range(rowptr[i], rowptr[i + 1]):
                if e + AHEAD < col.size:
                    prefetch(where.ctypes.data + where.itemsize * col[e + AHEAD])
                place = where[col[e]] ^ own
                if 0 <= place <= PLACE and times[place] > 0:
                    insert_entry(out_col, out_val, out_rowptr[i], kept, place, val[e] * times[place])
                    kept += 1
            out_rowptr[i + 1] = kept
    return kept
