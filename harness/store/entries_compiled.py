"""The loops of `harness.store.entries`: over edges that become keys, and over sorted keys that become rows."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled

ROW, COL = np.uint64(33), np.uint64(1)
COLUMN = np.uint64((1 << 32) - 1)


@compiled(nogil=True)
def keys_of(
    ends: tuple[Any, Any],
    straight: tuple[Any, Any],
    mirrored: tuple[Any, Any],
    grid: tuple[int, int],
    flags: tuple[bool, bool],
    out: tuple[Any, Any, Any],
) -> tuple[int, int]:
    """Keys and blocks of the entries of some edges, the mirrored one after each, and the entries of every block.

    `straight` and `mirrored` say in which row and column they stand. How many there are, and how many loops.
    """
    source, target = ends
    size, side = grid
    both, added = flags
    keys, blocks, counts = out
    made = loops = 0
    for e in range(source.size):
        loop = source[e] == target[e]
        loops += loop
        for turned in range(1 + (both and not loop)):
            row, col = (mirrored[0][e], mirrored[1][e]) if turned else (straight[0][e], straight[1][e])
            i, j = row // size, col // size
            flag = np.uint64(turned or added)
            keys[made] = (np.uint64(row - i * size) << ROW) | (np.uint64(col - j * size) << COL) | flag
            blocks[made] = i * side + j
            counts[i * side + j] += 1
            made += 1
    return made, loops


@compiled(nogil=True)
def place_keys(keys: Any, blocks: Any, free: Any, placed: Any) -> None:
    """Every key where its block has room, one after the other."""
    for e in range(keys.size):
        b = blocks[e]
        placed[free[b]] = keys[e]
        free[b] += 1


@compiled(nogil=True)
def settle_keys(keys: Any, rowptr: Any, col: Any) -> tuple[int, int]:
    """Columns of sorted keys, each pair once, and how many a row has; how many in all, how many of the source."""
    kept = originals = 0
    before = np.uint64(0)
    for e in range(keys.size):
        key = keys[e]
        if e == 0 or (key >> COL) != (before >> COL):
            col[kept] = (key >> COL) & COLUMN
            rowptr[(key >> ROW) + np.uint64(1)] += 1
            kept += 1
            originals += (key & COL) == np.uint64(0)
        before = key
    return kept, originals


@compiled(nogil=True)
def select_keys(keys: Any, first: int, last: int, chosen: Any) -> int:
    """The keys whose rows are in first .. last - 1; how many."""
    found = 0
    low, high = np.uint64(first) << ROW, np.uint64(last) << ROW
    for e in range(keys.size):
        if low <= keys[e] and keys[e] < high:
            chosen[found] = keys[e]
            found += 1
    return found
