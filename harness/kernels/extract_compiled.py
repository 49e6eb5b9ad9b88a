"""The loops of `harness.kernels.extract`. An element of the map is a tag, shifted up, and a place."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.prefetch import prefetch

TAG = 32
PLACE = (1 << TAG) - 1
AHEAD = 24  # entries between asking for an element of the map and reading it


@compiled(nogil=True)
def renumber_columns(
    S: tuple[Any, Any, Any],
    stack: tuple[Any, Any],
    at: tuple[Any, int],
    out: tuple[Any, Any],
    inputs: tuple[Any, Any],
) -> None:
    """Rows in order; within a row, columns ascend again once they have their new numbers."""
    rowptr, col, val = S
    vertices, starts = stack
    where, tag = at
    out_col, out_val = out
    found, found_starts = inputs
    total = 0
    for batch in range(starts.size - 1):
        own, base = (tag + batch) << TAG, total
        total += mark(where, vertices[starts[batch] : starts[batch + 1]], own, found[base:])
        for i in range(starts[batch], starts[batch + 1]):
            for e in range(rowptr[i], rowptr[i + 1]):
                if e + AHEAD < col.size:
                    prefetch(where.ctypes.data + where.itemsize * col[e + AHEAD])
                place = where[col[e]] ^ own
                if place > PLACE or place < 0:
                    place = total - base
                    where[col[e]] = own | place
                    found[total] = col[e]
                    total += 1
                insert(out_col, out_val, rowptr[i], e, place, val[e])
        found_starts[batch + 1] = total


@compiled(nogil=True)
def mark(where: Any, vertices: Any, own: int, found: Any) -> int:
    """Puts vertices on the map, the first of equal ones; returns how many they are."""
    for i in range(vertices.size):
        if i + AHEAD < vertices.size:
            prefetch(where.ctypes.data + where.itemsize * vertices[i + AHEAD])
        found[i] = vertices[i]
        if where[vertices[i]] >> TAG != own >> TAG:
            where[vertices[i]] = own | i
    return int(vertices.size)


@compiled(nogil=True, forceinline=True)
def insert(col: Any, val: Any, first: int, last: int, place: int, value: Any) -> None:
    """Into a stretch that ascends from `first` to before `last`."""
    at = last
    while at > first and col[at - 1] > place:
        col[at], val[at] = col[at - 1], val[at - 1]
        at -= 1
    col[at], val[at] = place, value


@compiled(nogil=True)
def sum_columns(R: tuple[Any, Any, Any], starts: Any, sums: Any, P: tuple[Any, Any, Any]) -> int:
    """Of each batch; `sums` comes and leaves as zeros. Returns how many entries P has."""
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
    """The vertices of every batch, then the chosen ones that are new."""
    vertices, starts = stack
    rowptr, col = chosen
    where, tag = at
    found, found_starts = inputs
    total = 0
    for batch in range(starts.size - 1):
        own = (tag + batch) << TAG
        total += mark(where, vertices[starts[batch] : starts[batch + 1]], own, found[total:])
        for e in range(rowptr[batch], rowptr[batch + 1]):
            if where[col[e]] >> TAG != tag + batch:
                found[total] = col[e]
                total += 1
        found_starts[batch + 1] = total


@compiled(nogil=True)
def keep_columns(
    R: tuple[Any, Any, Any],
    stacks: tuple[Any, Any, Any],
    chosen: tuple[Any, Any, Any],
    at: tuple[Any, int],
    out: tuple[Any, Any, Any],
) -> int:
    """Entries of R in chosen columns, times what is said of these; returns how many they are."""
    rowptr, col, val = R
    starts, inputs, input_starts = stacks
    chosen_rowptr, chosen_col, weight = chosen
    where, tag = at
    out_rowptr, out_col, out_val = out
    kept = 0
    for batch in range(starts.size - 1):
        own = (tag + batch) << TAG
        here = inputs[input_starts[batch] : input_starts[batch + 1]]
        times = np.zeros(mark(where, here, own, here))
        for e in range(chosen_rowptr[batch], chosen_rowptr[batch + 1]):
            times[where[chosen_col[e]] & PLACE] = weight[e]
        for i in range(starts[batch], starts[batch + 1]):
            for e in range(rowptr[i], rowptr[i + 1]):
                if e + AHEAD < col.size:
                    prefetch(where.ctypes.data + where.itemsize * col[e + AHEAD])
                place = where[col[e]] ^ own
                if 0 <= place <= PLACE and times[place] > 0:
                    insert(out_col, out_val, out_rowptr[i], kept, place, val[e] * times[place])
                    kept += 1
            out_rowptr[i + 1] = kept
    return kept
