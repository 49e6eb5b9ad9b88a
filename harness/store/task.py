"""What everybody who makes a part of a store knows: of what, in which order, cut how, with which means, where."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch

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
"""The map of a partition, which nobody could compute again."""
SHARED = 24
"""Bytes a vertex that all workers share: labels, split, degrees, the map of a partition both ways."""
PATIENCE = 2.0
"""Seconds after which progress is told."""


@dataclass(frozen=True)
class Means:
    """What a build may use."""

    memory: int = 4 * GIB
    """Bytes, in all."""
    workers: int = 2
    say: Say = field(default=silent, compare=False)
    """Hears of progress."""

    def left(self, n: int) -> int:
        """Bytes beside what all workers share, of a graph of so many vertices."""
        return max(self.memory - SHARED * n, self.memory // 4)

    def in_parallel(self, what: str, tasks: Sequence[Callable[[], T]], most: int | None = None) -> list[T]:
        """The results of all tasks, in their order, at most so many at a time. Kernels and files let others work."""
        done: list[T] = []
        begun = said = time.monotonic()
        with ThreadPoolExecutor(min(self.workers, most or self.workers)) as pool:
            for result in pool.map(lambda task: task(), tasks):
                done.append(result)
                now = time.monotonic()
                if now - said > PATIENCE:
                    left = (now - begun) * (len(tasks) - len(done)) / len(done)
                    self.say(f"{what}: {len(done)} of {len(tasks)}, {left:.0f} s left")
                    said = now
        return done


class Ordered(NamedTuple):
    """The order of the vertices in a store."""

    choice: DatasetChoice
    maps: Orders[Map] | None
    """None if every vertex stays in its place."""
    bounds: tuple[int, ...] | None
    """Where the parts of a partition begin, and the end."""

    @property
    def double(self) -> bool:
        return self.choice.permutation == "double"


Parted = Callable[[], Partition | None]
"""Makes the partition of a choice, if it asks for one."""


def ordered(choice: DatasetChoice, n: int, parted: Parted, work: Work) -> Ordered:
    """The order of a choice. A partition is made once and kept with the store."""
    if not choice.partitioned:
        return Ordered(choice, maps(choice.permutation, n, choice.seed), None)
    if not work.noted(f"{ORDER}.npy") and (made := parted()):
        work.put(ORDER, made.order.numpy(), bounds=made.bounds)
    noted = work.noted(f"{ORDER}.npy")
    assert noted is not None
    table = TableMap(torch.from_numpy(work.array(ORDER)))
    return Ordered(choice, Orders(table, table), tuple(noted["bounds"]))


def orders_stored(choice: DatasetChoice, *, directed: bool) -> tuple[int, ...]:
    """The orders whose adjacency is stored; undirected, order 1 is the transpose of order 0."""
    return (0, 1) if choice.permutation == "double" and directed else (0,)


@dataclass(frozen=True)
class Task:
    """One store in the making."""

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
    def stored(self) -> tuple[int, ...]:
        """The orders whose adjacency is stored."""
        return orders_stored(self.order.choice, directed=self.directed)

    @cached_property
    def ranges(self) -> list[range]:
        """The vertices of every row of blocks, and of every column."""
        return split(self.n, self.grid.vertices)

    @cached_property
    def pieces(self) -> Sequence[Piece]:
        """Of the source: to cut it may take looking through it."""
        return self.contents.stream.pieces(self.at_once)

    @property
    def share(self) -> int:
        """Bytes for each worker."""
        return self.means.left(self.n) // self.means.workers
