"""Compiled loops of the samplers: drawing neighbours, frontiers, inverse transform sampling, extraction.

Rows of a graph are far apart in memory, so the loops prefetch rows before they read them. An element of the map in
`PositionMap` has the tag of a batch in its upper 32 bits and a position in its lower 32 bits.
"""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled, multiply_high, popcount, prefetch
from harness.kernels.random import hash_index

HALF, NEIGHBOURS, DARTS = np.uint64(32), np.uint64(12), np.uint64(16)
"""Half a word, and the bits of a counter that hold the number of a draw, for each sampler."""

BITS, WORDS, ONE = 64, 16, np.uint64(1)  # the words of bits that mark the drawn entries of a row
ROWS_AHEAD = 8  # rows between the prefetch of a row's entries and its draws
LINE = 16  # entries in a cache line

ROWS_PER_PASS = 64  # rows whose darts are thrown before any of their entries is read
TAG = 32
PLACE = (1 << TAG) - 1
INSERTED = 64  # entries up to which an insertion sort is faster than a merge sort
AHEAD = 24  # entries between the prefetch of an element of the map and its use

# Neighbours: Floyd's algorithm chooses entries row by row, in ascending order.


@compiled(nogil=True)
def draw_neighbours(
    A: tuple[Any, Any, Any],
    which: tuple[Any, Any],
    how: tuple[int, bool, Any, Any],
    out: tuple[Any, Any, Any],
) -> int:
    """Fill the sampled matrix, and return the number of its entries."""
    rowptr, col, val = A
    rows, vertices = which
    fanout, loops, first, second = how
    out_rowptr, out_col, out_val = out
    chosen, taken = np.empty(fanout, dtype=np.int64), np.zeros(WORDS, dtype=np.uint64)
    at = 0
    for i in range(rows.size):
        if i + 2 * ROWS_AHEAD < rows.size:
            prefetch(rowptr.ctypes.data + rowptr.itemsize * rows[i + 2 * ROWS_AHEAD])
        if i + ROWS_AHEAD < rows.size:
            _prefetch_row(A, rows[i + ROWS_AHEAD])
        start, stop = rowptr[rows[i]], rowptr[rows[i] + 1]
        loop = _loop_of(col, start, stop, vertices[i]) if loops else stop
        others = stop - start - (1 if loop < stop else 0)
        drawn = min(fanout, others)
        choose_by_floyd(chosen, drawn, others, np.uint64(vertices[i]) << NEIGHBOURS, (first, second), taken)
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
def _prefetch_row(A: tuple[Any, Any, Any], row: int) -> None:
    """Prefetch the first entries of a row, and the column in its middle, where the search for the loop begins."""
    rowptr, col, val = A
    start, stop = rowptr[row], rowptr[row + 1]
    prefetch(col.ctypes.data + col.itemsize * ((start + stop) >> 1))
    for e in range(start, min(stop, start + 2 * LINE), LINE):
        prefetch(col.ctypes.data + col.itemsize * e)
        prefetch(val.ctypes.data + val.itemsize * e)


@compiled(nogil=True)
def choose_by_floyd(
    chosen: Any, drawn: int, of: int, counter: Any, keys: tuple[Any, Any], taken: Any
) -> None:
    """Write `drawn` of the numbers 0 .. of - 1, in ascending order, to the start of an array.

    `taken` is zero, and is again at the end. If it has a bit for each number, its bits are read in ascending order.
    """
    first, second = keys
    if drawn == of:
        for k in range(drawn):
            chosen[k] = k
        return
    if of > taken.size * BITS:
        _choose_of_many(chosen, drawn, of, counter, keys)
        return
    for k in range(drawn):
        last = of - drawn + k
        word = hash_index(counter + np.uint64(k), first, second) >> HALF
        pick: Any = np.int64((word * np.uint64(last + 1)) >> HALF)
        if (taken[pick >> 6] >> np.uint64(pick & 63)) & ONE:
            pick = last
        taken[pick >> 6] |= ONE << np.uint64(pick & 63)
    at = 0
    for place in range((of + BITS - 1) >> 6):
        bits, taken[place] = taken[place], np.uint64(0)
        while bits:
            chosen[at] = (place << 6) + np.int64(popcount((bits & (~bits + ONE)) - ONE))
            bits &= bits - ONE
            at += 1


@compiled(nogil=True)
def _choose_of_many(chosen: Any, drawn: int, of: int, counter: Any, keys: tuple[Any, Any]) -> None:
    """`choose_by_floyd` by insertion."""
    first, second = keys
    for k in range(drawn):
        last = of - drawn + k
        word = hash_index(counter + np.uint64(k), first, second) >> HALF
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
    """Find the position of a row's self-loop by binary search; otherwise return the end of the row."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if col[middle] < vertex:
            low = middle + 1
        else:
            high = middle
    return low if low < stop and col[low] == vertex else stop


# Frontiers: columns are renumbered by positions in the rows' vertices followed by the other columns, ascending.


@compiled(nogil=True)
def find_frontier(col: Any, vertices: Any, where: Any) -> Any:
    """Return the vertices and then all other columns, ascending. `where` is -1, and gets positions in the result."""
    for i in range(vertices.size - 1, -1, -1):  # the first of equal vertices counts
        where[vertices[i]] = i
    others = 0
    for e in range(col.size):
        if where[col[e]] == -1:
            where[col[e]] = -2
            others += 1
    frontier = np.empty(vertices.size + others, dtype=np.int64)
    frontier[: vertices.size] = vertices
    at = vertices.size
    for column in range(where.size):
        if where[column] == -2:
            frontier[at], where[column] = column, at
            at += 1
    return frontier


@compiled(nogil=True)
def sort_by_position(S: tuple[Any, Any, Any], where: Any, vertices: int, out: tuple[Any, Any]) -> None:
    """Replace the columns of S, which ascend in each row, by their positions, and sort each row again.

    Positions behind the vertices ascend already.
    """
    rowptr, col, val = S
    out_col, out_val = out
    for row in range(rowptr.size - 1):
        start, at = rowptr[row], rowptr[row]
        for e in range(start, rowptr[row + 1]):
            if where[col[e]] < vertices:
                out_col[at], out_val[at] = where[col[e]], val[e]
                at += 1
        _sort_entries(out_col[start:at], out_val[start:at])
        for e in range(start, rowptr[row + 1]):
            if where[col[e]] >= vertices:
                out_col[at], out_val[at] = where[col[e]], val[e]
                at += 1


@compiled(nogil=True, forceinline=True)
def insert_entry(col: Any, val: Any, first: int, last: int, place: int, value: Any) -> None:
    """Insert an entry into the range from `first` to before `last`, whose columns ascend."""
    at = last
    while at > first and col[at - 1] > place:
        col[at], val[at] = col[at - 1], val[at - 1]
        at -= 1
    col[at], val[at] = place, value


@compiled(nogil=True)
def _sort_entries(col: Any, val: Any) -> None:
    """Sort entries by column; equal columns keep their order."""
    if col.size > INSERTED:
        order = np.argsort(col, kind="mergesort")
        col[:], val[:] = col[order], val[order]
        return
    for e in range(1, col.size):
        insert_entry(col, val, 0, e, col[e], val[e])


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
