"""Compiled loops of GraphSAGE's sampler: drawing neighbours of vertices, and renumbering the columns of a sample.

Rows of a graph are far apart in memory. A pass over some rows therefore finds all self-loops, then draws and prefetches
all entries, and then copies them, so that reads overlap. Where a branch would depend on a draw, which no processor can
predict, the loops compute with truth values instead: they search, mark and sort without branches.
Verifiers (tests/sampling/test_neighbours.py, test_vectorised.py): the definition in Python, and tensor operations.
"""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled, popcount, prefetch
from harness.kernels.parts import LOW, ONE, SIX, U, build_bitmap, get_addresses
from harness.kernels.random import hash_index

HALF, COUNTER = U(32), U(12)
"""The number of bits in half of a word, and of those bits of a counter that hold the number of a draw."""
WORD = U(64)
"""The entries of the longest row whose draws are marked in one word."""
MARKS = U(1024)
"""The marks for the draws from a longer row."""
ROWS_PER_PASS = U(64)
ITEMS = U(8)
"""The items of eight bytes in a cache line."""
RANKED = 64
"""The entries up to which ranks by comparison are faster than a merge sort. After a change, edit the bits of a rank."""
RANK_BITS = U(6)
START, LENGTH, LOOP = U(0), U(1), U(2)
"""A span: the first entry of a row, its number of entries, and the entry of its self-loop, or its end without one."""

# Neighbours: Floyd's algorithm chooses the entries of a row.


@compiled(nogil=True)
def count_sampled(rowptr: Any, rows: Any, most: int) -> int:
    """Return the number of entries in a sample of some rows that takes at most `most` entries of each."""
    entries = U(0)
    for i in range(U(rows.size)):
        row = U(rows[i])
        entries += min(U(rowptr[row + ONE] - rowptr[row]), U(most))
    return int(entries)


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
    out_rowptr = out[0]
    places = get_addresses(rowptr, col, val)
    spans = np.empty((ROWS_PER_PASS, 3), np.uint64)
    entries, marks = np.empty(ROWS_PER_PASS * U(fanout + 1), np.uint64), np.zeros(MARKS, np.uint64)
    chosen = np.empty(fanout + 1, np.uint64)
    at = U(0)
    for begin in range(U(0), U(rows.size), ROWS_PER_PASS):
        size = min(ROWS_PER_PASS, U(rows.size) - begin)
        _read_spans(rowptr, rows, (begin, size), spans, places)
        if loops and col.size:
            _find_loops(col, vertices, (begin, size), spans)
        drawn = U(0)
        for i in range(size):
            key = U(vertices[begin + i]) << COUNTER, first, second
            span = spans[i, START], spans[i, LENGTH], spans[i, LOOP]
            scratch = marks, begin + i + ONE, chosen
            drawn = _choose_entries(span, U(fanout), key, scratch, (entries, drawn), places)
            out_rowptr[begin + i + ONE] = at + drawn
        _copy_entries(A, spans, (begin, size), (entries, at, U(fanout)), out)
        at += drawn
    return int(at)


@compiled(nogil=True)
def _read_spans(rowptr: Any, rows: Any, part: tuple[Any, Any], spans: Any, places: Any) -> None:
    """Read the spans of the rows of a pass, and prefetch the pointers of the next one."""
    begin, size = part
    pointers, pointer_size, cols, col_size, _, _ = places
    for i in range(begin + size, min(begin + size + ROWS_PER_PASS, U(rows.size))):
        prefetch(pointers + pointer_size * U(rows[i]))
    for i in range(size):
        row = U(rows[begin + i])
        start, stop = U(rowptr[row]), U(rowptr[row + ONE])
        spans[i, START], spans[i, LENGTH], spans[i, LOOP] = start, stop - start, stop
        prefetch(cols + col_size * ((start + stop) >> ONE))


@compiled(nogil=True)
def _find_loops(col: Any, vertices: Any, part: tuple[Any, Any], spans: Any) -> None:
    """Find the self-loops of the rows of a pass, by binary searches that halve all ranges in turn."""
    begin, size = part
    below, left = np.empty(size, np.uint64), np.empty(size, np.uint64)
    longest = U(0)
    for i in range(size):
        below[i], left[i] = min(spans[i, START], U(col.size) - ONE), spans[i, LENGTH]
        longest = max(longest, left[i])
    while longest > ONE:
        for i in range(size):
            half = left[i] >> ONE
            below[i] += half * U(col[below[i] + half] < vertices[begin + i])
            left[i] -= half
        longest -= longest >> ONE
    for i in range(size):
        start, loop = spans[i, START], below[i]
        loop += U(col[loop] < vertices[begin + i])
        if loop - start < spans[i, LENGTH] and col[loop] == vertices[begin + i]:
            spans[i, LOOP] = loop


