"""Makes a store, out of core: its adjacency, the data of its vertices, and the manifest of these files:

    adjacency/ORDER/I-J.{rowptr,col}.npy   block (I, J): rowptr and col int32, within the block
    degrees/ORDER.npy                      int32, the nonzeros of every row: A[i, j] is 1 / sqrt(d_i d_j)
    adjacency/ORDER/I-J.val.npy            float64, the weights of weighted edges, before normalisation
    strengths/ORDER.npy                    float64, the sums of weights if A is normalised by them, in place of degrees
    features/I-J.npy                       float32; rows in the columns' order, both ways cut
    labels/ORDER.npy  split/ORDER.npy      int64 (int8 a class if multi-label), uint8, whole
    orders/p.npy                           the index map of a partition; that of a permutation is computed
    orders/edges.npy                       int32, the part of every nonzero by a vertex cut, in the graph's own order

Order 1 exists under a double permutation only, and its adjacency is stored only if the graph is directed: otherwise it
is the transpose of order 0. The bytes of a store do not depend on the memory or on the workers of its build.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from math import ceil, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness import __version__
from harness.errors import RunError, UserError
from harness.files import check_free_space
from harness.graph.partition import VERSION
from harness.ranges import intersect, ranges_between, split
from harness.spec.dataset import COMPUTED, DatasetChoice
from harness.store.adjacency import (
    LAYOUT,
    at_once,
    counts_of,
    degrees_of,
    put_adjacency,
    scatter_edges,
    settle_blocks,
    strengths_of,
)
from harness.store.compose import Contents, check_counts, versions
from harness.store.dataset_card import DatasetCard
from harness.store.entries import BYTES
from harness.store.manifest import FILE, SCHEMA, BlockGrid, Cut, FileRecord, Manifest, Provenance
from harness.store.task import (
    EDGES,
    EVERYTHING,
    ORDER,
    BuildShare,
    MakePartition,
    Means,
    Task,
    ordered,
    orders_stored,
)
from harness.store.work import Work, discard_if_idle, working

# The work and the communication of the parts, counted block by block: the graph is never whole in memory.
#
# Verifier (tests/store/test_cut.py): `harness.graph.partition` of the whole matrix.


def cut_of(task: Task) -> Cut | None:
    """The nonzeros of every part, and the rows of others that it needs, once all blocks are whole; None for blocks."""
    bounds = task.order.bounds
    if bounds is None:
        return None
    before = np.concatenate([[0], np.cumsum(task.work.array("degrees/0"), dtype=np.int64)])
    nonzeros = np.diff(before[list(bounds)]).tolist()
    given = [partial(_needed, task, own) for own in ranges_between(bounds)]
    needed = task.means.in_parallel("counting what parts exchange", given)
    cut = Cut(bounds=bounds, nonzeros=tuple(nonzeros), needed=tuple(needed))
    if task.order.copies is None:
        return cut
    entries = np.bincount(task.work.array(EDGES), minlength=len(bounds) - 1).tolist()
    return cut.model_copy(update={"entries": tuple(entries), "copies": task.order.copies})


def _needed(task: Task, own: range) -> int:
    """Columns outside the part in which its rows have a nonzero, a column of blocks at a time."""
    return sum(_needed_of(task, own, j) for j in range(task.grid.vertices))


def _needed_of(task: Task, own: range, j: int) -> int:
    cols = task.ranges[j]
    filled = np.zeros(len(cols), bool)
    for i, block in enumerate(task.ranges):
        if rows := intersect(block, own):
            name = f"adjacency/0/{i}-{j}"
            ends = task.work.array(f"{name}.rowptr")
            first, last = ends[rows.start - block.start], ends[rows.stop - block.start]
            filled[task.work.array(f"{name}.col")[first:last]] = True
    inside = intersect(cols, own)
    filled[inside.start - cols.start : inside.stop - cols.start] = False
    return int(filled.sum())


# The data of the vertices in a store: labels, split and features, in the order of its rows.

PER_NUMBER = 48
"""Bytes of a worker for each number of the features that it makes."""
AT_ONCE = 1 << 22
"""Vertices that are moved at a time."""


def put_vertices(task: Task) -> None:
    """Puts labels, split, degrees and features, once all blocks are whole."""
    order = task.order
    degrees = _degrees(task)
    y, parts = task.contents.vertices(degrees)
    for number in (0, 1) if order.double else (0,):
        for name, whole in (("labels", y), ("split", parts), ("degrees", degrees)):
            _put_moved(task, f"{name}/{number}", whole, number)
    if task.weights == "normalised":
        strengths = _in_own_order(task, torch.from_numpy(strengths_of(task)))
        for number in (0, 1) if order.double else (0,):
            _put_moved(task, f"strengths/{number}", strengths, number)
    _put_features(task, y, EVERYTHING)


def put_features(task: Task, some: slice) -> None:
    """Puts the features of these rows of blocks."""
    _put_features(task, task.contents.vertices(_degrees(task)).y, some)


def _put_features(task: Task, y: Tensor, some: slice) -> None:
    rows = range(task.grid.vertices)[some]
    task.means.in_parallel("writing features", [partial(_put_rows, task, i, y) for i in rows])


def _degrees(task: Task) -> Tensor:
    """The degrees, in the graph's own order."""
    return _in_own_order(task, torch.from_numpy(degrees_of(task, 0)))


