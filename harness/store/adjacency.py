"""The adjacency of a store: edges are scattered to their blocks, then blocks are settled (`harness.store.entries`).

A segment holds the entries of a chunk of edges, block by block. Segments are kept until all blocks are whole, and a
whole array is never made again.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.graph.model import StageCounts
from harness.sources.stream import Edges, Piece
from harness.store.entries import BYTES, Blocking, Keys, scatter, settle, settle_in_stripes
from harness.store.task import EVERYTHING, Step, Task

SMALLEST, LARGEST = 1 << 12, 1 << 20
"""Edges in a chunk, as memory allows. Larger chunks get new pages from the system each time, which costs more."""
READERS = 16
"""The most pieces of the source that are read at a time."""
PER_EDGE, PER_KEY = 128, 24
"""Bytes of a worker for each edge that is scattered, and for each entry that is settled."""


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
    for source, target in piece():
        entries = scatter(source, target, to, both=not (task.directed or added), added=added)
        ends = np.concatenate([[0], entries.ends]).astype(np.int64)
        task.work.aside(f"{_keys(order)}/{number}-{segments}", ends, entries.keys)
        segments += 1
        stored += 0 if added else len(source)
        loops += 0 if added else entries.loops
    task.work.note(name, stored=stored, loops=loops, segments=segments)


def loops(n: int, at_once: int) -> Iterator[Edges]:
    """The loops of all vertices, in chunks."""
    for start in range(0, n, at_once):
        some = np.arange(start, min(start + at_once, n))
        yield some, some


def _segments(task: Task, order: int) -> list[Path]:
    """The segments of all pieces. A segment holds the end of every block among its keys, then the keys."""
    folder = task.work.scratch / _keys(order)
    return [
        folder / f"{number}-{each}"
        for number, note in enumerate(_scattered(task, order))
        for each in range(note["segments"])
    ]


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


def _put_degrees(task: Task, order: int, i: int) -> None:
    """Puts the degrees of a row of blocks, from the row pointers."""
    if (task.work.scratch / _degrees(order, i)).exists():
        return
    degrees = np.zeros(len(task.ranges[i]), np.int32)
    for j in range(task.grid.vertices):
        degrees += np.diff(task.work.array(f"adjacency/{order}/{i}-{j}.rowptr")).astype(np.int32)
    task.work.aside(_degrees(order, i), degrees)


def _place(segment: Path, block: int, blocks: int) -> tuple[int, int]:
    """The offset and the number of the keys of a block in a segment."""
    start, stop = np.fromfile(segment, np.int64, 2, offset=8 * block).tolist()
    return 8 * (blocks + 1) + BYTES * start, stop - start


def _pieces(segments: list[Path], places: list[tuple[int, int]]) -> Iterator[Keys]:
    for segment, (start, count) in zip(segments, places, strict=True):
        yield np.fromfile(segment, np.uint64, count, offset=start)
