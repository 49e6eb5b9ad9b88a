"""Edges in any order become the blocks of an adjacency, out of core, by two passes and one sort for each block:

    1. scatter   an edge becomes an entry of some block, and its mirror image another; a chunk lies block by block
    2. settle    the entries of a block are sorted, and each pair is kept once

Where rows and columns have one order, mirror images are made in step 2, from the entries of the mirrored block.

An entry is one number of 64 bits: row, column and a flag, both counted from the block's corner, so that sorting numbers
sorts entries. The flag is 0 for edges of the source and 1 for added entries (mirror images and loops), so that
repetitions in the source can be counted. The blocks do not depend on the cut of the edges into chunks.
Weights, where edges carry them, are a second array that is moved as the keys are. The weight of an added loop is NaN
until the loop is settled, where an original takes its place.
Verifier (tests/store/test_entries.py, test_weighted.py): scipy.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from harness.graph.model import EdgeWeights, Ints
from harness.graph.normalise import UNEVEN
from harness.graph.order import Map
from harness.kernels.jit import compiled

Keys = NDArray[np.uint64]
Ends = tuple[Ints, Ints]
BYTES = 8
"""The size of a key."""
LARGEST_SIDE = 1 << 31
LARGEST_32 = (1 << 31) - 1
ROW_BITS = 33
BINS = 1024
"""The stripes of rows in which the entries of a block are counted, if the block does not fit in memory."""


class Blocking(NamedTuple):
    """The cut of a matrix into square blocks, and the maps of its rows and columns, None for the identity."""

    n: int
    blocks: int
    """The blocks along each side."""
    rows: Map | None = None
    cols: Map | None = None

    @property
    def size(self) -> int:
        """Vertices of a block."""
        return -(-self.n // self.blocks)


class Scattered(NamedTuple):
    """The entries of a chunk."""

    keys: Keys
    """Block after block."""
    ends: Ints
    """The end of each block among the keys, row by row of blocks."""
    loops: int
    weights: EdgeWeights | None = None
    """In the order of the keys; None for edges without weights."""


def scatter(
    source: Ints,
    target: Ints,
    to: Blocking,
    *,
    both: bool,
    added: bool = False,
    weight: EdgeWeights | None = None,
) -> Scattered:
    """The entries of some edges: (target, source) and, with `both`, its mirror image."""
    assert to.size < LARGEST_SIDE, to.size
    most = len(source) * (1 + both)
    keys, blocks, counts = (
        np.empty(most, np.uint64),
        np.empty(most, np.int32),
        np.zeros(to.blocks**2, np.int64),
    )
    straight, mirrored = _places(source, target, to, both=both)
    grid, flags, out = (to.size, to.blocks), (both, added), (keys, blocks, counts)
    made, loops = keys_of((source, target), straight, mirrored, grid, flags, out)
    stops = np.cumsum(counts)
    placed = np.empty(made, np.uint64)
    place_keys(keys[:made], blocks[:made], stops - counts, placed)
    if weight is None:
        return Scattered(placed, stops, loops)
    of_keys, weights = np.repeat(weight, 1 + (both & (source != target))), np.empty(made)
    place_keys(of_keys, blocks[:made], stops - counts, weights)
    return Scattered(placed, stops, loops, weights)


def mirrored(keys: Keys, *, diagonal: bool) -> Keys:
    """The entries of block (I, J) replaced by their mirror images in block (J, I); loops on the diagonal have none."""
    return keys[: mirror_keys(keys, diagonal)]


def are_mirrored(keys: Keys, *, diagonal: bool) -> NDArray[np.bool_]:
    """True for the entries of block (I, J) that have a mirror image."""
    off: NDArray[np.bool_] = keys >> ROW != keys >> COL & COLUMN
    return off | (not diagonal)


def _places(source: Ints, target: Ints, to: Blocking, *, both: bool) -> tuple[Ends, Ends]:
    """The rows and columns of the entries of these edges and, with `both`, of the mirror images."""
    straight = _moved(target, to.rows), _moved(source, to.cols)
    if not both:
        return straight, straight
    if to.rows is to.cols:
        return straight, straight[::-1]
    return straight, (_moved(source, to.rows), _moved(target, to.cols))


def _moved(vertices: Ints, by: Map | None) -> Ints:
    return vertices if by is None else by.positions_of(torch.from_numpy(vertices)).numpy()


class Settled(NamedTuple):
    """A block, or some of its rows."""

    rowptr: NDArray[np.integer]
    """The row pointers, of 32 bits unless the entries need more."""
    col: NDArray[np.int32]
    originals: int
    """The different entries of the source."""
    val: EdgeWeights | None = None
    """The weights of the entries; None for edges without weights."""


class UnevenError(Exception):
    """The first entry of a block whose two directions weigh differently: its place, and both weights."""


def settle(keys: Keys, rows: int) -> Settled:
    """The block of these keys, which are sorted in place."""
    keys.sort()
    rowptr, col = np.zeros(rows + 1, np.int64), np.empty(len(keys), np.int32)
    kept, originals = settle_keys(keys, rowptr, col)
    np.cumsum(rowptr, out=rowptr)
    return Settled(narrowed(rowptr), col[:kept].copy() if kept < len(col) else col, originals)


def settle_weighted(keys: Keys, weights: EdgeWeights, rows: int, loop: float, *, both: bool) -> Settled:
    """The block of these keys with their weights; `loop` is the weight of an added loop.

    Weights of one direction are summed in the order of the source, whatever its chunks. With `both`, an entry has the
    mean of two directions that weigh the same, or the weight of the only one.
    """
    order = np.argsort(keys, kind="stable")
    settled, val = settle(keys, rows), np.empty(len(keys))
    wrong, one, other = settle_values(keys, weights[order], loop, both, val)
    if wrong >= 0:
        raise UnevenError(int(keys[wrong] >> ROW), int(keys[wrong] >> COL & COLUMN), one, other)
    return settled._replace(val=val[: len(settled.col)].copy())


def narrowed(rowptr: Ints) -> NDArray[np.integer]:
    """The row pointers as the store keeps them. With short rows, they are most of its bytes."""
    return rowptr.astype(np.int32 if rowptr[-1] <= LARGEST_32 else np.int64)


Reader = Callable[[], Iterable[Keys]]
"""The keys of a block, piece by piece; again at every call."""


def settle_in_stripes(pieces: Reader, rows: int, at_once: int) -> Settled:
    """`settle` with at most so many keys in memory beside the result, unless a stripe of rows has more."""
    width = max(-(-rows // BINS), 1)
    counts = np.zeros(-(-rows // width), np.int64)
    for keys in pieces():
        counts += np.bincount((keys >> np.uint64(ROW_BITS)).astype(np.int64) // width, minlength=len(counts))
    rowptr, cols, originals = np.zeros(rows + 1, np.int64), [], 0
    for first, last in _stripes(counts, at_once):
        top, bottom = first * width, min(last * width, rows)
        stripe, filled = np.empty(int(counts[first:last].sum()), np.uint64), 0
        for keys in pieces():
            filled += select_keys(keys, top, bottom, stripe[filled:])
        settled = settle(stripe, rows)
        rowptr[1:] += settled.rowptr[1:]
        cols.append(settled.col)
        originals += settled.originals
    return Settled(narrowed(rowptr), np.concatenate(cols) if cols else np.zeros(0, np.int32), originals)


def settle_weighted_in_stripes(
    pieces: "WeightedReader", rows: int, at_once: int, loop: float, *, both: bool
) -> Settled:
    """`settle_weighted` with at most so many keys in memory beside the result."""
    width = max(-(-rows // BINS), 1)
    counts = np.zeros(-(-rows // width), np.int64)
    for keys, _ in pieces():
        counts += np.bincount((keys >> ROW).astype(np.int64) // width, minlength=len(counts))
    rowptr, cols, vals, originals = np.zeros(rows + 1, np.int64), [], [], 0
    for first, last in _stripes(counts, at_once):
        top, bottom = np.uint64(first * width) << ROW, np.uint64(min(last * width, rows)) << ROW
        chosen = [
            (keys[inside], weights[inside])
            for keys, weights in pieces()
            for inside in [(top <= keys) & (keys < bottom)]
        ]
        keys, weights = (np.concatenate(each) for each in zip(*chosen, strict=True))
        settled = settle_weighted(keys, weights, rows, loop, both=both)
        assert settled.val is not None
        rowptr[1:] += settled.rowptr[1:]
        cols.append(settled.col)
        vals.append(settled.val)
        originals += settled.originals
    col = np.concatenate([np.zeros(0, np.int32), *cols])
    return Settled(narrowed(rowptr), col, originals, np.concatenate([np.zeros(0), *vals]))


WeightedReader = Callable[[], Iterable[tuple[Keys, EdgeWeights]]]
"""The keys of a block and their weights, piece by piece; again at every call."""


def _stripes(counts: Ints, at_once: int) -> list[tuple[int, int]]:
    """Ranges of neighbouring bins, none with more than `at_once` keys unless one bin alone has more."""
    stripes, first, held = [], 0, 0
    for last, count in enumerate(counts.tolist()):
        if held and held + count > at_once:
            stripes.append((first, last))
            first, held = last, 0
        held += count
    return [*stripes, (first, len(counts))]


# The compiled loops: edges become keys, and sorted keys become rows.

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
    """Fills `out` with the keys and the blocks of some edges, each mirror image after its edge, and counts by block.

    `straight` and `mirrored` hold the rows and columns of the entries. Returns the number of entries and of loops.
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
    """Puts every key at the next free place of its block."""
    for e in range(keys.size):
        b = blocks[e]
        placed[free[b]] = keys[e]
        free[b] += 1