def _in_own_order(task: Task, moved: Tensor) -> Tensor:
    """A vector of the rows of order 0, in the graph's own order."""
    maps = task.order.maps
    if maps is None:
        return moved
    numbers = torch.empty_like(moved)
    for some in _runs(task):
        numbers[maps.rows(0).values_at(some)] = moved[some.start : some.stop]
    return numbers


def _put_moved(task: Task, name: str, whole: Tensor, order: int) -> None:
    """Puts a vector in this order of the rows, unless it is whole already."""
    if task.work.noted(f"{name}.npy"):
        return
    maps = task.order.maps
    with task.work.rows(name, tuple(whole.shape), whole.numpy().dtype) as write:
        for some in _runs(task):
            moved = whole[maps.rows(order).values_at(some)] if maps else whole[some.start : some.stop]
            write(moved.numpy())


def _runs(task: Task) -> list[range]:
    """All positions, in ranges of at most AT_ONCE."""
    return [range(start, min(start + AT_ONCE, task.n)) for start in range(0, task.n, AT_ONCE)]


def _put_rows(task: Task, i: int, y: Tensor) -> None:
    """Puts the features of a block of rows, some rows at a time."""
    rows, width, maps = task.ranges[i], task.contents.width, task.order.maps
    cuts = split(width, task.grid.features)
    if task.work.noted(f"features/{i}-{len(cuts) - 1}.npy"):
        return
    step = max(1, task.share // (PER_NUMBER * max(width, 1)))
    with ExitStack() as files:
        write = [
            files.enter_context(task.work.rows(f"features/{i}-{j}", (len(rows), len(cols)), np.float32))
            for j, cols in enumerate(cuts)
        ]
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            some = range(start, stop) if maps is None else maps.q.values_at(range(start, stop))
            X_NF = task.contents.features(some, y).numpy()
            for put, cols in zip(write, cuts, strict=True):
                put(X_NF[:, cols.start : cols.stop])


BLOCK_NONZEROS = 1 << 22
"""The aim of a block: 16 MB, read in a moment and small beside a rank's share of a large graph."""
FEWEST, MOST = 4, 64
"""The fewest and the most blocks along each side, whatever the aim; never more than vertices."""
BLOCK_FEATURES = 32
"""The fewest feature columns in a block."""
DTYPES = {
    "rowptr": "int32",
    "col": "int32",
    "degrees": "int32",
    "features": "float32",
    "labels": "int64",
    "split": "uint8",
}
"""Values beyond 32 bits, as the row pointers of a block with 2^31 entries, are int64: the head of an array tells."""


class Order(NamedTuple):
    """The order of a store to be made."""

    choice: DatasetChoice
    make_partition: MakePartition = lambda: None


def write(
    contents: Contents,
    folder: Path,
    order: Order,
    means: Means,
    *,
    grid: int | None = None,
    sources: Mapping[str, FileRecord] | None = None,
    unless: Callable[[], bool] = lambda: False,
) -> None:
    """Makes the store of a graph in this order, whole or not at all; continues a build that was stopped.

    `unless` is asked once no other process works on the store: if true, another has built it meanwhile.
    """
    sources = sources or {}
    _check_room(contents, folder, order.choice, grid)
    with working(folder, _settings(contents, grid, means, sources), means.say) as work:
        if unless():
            work.discard()
            return
        try:
            _finish(_task(contents, order, means, grid, work), dict(sources))
        except (UserError, RunError):
            work.discard()  # useless to another card or other files; and a full disk needs the room
            raise


def write_share(
    contents: Contents,
    folder: Path,
    order: Order,
    means: Means,
    share: BuildShare,
    *,
    grid: int | None = None,
    sources: Mapping[str, FileRecord] | None = None,
) -> None:
    """Does one share of a build, beside other jobs. `write` makes the rest, once all jobs have ended."""
    settings = _settings(contents, grid, means, sources or {})
    _check_room(contents, folder, order.choice, grid)
    with working(folder, settings, means.say, together=True) as work:
        if not folder.exists():  # another process may have sealed it before this one joined
            with work.locked("-".join(map(str, share))):
                _do(share, _task(contents, order, means, grid, work))
    discard_if_idle(folder)


def _settings(
    contents: Contents, grid: int | None, means: Means, sources: Mapping[str, FileRecord]
) -> dict[str, Any]:
    """The settings of a build: builders of equal settings can continue each other's work."""
    return {
        "schema": SCHEMA,
        "layout": LAYOUT,
        "side": _grid(contents, grid).vertices,
        "at_once": at_once(means.left(contents.n)),
        "sources": {name: record.sha256 for name, record in sources.items()},
    }


def _check_room(contents: Contents, folder: Path, choice: DatasetChoice, grid: int | None) -> None:
    stored = orders_stored(choice, directed=contents.card.directed)
    check_free_space(folder, _bytes(contents, len(stored), _grid(contents, grid)))


def _task(contents: Contents, order: Order, means: Means, grid: int | None, work: Work) -> Task:
    vertices = ordered(order.choice, contents.n, order.make_partition, work)
    return Task(contents, vertices, _grid(contents, grid), means, at_once(means.left(contents.n)), work)


def _do(share: BuildShare, task: Task) -> None:
    match share.step:
        case "scatter":
            for number in task.stored:
                scatter_edges(task, number, share.part)
        case "settle":
            for number in task.stored:
                settle_blocks(task, number, share.part)
        case "features":
            put_features(task, share.part)


def _finish(task: Task, sources: dict[str, FileRecord]) -> None:
    """Makes everything that is missing, and seals the store."""
    for number in task.stored:
        put_adjacency(task, number)
    check_counts(task.contents.card, task.n, task.contents.width, counts_of(task))
    put_vertices(task)
    task.work.seal(FILE, _manifest(task, sources).text())


def code_versions(card: DatasetCard, choice: DatasetChoice) -> dict[str, int]:
    """The versions of all code that a store of this choice depends on."""
    return versions(card) | ({"partition": VERSION} if choice.partition in COMPUTED else {})


def _manifest(task: Task, sources: dict[str, FileRecord]) -> Manifest:
    card, choice = task.contents.card, task.order.choice
    return Manifest(
        schema_version=SCHEMA,
        **choice.model_dump(exclude={"seed"}),
        seed=choice.drawn_by,
        n=task.n,
        features=task.contents.width,
        task=card.task,
        classes=card.classes,
        directed=card.directed,
        counts=counts_of(task),
        cut=cut_of(task),
        orders=task.stored,
        grid=task.grid,
        dtypes=DTYPES
        | ({"labels": "int8"} if card.task == "multi-label" else {})
        | ({"val": "float64"} if card.weights else {}),
        provenance=Provenance(
            harness=__version__, versions=code_versions(card, choice), card=card.content(), sources=sources
        ),
        files=task.work.files(_names(task)),
    )


def _names(task: Task) -> Iterator[str]:
    """The names of all arrays."""
    blocks, columns = range(task.grid.vertices), range(task.grid.features)
    pieces = ("rowptr", "col", "val") if task.weights else ("rowptr", "col")
    for order, i, j, piece in product(task.stored, blocks, blocks, pieces):
        yield f"adjacency/{order}/{i}-{j}.{piece}"
    vectors = ["degrees", "labels", "split", *(["strengths"] if task.weights == "normalised" else [])]
    for name, order in product(vectors, (0, 1) if task.order.double else (0,)):
        yield f"{name}/{order}"
    yield from (f"features/{i}-{j}" for i, j in product(blocks, columns))
    if task.order.bounds:
        yield ORDER
    if task.order.copies:
        yield EDGES


def _grid(contents: Contents, asked: int | None) -> BlockGrid:
    """The grid of a store, by the source's own count of edges: known before any edge is read."""
    aim = ceil(sqrt(contents.most_entries / BLOCK_NONZEROS))
    side = asked or min(max(aim, FEWEST), MOST, contents.n)
    return BlockGrid(vertices=side, features=max(1, min(side, contents.width // BLOCK_FEATURES)))


def _bytes(contents: Contents, versions: int, grid: BlockGrid) -> int:
    """The most bytes of work and store together: entries twice, first as keys; features; vectors; headers."""
    n, blocks = contents.n, grid.vertices**2
    weights = 16 if contents.card.weights else 0
    adjacency = (BYTES + 4 + weights) * contents.most_entries + 4 * (n * grid.vertices + blocks)
    files = (3 if weights else 2) * versions * blocks + grid.vertices * grid.features + 10
    return versions * adjacency + 4 * n * contents.width + 30 * n + 512 * files
