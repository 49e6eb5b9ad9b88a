"""The adjacency of a store: edges are scattered to their blocks, then blocks are settled (`harness.store.entries`).

A segment holds the entries of a chunk of edges, block by block. Segments are kept until all blocks are whole, and a
whole array is never made again. If rows and columns have one order, no mirror image is written: block (I, J) gets those
of block (J, I) when it is settled, which halves the bytes of the segments.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from harness.errors import UserError
from harness.graph.model import EdgeWeights, Ints, StageCounts
from harness.graph.normalise import LOOP, uneven_weights
from harness.sources.stream import LARGEST_WEIGHT, Edges, Piece
from harness.store.entries import (
    BYTES,
    Blocking,
    Keys,
    Settled,
    UnevenError,
    are_mirrored,
    mirrored,
    scatter,
    settle,
    settle_in_stripes,
    settle_weighted_in_stripes,
)
from harness.store.task import EVERYTHING, Step, Task

SMALLEST, LARGEST = 1 << 12, 1 << 20
"""Edges in a chunk, as memory allows. Larger chunks get new pages from the system each time, which costs more."""
READERS = 16
"""The most pieces of the source that are read at a time."""
LAYOUT = 2
"""The version of the segments: work with segments of another version is discarded."""
PER_EDGE, PER_KEY = 128, 24
"""Bytes of a worker for each edge that is scattered, and for each entry that is settled."""
PER_WEIGHTED_KEY = 72
"""The same for an entry with a weight, whose sort needs a permutation."""


def at_once(memory: int) -> int:
    """Edges in a chunk, within so many bytes for all workers; the number of workers changes no chunk."""
    return min(max(memory // (PER_EDGE * READERS), SMALLEST), LARGEST)


def put_adjacency(task: Task, order: int) -> None:
    """Puts all blocks of an order, and the degrees of its rows."""
    work = task.work
    if not work.noted(f"adjacency-{order}"):
        scatter_edges(task, order)
        settle_blocks(task, order)
        work.note(f"adjacency-{order}", **_counted(task, order))
    shutil.rmtree(work.scratch / _keys(order), ignore_errors=True)
    work.put(f"degrees/{order}", degrees_of(task, order))


def strengths_of(task: Task) -> NDArray[np.float64]:
    """The sums of the weights in the rows of order 0, once all blocks are whole."""
    strengths = np.zeros(task.n)
    for i, rows in enumerate(task.ranges):
        for j in range(task.grid.vertices):
            name = f"adjacency/0/{i}-{j}"
            of_entry = np.repeat(np.arange(len(rows)), np.diff(task.work.array(f"{name}.rowptr")))
            weights = task.work.array(f"{name}.val")
            strengths[rows.start : rows.stop] += np.bincount(of_entry, weights, len(rows))
    return strengths


def counts_of(task: Task) -> StageCounts:
    """The edge counts of a graph whose order 0 is whole."""
    noted = task.work.noted("adjacency-0")
    assert noted is not None
    return StageCounts(
        stored=noted["stored"],
        loops=noted["loops"],
        duplicates=noted["stored"] - noted["originals"],
        nnz_sym=noted["nonzeros"] - task.n,
        nnz_adj=noted["nonzeros"],
    )


def scatter_edges(task: Task, order: int, some: slice = EVERYTHING) -> None:
    """Scatters the edges of these pieces to segments. The last piece is a loop at every vertex."""
    maps = task.order.maps
    rows, cols = (maps.rows(order), maps.cols(order)) if maps else (None, None)
    to = Blocking(task.n, task.grid.vertices, rows, cols)
    given = list(enumerate(_given(task)))[some]
    task.means.in_parallel(
        "scattering", [partial(_scatter, task, order, number, to, *each) for number, each in given], READERS
    )


def settle_blocks(task: Task, order: int, some: slice = EVERYTHING) -> None:
    """Settles these rows of blocks, and counts the degrees in each row of blocks."""
    side, segments = task.grid.vertices, _segments(task, order)
    rows = range(side)[some]
    settle = [partial(_settle, task, order, i, j, segments) for i in rows for j in range(side)]
    task.means.in_parallel("settling", settle)
    task.means.in_parallel("counting", [partial(_put_degrees, task, order, i) for i in rows])


def degrees_of(task: Task, order: int) -> NDArray[np.int32]:
    """The nonzeros of every row, once all blocks are whole."""
    degrees = np.zeros(task.n, np.int32)
    for i, rows in enumerate(task.ranges):
        path = task.work.scratch / _degrees(order, i)
        if not path.exists():
            raise _unfinished(task, "settle")
        degrees[rows.start : rows.stop] = np.fromfile(path, np.int32)
    return degrees


def _given(task: Task) -> list[tuple[Piece, bool]]:
    """The pieces of the source, and the loops, which a source may lack."""
    return [*((piece, False) for piece in task.pieces), (partial(loops, task.n, task.at_once), True)]


def _scatter(task: Task, order: int, number: int, to: Blocking, piece: Piece, added: bool) -> None:
    name = f"scatter/{order}/{number}"
    if task.work.noted(name):
        return
    stored = loops = segments = 0
    for source, target, *given in piece():
        both = not (task.directed or added or _mirrors(task))
        weight = np.full(len(source), np.nan) if added and task.weights else given[0] if given else None
        entries = scatter(source, target, to, both=both, added=added, weight=weight)
        ends = np.concatenate([[0], entries.ends]).astype(np.int64)
        weights = [] if entries.weights is None else [entries.weights]
        task.work.aside(f"{_keys(order)}/{number}-{segments}", ends, entries.keys, *weights)
        segments += 1
        stored += 0 if added else len(source)
        loops += 0 if added else entries.loops
    task.work.note(name, stored=stored, loops=loops, segments=segments)


def loops(n: int, at_once: int) -> Iterator[Edges]:
    """The loops of all vertices, in chunks."""
    for start in range(0, n, at_once):
        some = np.arange(start, min(start + at_once, n))
        yield some, some


class Segment(NamedTuple):
    """A file of keys, block after block, behind the ends of the blocks."""

    path: Path
    ends: Ints
    """0, then the end of every block among the keys."""

    def size(self, block: int) -> int:
        """The keys of a block."""
        return int(self.ends[block + 1] - self.ends[block])

    def read(self, block: int, to: Keys) -> Keys:
        """The keys of a block, in the first places of `to`."""
        keys = to[: self.size(block)]
        self._fill(keys, int(self.ends[block]))
        return keys

    def weights(self, block: int) -> EdgeWeights:
        """The weights of a block's keys, which lie behind all keys."""
        weights = np.empty(self.size(block))
        self._fill(weights, int(self.ends[-1] + self.ends[block]))
        return weights

    def _fill(self, numbers: NDArray[Any], place: int) -> None:
        """Reads numbers of 8 bytes, from a place behind the ends on."""
        file = os.open(
            self.path, os.O_RDONLY
        )  # a fifth of the time of np.fromfile, which counts: blocks are small
        try:
            read = os.preadv(file, [numbers.data], self.ends.nbytes + BYTES * place)
            assert read == numbers.nbytes, self.path
        finally:
            os.close(file)


