"""The adjacency of a store: every edge scattered to its block, every block settled (`harness.store.entries`).

Segments hold what a chunk of edges became, block by block; they are kept until all blocks are there. What is whole is
never made again.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.graph.model import StageCounts
from harness.sources.stream import Edges, Piece
from harness.store.entries import BYTES, Keys, Layout, scatter, settle, settle_in_stripes
from harness.store.task import Task

SMALLEST, LARGEST = 1 << 12, 1 << 20
"""Edges in a chunk, as memory allows. Larger ones would get new pages from the system each time, which costs more."""
PER_EDGE, PER_KEY = 128, 24
"""Bytes that a worker needs for an edge while it is scattered, for an entry while it is settled."""


class Tally(NamedTuple):
    """Of the edges that a source gave."""

    stored: int
    loops: int


def at_once(share: int) -> int:
    """Edges in a chunk, for a worker with so many bytes."""
    return min(max(share // PER_EDGE, SMALLEST), LARGEST)


def put_adjacency(task: Task, order: int) -> None:
    """All blocks of an order, and the degrees of its rows."""
    work, side = task.work, task.grid.vertices
    if work.noted(f"adjacency-{order}"):
        return
    tally = _scatter(task, order)
    segments = sorted((work.scratch / str(order)).glob("*.keys"))
    numbers = [divmod(b, side) for b in range(side**2)]
    task.means.in_parallel("settling", [partial(_settle, task, order, i, j, segments) for i, j in numbers])
    work.put(f"degrees/{order}", _degrees(task, order))
    notes = [work.noted(f"adjacency/{order}/{i}-{j}.col.npy") or {} for i, j in numbers]
    found = {key: sum(note[key] for note in notes) for key in ("nonzeros", "originals")}
    work.note(f"adjacency-{order}", **tally._asdict(), **found)
    for segment in segments:
        segment.unlink()


def counts_of(task: Task) -> StageCounts:
    """Of a graph whose order 0 is there."""
    found = task.work.noted("adjacency-0")
    assert found is not None
    return StageCounts(
        stored=found["stored"],
        loops=found["loops"],
        duplicates=found["stored"] - found["originals"],
        nnz_sym=found["nonzeros"] - task.n,
        nnz_adj=found["nonzeros"],
    )


def _scatter(task: Task, order: int) -> Tally:
    """Every edge, and a loop at every vertex, to segments."""
    if done := task.work.noted(f"scatter-{order}"):
        return Tally(**done)
    maps = task.order.maps
    rows, cols = (maps.rows(order), maps.cols(order)) if maps else (None, None)
    to = Layout(task.n, task.grid.vertices, rows, cols)
    pieces = task.contents.stream.pieces(at_once(task.share))
    given = [
        partial(_scatter_piece, task, piece, f"{order}/{number}", to) for number, piece in enumerate(pieces)
    ]
    tallies = task.means.in_parallel("scattering", given)
    _scatter_piece(task, _loops(task), f"{order}/loops", to, added=True)
    tally = Tally(sum(each.stored for each in tallies), sum(each.loops for each in tallies))
    task.work.note(f"scatter-{order}", **tally._asdict())
    return tally


def _scatter_piece(task: Task, piece: Piece, name: str, to: Layout, *, added: bool = False) -> Tally:
    if done := task.work.noted(f"scatter/{name}"):
        return Tally(**done)
    stored = loops = 0
    for number, (source, target) in enumerate(piece()):
        found = scatter(source, target, to, both=not (task.directed or added), added=added)
        _put_segment(task.work.scratch / f"{name}-{number}.keys", found.keys, found.ends)
        stored += len(source)
        loops += found.loops
    task.work.note(f"scatter/{name}", stored=stored, loops=loops)
    return Tally(stored, loops)


def _loops(task: Task) -> Piece:
    def chunks() -> Iterator[Edges]:
        step = at_once(task.share)
        for start in range(0, task.n, step):
            some = np.arange(start, min(start + step, task.n))
            yield some, some

    return chunks


def _settle(task: Task, order: int, i: int, j: int, segments: list[Path]) -> None:
    name, side = f"adjacency/{order}/{i}-{j}", task.grid.vertices
    if task.work.noted(f"{name}.col.npy"):
        return
    places = [_place(segment, i * side + j, side**2) for segment in segments]
    entries, rows = sum(count for _, count in places), len(task.ranges[i])
    if entries * PER_KEY <= task.share:
        keys, filled = np.empty(entries, np.uint64), 0
        for piece in _pieces(segments, places):
            keys[filled : filled + len(piece)] = piece
            filled += len(piece)
        settled = settle(keys, rows)
    else:
        settled = settle_in_stripes(partial(_pieces, segments, places), rows, task.share // PER_KEY)
    task.work.put(f"{name}.rowptr", settled.rowptr)
    task.work.put(f"{name}.col", settled.col, nonzeros=len(settled.col), originals=settled.originals)


def _degrees(task: Task, order: int) -> NDArray[np.int32]:
    """Nonzeros of every row, from the row pointers of its blocks."""
    degrees = np.zeros(task.n, np.int32)
    for i, rows in enumerate(task.ranges):
        for j in range(task.grid.vertices):
            ends = task.work.array(f"adjacency/{order}/{i}-{j}.rowptr")
            degrees[rows.start : rows.stop] += np.diff(ends).astype(np.int32)
    return degrees


def _put_segment(path: Path, keys: Keys, ends: NDArray[np.int64]) -> None:
    """Where the keys of each block end, then the keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.concatenate([[0], ends]).astype(np.int64).tofile(file)
        keys.tofile(file)


def _place(segment: Path, block: int, blocks: int) -> tuple[int, int]:
    """Where in a segment the keys of a block begin, and how many they are."""
    start, stop = np.fromfile(segment, np.int64, 2, offset=8 * block).tolist()
    return 8 * (blocks + 1) + BYTES * start, stop - start


def _pieces(segments: list[Path], places: list[tuple[int, int]]) -> Iterator[Keys]:
    for segment, (start, count) in zip(segments, places, strict=True):
        yield np.fromfile(segment, np.uint64, count, offset=start)