@compiled(nogil=True, forceinline=True)
def _choose_entries(
    span: tuple[Any, Any, Any],
    fanout: Any,
    key: tuple[Any, Any, Any],
    scratch: tuple[Any, Any, Any],
    out: tuple[Any, Any],
    places: Any,
) -> Any:
    """List the entries of a row to copy, in ascending order, prefetch them, and return the end of the list."""
    start, length, loop = span
    entries, at = out
    looped = U(loop < start + length)
    drawn = min(length - looped, fanout)
    if length <= WORD or length - looped == drawn:
        _prefetch_row(start, length, places)
    if length - looped == drawn:
        for k in range(length):
            entries[at + k] = start + k
    elif length <= WORD:
        _list_by_bits(span, drawn, key, out)
    else:
        _list_by_marks(span, drawn, key, scratch, out, places)
    return at + drawn + looped


@compiled(nogil=True, forceinline=True)
def _prefetch_row(start: Any, length: Any, places: Any) -> None:
    """Prefetch a row."""
    _, _, cols, col_size, vals, val_size = places
    for e in range(start, start + length, ITEMS):
        prefetch(cols + col_size * e)
        prefetch(vals + val_size * e)


@compiled(nogil=True, forceinline=True)
def _list_by_bits(
    span: tuple[Any, Any, Any], drawn: Any, key: tuple[Any, Any, Any], out: tuple[Any, Any]
) -> None:
    """List the chosen entries of a row that fits a word, and its loop."""
    start, length, loop = span
    entries, at = out
    bits, place = U(0), loop - start
    if place < length:
        bits = _choose_bits(length - ONE, drawn, key)
        low = bits & ((ONE << place) - ONE)
        bits = low | ((bits ^ low) << ONE) | (ONE << place)
    else:
        bits = _choose_bits(length, drawn, key)
    while bits:
        entries[at] = start + popcount(_mask_below(bits))
        bits &= bits - ONE
        at += ONE


@compiled(forceinline=True)
def _mask_below(bits: Any) -> Any:
    """Return a word whose bits are those below the lowest bit of a word."""
    return (bits & (~bits + ONE)) - ONE


@compiled(nogil=True, forceinline=True)
def _list_by_marks(
    span: tuple[Any, Any, Any],
    drawn: Any,
    key: tuple[Any, Any, Any],
    scratch: tuple[Any, Any, Any],
    out: tuple[Any, Any],
    places: Any,
) -> None:
    """List the chosen entries of a row, and its loop, and prefetch each one."""
    start, length, loop = span
    _, _, cols, col_size, vals, val_size = places
    chosen, place, looped = scratch[2], loop - start, U(loop < start + length)
    _choose_by_marks(length - looped, drawn, key, scratch)
    for k in range(drawn):
        e = start + chosen[k] + U(chosen[k] >= place)
        chosen[k] = e
        prefetch(cols + col_size * e)
        prefetch(vals + val_size * e)
    if looped:
        chosen[drawn] = loop
        prefetch(vals + val_size * loop)
    _sort_distinct(chosen, drawn + looped, out)


@compiled(nogil=True, forceinline=True)
def _choose_bits(of: Any, drawn: Any, key: tuple[Any, Any, Any]) -> Any:
    """Return a word with bits for `drawn` of the numbers 0 .. of - 1, which are less than 64."""
    taken = U(0)
    for k in range(drawn):
        pick, last = _pick(of, drawn, key, k)
        taken |= ONE << (last if (taken >> pick) & ONE else pick)
    return taken


@compiled(nogil=True, forceinline=True)
def _choose_by_marks(of: Any, drawn: Any, key: tuple[Any, Any, Any], scratch: tuple[Any, Any, Any]) -> None:
    """Choose `drawn` of the numbers 0 .. of - 1. Numbers share a mark only if there are more numbers than marks."""
    marks, tag, chosen = scratch
    for k in range(drawn):
        pick, last = _pick(of, drawn, key, k)
        taken = marks[pick & (MARKS - ONE)] == tag
        if of > MARKS and taken:
            taken = _contains(chosen, k, pick)
        pick = last if taken else pick
        marks[pick & (MARKS - ONE)] = tag
        chosen[k] = pick


@compiled(nogil=True, forceinline=True)
def _pick(of: Any, drawn: Any, key: tuple[Any, Any, Any], k: Any) -> Any:
    """Return the number that Floyd's algorithm picks in its step k, and the one that it takes if that is taken."""
    counter, first, second = key
    last = of - drawn + k
    return ((hash_index(counter + k, first, second) >> HALF) * (last + ONE)) >> HALF, last


@compiled(nogil=True)
def _contains(numbers: Any, size: Any, number: Any) -> bool:
    """Return whether a number is among the first `size`."""
    found = False
    for k in range(size):
        found |= numbers[k] == number
    return found


@compiled(nogil=True, forceinline=True)
def _sort_distinct(numbers: Any, size: Any, out: tuple[Any, Any]) -> None:
    """Write the first `size` numbers in ascending order to an array, from a place on."""
    entries, at = out
    if size > RANKED:
        entries[at : at + size] = np.sort(numbers[:size])
        return
    for i in range(size):
        rank = at
        for k in range(size):
            rank += U(numbers[k] < numbers[i])
        entries[rank] = numbers[i]