def _segments(task: Task, order: int) -> list[Segment]:
    """The segments of all pieces."""
    folder, ends = task.work.scratch / _keys(order), task.grid.vertices**2 + 1
    paths = [
        folder / f"{number}-{each}"
        for number, note in enumerate(_scattered(task, order))
        for each in range(note["segments"])
    ]
    return [Segment(path, np.fromfile(path, np.int64, ends)) for path in paths]


def _mirrors(task: Task) -> bool:
    """True if the mirror image of an edge is made when its block is settled: rows and columns have one order."""
    return not (task.directed or task.order.double)


def _scattered(task: Task, order: int) -> list[dict[str, int]]:
    """The notes of all pieces."""
    notes = [task.work.noted(f"scatter/{order}/{number}") for number in range(len(_given(task)))]
    if None in notes:
        raise _unfinished(task, "scatter")
    return [note for note in notes if note is not None]


def _counted(task: Task, order: int) -> dict[str, int]:
    side, scattered = task.grid.vertices, _scattered(task, order)
    settled = [
        task.work.noted(f"adjacency/{order}/{i}-{j}.col.npy") or {} for i in range(side) for j in range(side)
    ]
    return {key: sum(note[key] for note in scattered) for key in ("stored", "loops")} | {
        key: sum(note[key] for note in settled) for key in ("nonzeros", "originals")
    }


def _unfinished(task: Task, step: Step) -> UserError:
    again = f"{task.order.choice.build_command} --share {step}:0/1"
    return UserError(
        f"not all jobs of the step {step} have ended. Wait for these jobs, or do the whole step: {again}"
    )


def _keys(order: int) -> str:
    return f"keys/{order}"