@compiled(nogil=True)
def mirror_keys(keys: Any, diagonal: bool) -> int:
    """Turns keys into those of mirror images, all flagged; returns the number of these."""
    made = 0
    for e in range(keys.size):
        row, col = keys[e] >> ROW, (keys[e] >> COL) & COLUMN
        keys[made] = (col << ROW) | (row << COL) | np.uint64(1)
        made += not (diagonal and row == col)
    return made


@compiled(nogil=True)
def settle_keys(keys: Any, rowptr: Any, col: Any) -> tuple[int, int]:
    """Fills the columns of sorted keys, each pair once, and counts by row; returns the pairs, all and of the source."""
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
def settle_values(keys: Any, weights: Any, loop: float, both: bool, val: Any) -> tuple[int, float, float]:
    """Fills the weights of sorted keys, each pair once. Returns the first uneven pair or -1, and its two weights."""
    e = kept = 0
    while e < keys.size:
        begin, entry = e, keys[e] >> COL
        straight = turned = 0.0
        originals = images = 0
        while e < keys.size and keys[e] >> COL == entry:
            if keys[e] & COL == np.uint64(0):
                straight += weights[e]
                originals += 1
            elif not np.isnan(weights[e]):
                turned += weights[e]
                images += 1
            e += 1
        if both and originals and images:
            if abs(straight - turned) > UNEVEN * max(abs(straight), abs(turned)):
                return begin, straight, turned
            val[kept] = (straight + turned) / 2
        else:
            val[kept] = straight if originals else turned if images else loop
        kept += 1
    return -1, 0.0, 0.0


@compiled(nogil=True)
def select_keys(keys: Any, first: int, last: int, chosen: Any) -> int:
    """Copies the keys of the rows first .. last - 1; returns the number of these keys."""
    copied = 0
    low, high = np.uint64(first) << ROW, np.uint64(last) << ROW
    for e in range(keys.size):
        if low <= keys[e] and keys[e] < high:
            chosen[copied] = keys[e]
            copied += 1
    return copied