@compiled(nogil=True)
def _copy_entries(
    A: tuple[Any, Any, Any],
    spans: Any,
    part: tuple[Any, Any],
    listed: tuple[Any, Any, Any],
    out: tuple[Any, Any, Any],
) -> None:
    """Copy the listed entries of the rows of a pass to the result, from `at` on. Loops are not rescaled."""
    _, col, val = A
    begin, size = part
    entries, at, fanout = listed
    out_rowptr, out_col, out_val = out
    k = U(0)
    for i in range(size):
        start, length, loop = spans[i, START], spans[i, LENGTH], spans[i, LOOP]
        others = length - U(loop < start + length)
        scale = others / fanout if others > fanout else 1.0
        end = U(out_rowptr[begin + i + ONE]) - at
        while k < end:
            e = entries[k]
            out_col[at + k] = col[e]
            out_val[at + k] = val[e] * (1.0 if e == loop else scale)
            k += ONE


# Frontiers: columns are renumbered by positions in the rows' vertices followed by the other columns, ascending.
#
# A bitmap of all columns with counts of the bits before each word gives the rank of a column among the filled ones, and
# a table the position of each rank. Both fit a cache better than a table of all columns.


@compiled(nogil=True)
def find_frontier(col: Any, vertices: Any, columns: int) -> tuple[Any, tuple[Any, Any, Any]]:
    """Return the vertices and then all other columns, ascending; and a map of columns to positions in this list."""
    own, _ = build_bitmap(vertices, columns)
    bits = own.copy()
    for e in range(U(col.size)):
        j = U(col[e])
        bits[j >> SIX] |= ONE << (j & LOW)
    before = np.empty(bits.size, np.int64)
    filled, others = U(0), U(0)
    for w in range(U(bits.size)):
        before[w] = filled
        filled += popcount(bits[w])
        others += popcount(bits[w] & ~own[w])
    where = bits, before, np.empty(filled, np.uint64)
    frontier = np.empty(U(vertices.size) + others, np.int64)
    _place_columns(vertices, own, where, frontier)
    return frontier, where


@compiled(nogil=True)
def _place_columns(vertices: Any, own: Any, where: tuple[Any, Any, Any], frontier: Any) -> None:
    """Fill the frontier and the positions of its columns."""
    bits, before, positions = where
    at = U(vertices.size)
    for w in range(U(bits.size)):
        others = bits[w] & ~own[w]
        while others:
            below = _mask_below(others)
            positions[U(before[w]) + popcount(bits[w] & below)] = at
            frontier[at] = (w << SIX) + popcount(below)
            others &= others - ONE
            at += ONE
    for i in range(vertices.size - 1, -1, -1):  # the first of equal vertices counts
        frontier[i] = vertices[i]
        positions[_rank(bits, before, U(vertices[i]))] = i


@compiled(nogil=True, forceinline=True)
def _rank(bits: Any, before: Any, column: Any) -> Any:
    """Return the number of filled columns before a column."""
    word = column >> SIX
    return U(before[word]) + popcount(bits[word] & ((ONE << (column & LOW)) - ONE))


@compiled(nogil=True)
def sort_by_position(S: tuple[Any, Any, Any], where: tuple[Any, Any, Any], out: tuple[Any, Any]) -> None:
    """Replace the columns of S by their positions, and sort each row again; equal columns keep their order."""
    rowptr, col, val = S
    bits, before, positions = where
    keys = np.empty(np.diff(rowptr).max() if rowptr.size > 1 else 0, np.uint64)
    for row in range(U(rowptr.size - 1)):
        start, entries = U(rowptr[row]), U(rowptr[row + ONE] - rowptr[row])
        for k in range(entries):
            keys[k] = positions[_rank(bits, before, U(col[start + k]))]
        if entries > RANKED:
            _merge_entries(keys[:entries], val[start : start + entries], (out[0][start:], out[1][start:]))
        else:
            _rank_entries(keys, (val, start), entries, out)


@compiled(nogil=True)
def _rank_entries(keys: Any, of: tuple[Any, Any], entries: Any, out: tuple[Any, Any]) -> None:
    """Write the entries of a row in the order of their keys. A key with its place in the row is unique."""
    val, start = of
    out_col, out_val = out
    for k in range(entries):
        keys[k] = (keys[k] << RANK_BITS) + k
    for i in range(entries):
        rank = start
        for k in range(entries):
            rank += U(keys[k] < keys[i])
        out_col[rank], out_val[rank] = keys[i] >> RANK_BITS, val[start + i]


@compiled(nogil=True)
def _merge_entries(keys: Any, val: Any, out: tuple[Any, Any]) -> None:
    """Write the entries of a long row in the order of their keys."""
    order = np.argsort(keys, kind="mergesort")
    for k in range(order.size):
        out[0][k], out[1][k] = keys[order[k]], val[order[k]]