def _degrees(order: int, i: int) -> str:
    return f"degrees/{order}/{i}"


def _settle(task: Task, order: int, i: int, j: int, segments: list[Segment]) -> None:
    name, side = f"adjacency/{order}/{i}-{j}", task.grid.vertices
    if task.work.noted(f"{name}.col.npy"):
        return
    blocks = (i * side + j, *([j * side + i] if _mirrors(task) else []))
    entries, rows = sum(segment.size(b) for segment in segments for b in blocks), len(task.ranges[i])
    if task.weights:
        settled = _settle_weighted(task, order, (i, j), segments, blocks)
    elif entries * PER_KEY <= task.share:
        keys, filled = np.empty(entries, np.uint64), 0
        for segment in segments:
            for turned, block in enumerate(blocks):
                filled += len(_read(segment, block, keys[filled:], bool(turned), diagonal=i == j))
        settled = settle(keys[:filled], rows)
    else:
        settled = settle_in_stripes(
            partial(_pieces, segments, blocks, diagonal=i == j), rows, task.share // PER_KEY
        )
    task.work.put(f"{name}.rowptr", settled.rowptr)
    if settled.val is not None:
        task.work.put(f"{name}.val", settled.val)
    task.work.put(f"{name}.col", settled.col, nonzeros=len(settled.col), originals=settled.originals)


def _settle_weighted(
    task: Task, order: int, at: tuple[int, int], segments: list[Segment], blocks: Sequence[int]
) -> Settled:
    """A block with the weights of its entries. The two directions of an undirected edge must weigh the same."""
    assert task.weights is not None
    (i, j), rows = at, len(task.ranges[at[0]])
    try:
        settled = settle_weighted_in_stripes(
            partial(_weighted_pieces, segments, blocks, diagonal=i == j),
            rows,
            task.share // PER_WEIGHTED_KEY,
            LOOP[task.weights],
            both=not task.directed,
        )
    except UnevenError as uneven:
        row, col, one, other = uneven.args
        target, source = (
            int(maps.values_at(torch.tensor([place]))[0]) if maps else place
            for place, maps in zip(
                (task.ranges[i].start + row, task.ranges[j].start + col),
                (task.order.maps.rows(order), task.order.maps.cols(order))
                if task.order.maps
                else (None, None),
                strict=True,
            )
        )
        raise uneven_weights(source, target, one, other) from None
    assert settled.val is not None
    if not (np.abs(settled.val) <= LARGEST_WEIGHT).all():
        raise UserError(
            f"dataset {task.contents.card.name}: the weights of an edge that is named repeatedly add up to more than "
            f"{LARGEST_WEIGHT:.2g}. Scale all weights down."
        )
    return settled


def _weighted_pieces(
    segments: list[Segment], blocks: Sequence[int], *, diagonal: bool
) -> Iterator[tuple[Keys, EdgeWeights]]:
    """`_pieces` with their weights."""
    for segment in segments:
        for turned, block in enumerate(blocks):
            keys, weights = (
                segment.read(block, np.empty(segment.size(block), np.uint64)),
                segment.weights(block),
            )
            if turned:
                kept = are_mirrored(keys, diagonal=diagonal)
                keys, weights = mirrored(keys, diagonal=diagonal), weights[kept]
            yield keys, weights


def _put_degrees(task: Task, order: int, i: int) -> None:
    """Puts the degrees of a row of blocks, from the row pointers."""
    if (task.work.scratch / _degrees(order, i)).exists():
        return
    degrees = np.zeros(len(task.ranges[i]), np.int32)
    for j in range(task.grid.vertices):
        degrees += np.diff(task.work.array(f"adjacency/{order}/{i}-{j}.rowptr")).astype(np.int32)
    task.work.aside(_degrees(order, i), degrees)


def _read(segment: Segment, block: int, to: Keys, turned: bool, *, diagonal: bool) -> Keys:
    """The keys of a block or, if `turned`, their mirror images, in the first places of `to`."""
    keys = segment.read(block, to)
    return mirrored(keys, diagonal=diagonal) if turned else keys


def _pieces(segments: list[Segment], blocks: Sequence[int], *, diagonal: bool) -> Iterator[Keys]:
    """The keys of a block and, if there are two blocks, the mirror images of the other's, segment by segment."""
    for segment in segments:
        for turned, block in enumerate(blocks):
            yield _read(
                segment, block, np.empty(segment.size(block), np.uint64), bool(turned), diagonal=diagonal
            )
