"""Turns edges in any order into blocks of an adjacency matrix, out of core: two passes and one sort per block.

    1. scatter   every edge becomes an entry of some block, and its mirror image an entry of another; the entries of a
                 chunk of edges are grouped by block
    2. sort      the entries of a block are sorted, and duplicates are merged

Where rows and columns have the same order, mirror images are made in step 2, from the entries of the mirrored block.

An entry is a 64-bit key: row, column and a flag, with row and column counted from the corner of the block, so that
sorting keys sorts entries. The flag is 0 for edges of the source and 1 for entries that were added (mirror images and
loops), so that duplicates in the source can be counted. The blocks do not depend on how edges are cut into chunks.
The weights of weighted edges are a second array that is permuted like the keys. An added loop has the weight NaN until
its block is sorted, when a loop of the source takes precedence.
Verifier (tests/store/test_entries.py, test_weighted.py): scipy.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from harness.graph.model import EdgeWeights, Ints
from harness.graph.normalise import ASYMMETRY_TOLERANCE
from harness.graph.order import Map
from harness.kernels.jit import compiled

Keys = NDArray[np.uint64]
RowsAndCols = tuple[Ints, Ints]
Chunk = tuple[Keys, EdgeWeights | None]
"""Some entries of a block: their keys, and their weights if edges have weights."""
KEY_BYTES = 8
ROW_SHIFT, COL_SHIFT, COL_MASK = np.uint64(33), np.uint64(1), np.uint64((1 << 32) - 1)
ADDED_FLAG = np.uint64(1)
"""A key is (row << ROW_SHIFT) | (column << COL_SHIFT) | flag."""
MAX_BLOCK_SIZE = 1 << 31
INT32_MAX = (1 << 31) - 1
BINS = 1024
"""The number of row ranges in which the entries of a block are counted, if the block does not fit in memory."""


class Blocking(NamedTuple):
    """How a matrix is cut into square blocks, and the maps of its rows and columns (None for the identity)."""

    n: int
    blocks: int
    """The number of blocks along each side."""
    rows: Map | None = None
    cols: Map | None = None

    @property
    def size(self) -> int:
        """The number of vertices in a block."""
        return -(-self.n // self.blocks)


class ScatteredEntries(NamedTuple):
    """The entries of a chunk of edges, grouped by block."""

    keys: Keys
    ends: Ints
    """The end of each block in `keys`, in row-major order of the blocks."""
    loops: int
    weights: EdgeWeights | None = None
    """In the order of `keys`; None for edges without weights."""


def scatter_entries(
    source: Ints,
    target: Ints,
    to: Blocking,
    *,
    both: bool,
    added: bool = False,
    weight: EdgeWeights | None = None,
) -> ScatteredEntries:
    """Return the entry (target, source) of every edge, and its mirror image if `both`, grouped by block."""
    assert to.size < MAX_BLOCK_SIZE, to.size
    capacity = len(source) * (1 + both)
    keys, blocks = np.empty(capacity, np.uint64), np.empty(capacity, np.int32)
    counts = np.zeros(to.blocks**2, np.int64)
    forward, mirrored = _locate_entries(source, target, to, both=both)
    count, loops = encode_entries(
        (source, target), forward, mirrored, (to.size, to.blocks), (both, added), (keys, blocks, counts)
    )
    ends = np.cumsum(counts)
    grouped = np.empty(count, np.uint64)
    group_by_block(keys[:count], blocks[:count], ends - counts, grouped)
    if weight is None:
        return ScatteredEntries(grouped, ends, loops)
    entry_weights = np.repeat(weight, 1 + (both & (source != target)))
    grouped_weights = np.empty(count)
    group_by_block(entry_weights, blocks[:count], ends - counts, grouped_weights)
    return ScatteredEntries(grouped, ends, loops, grouped_weights)


def mirror_entries(keys: Keys, *, diagonal: bool) -> Keys:
    """Replace entries of block (I, J) by their mirror images in block (J, I), in place. Loops have no mirror image."""
    return keys[: mirror_keys(keys, diagonal)]


def mask_mirrored(keys: Keys, *, diagonal: bool) -> NDArray[np.bool_]:
    """Return a mask of the entries of block (I, J) that have a mirror image."""
    off_diagonal: NDArray[np.bool_] = keys >> ROW_SHIFT != keys >> COL_SHIFT & COL_MASK
    return off_diagonal | (not diagonal)


def _locate_entries(
    source: Ints, target: Ints, to: Blocking, *, both: bool
) -> tuple[RowsAndCols, RowsAndCols]:
    """Return the rows and columns of the entries and, if `both`, of their mirror images."""
    forward = _apply_map(target, to.rows), _apply_map(source, to.cols)
    if not both:
        return forward, forward
    if to.rows is to.cols:
        return forward, forward[::-1]
    return forward, (_apply_map(source, to.rows), _apply_map(target, to.cols))


def _apply_map(vertices: Ints, vertex_map: Map | None) -> Ints:
    return vertices if vertex_map is None else vertex_map.positions_of(torch.from_numpy(vertices)).numpy()


class SortedBlock(NamedTuple):
    """A block in CSR form, or some of its rows."""

    rowptr: NDArray[np.integer]
    """int32 unless the number of entries needs more."""
    col: NDArray[np.int32]
    originals: int
    """The number of distinct entries that the source has."""
    val: EdgeWeights | None = None
    """None for edges without weights."""


class WeightRule(NamedTuple):
    """How the weights of equal entries are merged."""

    loop: float
    """The weight of an added loop."""
    symmetric: bool
    """True if both directions of an edge must have the same weight; an edge given once gets it in both."""


class AsymmetricWeightError(Exception):
    """The first entry of a block whose two directions have different weights: its row and column, and both weights."""


def sort_block(
    keys: Keys, rows: int, weights: EdgeWeights | None = None, rule: WeightRule | None = None
) -> SortedBlock:
    """Return the block with these entries. `keys` is sorted in place.

    Duplicate weights of one direction are added in the order of the source, so the sums do not depend on its chunks.
    """
    order = None if weights is None else np.argsort(keys, kind="stable")
    keys.sort()
    rowptr, col = np.zeros(rows + 1, np.int64), np.empty(len(keys), np.int32)
    count, originals = compress_sorted_keys(keys, rowptr, col)
    np.cumsum(rowptr, out=rowptr)
    col = col[:count].copy() if count < len(col) else col
    val = None if weights is None or rule is None else _merge_weights(keys, weights[order], rule)
    return SortedBlock(narrow_rowptr(rowptr), col, originals, val)


def _merge_weights(keys: Keys, weights: EdgeWeights, rule: WeightRule) -> EdgeWeights:
    """Return one weight for each distinct entry of the sorted keys."""
    val = np.empty(len(keys))
    count, asymmetric, forward, backward = merge_sorted_weights(keys, weights, rule.loop, rule.symmetric, val)
    if asymmetric >= 0:
        row, col = int(keys[asymmetric] >> ROW_SHIFT), int(keys[asymmetric] >> COL_SHIFT & COL_MASK)
        raise AsymmetricWeightError(row, col, forward, backward)
    return val[:count].copy()


def narrow_rowptr(rowptr: Ints) -> NDArray[np.integer]:
    """Return the row pointers in the dtype of the store. With short rows, they are most of its bytes."""
    return rowptr.astype(np.int32 if rowptr[-1] <= INT32_MAX else np.int64)


ReadChunks = Callable[[], Iterable[Chunk]]
"""Reads the entries of a block chunk by chunk, from the beginning at every call."""


def sort_block_in_stripes(
    read_chunks: ReadChunks, rows: int, max_keys: int, rule: WeightRule | None = None
) -> SortedBlock:
    """Like `sort_block`, with at most `max_keys` keys in memory besides the result, unless one stripe has more."""
    width = max(-(-rows // BINS), 1)
    counts = np.zeros(-(-rows // width), np.int64)
    for keys, _ in read_chunks():
        counts += np.bincount((keys >> ROW_SHIFT).astype(np.int64) // width, minlength=len(counts))
    rowptr, cols, vals, originals = np.zeros(rows + 1, np.int64), [], [], 0
    for first, last in _cut_into_stripes(counts, max_keys):
        row_range = range(first * width, min(last * width, rows))
        stripe = _read_rows(read_chunks, row_range, int(counts[first:last].sum()), weighted=rule is not None)
        block = sort_block(stripe[0], rows, stripe[1], rule)
        rowptr[1:] += block.rowptr[1:]
        cols.append(block.col)
        vals.append(block.val)
        originals += block.originals
    col = np.concatenate(cols) if cols else np.zeros(0, np.int32)
    weights = [each for each in vals if each is not None]
    val = None if rule is None else np.concatenate([np.zeros(0), *weights])
    return SortedBlock(narrow_rowptr(rowptr), col, originals, val)


def _read_rows(read_chunks: ReadChunks, rows: range, count: int, *, weighted: bool) -> Chunk:
    """Return the entries of these rows of a block, `count` in all, in the order of the source."""
    keys, weights, filled = np.empty(count, np.uint64), np.empty(count) if weighted else None, 0
    for chunk, chunk_weights in read_chunks():
        out_weights = None if weights is None else weights[filled:]
        filled += select_rows(chunk, chunk_weights, rows.start, rows.stop, keys[filled:], out_weights)
    return keys, weights


def _cut_into_stripes(counts: Ints, max_keys: int) -> list[tuple[int, int]]:
    """Return ranges of adjacent bins with at most `max_keys` keys each; a larger bin is a range by itself."""
    stripes, first, total = [], 0, 0
    for last, count in enumerate(counts.tolist()):
        if total and total + count > max_keys:
            stripes.append((first, last))
            first, total = last, 0
        total += count
    return [*stripes, (first, len(counts))]


# Compiled loops: edges to keys, and sorted keys to rows.


@compiled(nogil=True)
def encode_entries(
    ends: tuple[Any, Any],
    forward: tuple[Any, Any],
    mirrored: tuple[Any, Any],
    grid: tuple[int, int],
    flags: tuple[bool, bool],
    out: tuple[Any, Any, Any],
) -> tuple[int, int]:
    """Fill `out` with the keys and blocks of the entries, each mirror image after its edge, and counts per block.

    `forward` and `mirrored` hold the rows and columns of the entries. Return the number of entries and of loops.
    """
    source, target = ends
    size, side = grid
    both, added = flags
    keys, blocks, counts = out
    count = loops = 0
    for e in range(source.size):
        is_loop = source[e] == target[e]
        loops += is_loop
        for image in range(1 + (both and not is_loop)):
            row, col = (mirrored[0][e], mirrored[1][e]) if image else (forward[0][e], forward[1][e])
            i, j = row // size, col // size
            in_block = np.uint64(row - i * size) << ROW_SHIFT | np.uint64(col - j * size) << COL_SHIFT
            keys[count] = in_block | np.uint64(image or added)
            blocks[count] = i * side + j
            counts[i * side + j] += 1
            count += 1
    return count, loops


@compiled(nogil=True)
def group_by_block(values: Any, blocks: Any, starts: Any, grouped: Any) -> None:
    """Write every value to the next free place of its block. `starts` holds the free places and is advanced."""
    for e in range(values.size):
        b = blocks[e]
        grouped[starts[b]] = values[e]
        starts[b] += 1


@compiled(nogil=True)
def mirror_keys(keys: Any, diagonal: bool) -> int:
    """Replace keys by the keys of their mirror images, all flagged as added; return the number of mirror images."""
    count = 0
    for e in range(keys.size):
        row, col = keys[e] >> ROW_SHIFT, (keys[e] >> COL_SHIFT) & COL_MASK
        keys[count] = (col << ROW_SHIFT) | (row << COL_SHIFT) | ADDED_FLAG
        count += not (diagonal and row == col)
    return count


@compiled(nogil=True)
def compress_sorted_keys(keys: Any, rowptr: Any, col: Any) -> tuple[int, int]:
    """Write the distinct columns of sorted keys, and count them by row.

    Return the number of distinct entries, and how many of them the source has.
    """
    count = originals = 0
    previous = np.uint64(0)
    for e in range(keys.size):
        key = keys[e]
        if e == 0 or (key >> COL_SHIFT) != (previous >> COL_SHIFT):
            col[count] = (key >> COL_SHIFT) & COL_MASK
            rowptr[(key >> ROW_SHIFT) + np.uint64(1)] += 1
            count += 1
            originals += (key & ADDED_FLAG) == np.uint64(0)
        previous = key
    return count, originals


@compiled(nogil=True)
def merge_sorted_weights(
    keys: Any, weights: Any, loop: float, symmetric: bool, val: Any
) -> tuple[int, int, float, float]:
    """Write one weight for each distinct entry of sorted keys.

    Return their number, the position of the first asymmetric entry or -1, and the two weights of this entry.
    """
    e = count = 0
    while e < keys.size:
        start, entry = e, keys[e] >> COL_SHIFT
        forward = backward = 0.0
        originals = images = 0
        while e < keys.size and keys[e] >> COL_SHIFT == entry:
            if keys[e] & ADDED_FLAG == np.uint64(0):
                forward += weights[e]
                originals += 1
            elif not np.isnan(weights[e]):
                backward += weights[e]
                images += 1
            e += 1
        if symmetric and originals and images:
            if abs(forward - backward) > ASYMMETRY_TOLERANCE * max(abs(forward), abs(backward)):
                return count, start, forward, backward
            val[count] = (forward + backward) / 2
        else:
            val[count] = forward if originals else backward if images else loop
        count += 1
    return count, -1, 0.0, 0.0


@compiled(nogil=True)
def select_rows(keys: Any, weights: Any, first: int, last: int, out: Any, out_weights: Any) -> int:
    """Copy the keys of rows first .. last - 1, and their weights unless they are None; return the number of keys."""
    count = 0
    low, high = np.uint64(first) << ROW_SHIFT, np.uint64(last) << ROW_SHIFT
    for e in range(keys.size):
        if low <= keys[e] and keys[e] < high:
            out[count] = keys[e]
            if weights is not None:
                out_weights[count] = weights[e]
            count += 1
    return count
