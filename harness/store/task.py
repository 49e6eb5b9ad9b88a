"""The task of a build: its graph, order, cut, means and work; and the share of one of several jobs.

A job does every so-many-th item of a step:

    1. order      a partition, if one is to be computed; by one job
    2. scatter    pieces of the source
    3. settle     rows of blocks
    4. features   the same rows

A step begins when the step before has ended in all jobs. An ordinary build does the rest, and also seals the store.
"""

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeVar, get_args

import torch

from harness.errors import UserError
from harness.graph.model import Weighting
from harness.graph.order import Map, Orders, TableMap, maps
from harness.graph.partition import Partition
from harness.ranges import split
from harness.sources.stream import Piece
from harness.spec.dataset import DatasetChoice
from harness.store.compose import Contents
from harness.store.manifest import BlockGrid
from harness.store.work import Say, Work, silent

T = TypeVar("T")
GIB = 1 << 30
ORDER = "orders/p"
"""The map of a partition, which a reader of the store could not compute."""
EDGES = "orders/edges"
"""The part of every nonzero by a vertex cut, in the graph's own order."""
SHARED = 24
"""Bytes a vertex that all workers share: labels, split, degrees, the map of a partition both ways."""
REPORT_SECONDS = 2.0
"""Seconds between messages of progress."""
Step = Literal["order", "scatter", "settle", "features"]
STEPS: tuple[Step, ...] = get_args(Step)
EVERYTHING = slice(None)


class BuildShare(NamedTuple):
    """The share of one job in a step of a build."""

    step: Step
    number: int
    jobs: int

    @property
    def part(self) -> slice:
        """The items of the step that are in this share, in their order."""
        return slice(self.number, None, self.jobs)

    def __str__(self) -> str:
        return f"{self.step}:{self.number}/{self.jobs}"


def share(text: str) -> BuildShare:
    """The share STEP:NUMBER/JOBS, the jobs counted from 0."""
    match = re.fullmatch(rf"({'|'.join(STEPS)}):(\d{{1,9}})/(\d{{1,9}})", text)
    if match is None or int(match[2]) >= int(match[3]):
        raise UserError(
            f"--share {text}: a share is STEP:NUMBER/JOBS, as scatter:0/4; the steps are {', '.join(STEPS)}, and the "
            "jobs are counted from 0."
        )
    return BuildShare(match[1], int(match[2]), int(match[3]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Means:
    """The memory and the workers of a build."""

    memory: int = 4 * GIB
    """Bytes, in all."""
    workers: int = 2
    say: Say = field(default=silent, compare=False)
    """Receives messages of progress."""

    def left(self, n: int) -> int:
        """Bytes beside those that all workers share, for a graph of n vertices."""
        return max(self.memory - SHARED * n, self.memory // 4)

    def in_parallel(self, what: str, tasks: Sequence[Callable[[], T]], most: int | None = None) -> list[T]:
        """The results of all tasks, in their order, at most so many at a time. Kernels and files release the GIL."""
        done: list[T] = []
        begun = reported = time.monotonic()
        with ThreadPoolExecutor(min(self.workers, most or self.workers)) as pool:
            for result in pool.map(lambda task: task(), tasks):
                done.append(result)
                now = time.monotonic()
                if now - reported > REPORT_SECONDS:
                    left = (now - begun) * (len(tasks) - len(done)) / len(done)
                    self.say(f"{what}: {len(done)} of {len(tasks)}, {left:.0f} s left")
                    reported = now
        return done


class Ordered(NamedTuple):
    """The order of the vertices in a store."""

    choice: DatasetChoice
    maps: Orders[Map] | None
    """None if every vertex stays in its place."""
    bounds: tuple[int, ...] | None
    """The first vertex of each part of a partition, and the end."""
    copies: tuple[int, ...] | None = None
    """The vertices that each part has a copy of, by a vertex cut."""

    @property
    def double(self) -> bool:
        return self.choice.permutation == "double"


MakePartition = Callable[[], Partition | None]
"""Makes the partition of a choice; None for a choice of blocks."""


def ordered(choice: DatasetChoice, n: int, make_partition: MakePartition, work: Work) -> Ordered:
    """The order of a choice. A partition is made once and kept in the store."""
    if not choice.partitioned:
        return Ordered(choice, maps(choice.permutation, n, choice.seed), None)
    if not work.noted(f"{ORDER}.npy") and (made := make_partition()):
        if made.edges is not None:
            work.put(EDGES, made.edges.numpy())
        work.put(ORDER, made.order.numpy(), bounds=made.bounds, copies=made.copies)
    noted = work.noted(f"{ORDER}.npy")
    assert noted is not None
    table = TableMap(torch.from_numpy(work.array(ORDER)))
    copies = noted.get("copies")
    return Ordered(choice, Orders(table, table), tuple(noted["bounds"]), copies and tuple(copies))


def orders_stored(choice: DatasetChoice, *, directed: bool) -> tuple[int, ...]:
    """The orders whose adjacency is stored; undirected, order 1 is the transpose of order 0."""
    return (0, 1) if choice.permutation == "double" and directed else (0,)


@dataclass(frozen=True)
class Task:
    """One unfinished store."""

    contents: Contents
    order: Ordered
    grid: BlockGrid
    means: Means
    at_once: int
    """Edges in a chunk."""
    work: Work

    @property
    def n(self) -> int:
        return self.contents.n

    @property
    def directed(self) -> bool:
        return self.contents.card.directed

    @property
    def weights(self) -> Weighting | None:
        return self.contents.card.weights

    @property
    def stored(self) -> tuple[int, ...]:
        """The orders whose adjacency is stored."""
        return orders_stored(self.order.choice, directed=self.directed)

    @cached_property
    def ranges(self) -> list[range]:
        """The vertices of every row of blocks, and of every column."""
        return split(self.n, self.grid.vertices)

    @cached_property
    def pieces(self) -> Sequence[Piece]:
        """The pieces of the source; cutting may read the whole source."""
        return self.contents.stream.pieces(self.at_once)

    @property
    def share(self) -> int:
        """Bytes for each worker."""
        return self.means.left(self.n) // self.means.workers
