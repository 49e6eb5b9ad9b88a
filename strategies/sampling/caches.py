"""Policies of caches: the rows of others with which a rank begins, and the rows that it keeps from then on.

The chance of a vertex to be in a mini-batch follows the analysis of SALIENT++ (Kaler et al., MLSys 2023). A vertex u of
the frontier draws its neighbour v with chance min(1, s / d_u), where d_u is the number of neighbours of u without its
loop. So with p the chance of being in the frontier, hop after hop

    1 - p'(v) = (1 - p(v)) product over u of (1 - p(u) min(1, s / d_u)),

as if the vertices of a frontier were independent. The graph is read in stripes of rows, one at a time.
Verifier (tests/sampling/test_caches.py): plain Python, dense matrices, and the frequencies of vertices in samples.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.kernels import Csr, row_indices
from harness.kernels.jit import compiled
from harness.parallel.row_requests import is_in_block
from harness.strategies.sampling.features import Cache, CachePolicy, Holdings, Keeper, Lookup, ReadRows
from harness.strategies.sampling.graph_placement import BlockLayout
from harness.strategy import Coordinates, Counts

TOGETHER = 8
"""The ranks whose chances are computed in one pass through the graph: as many numbers as a line of a cache has."""


class StaticPolicy(CachePolicy):
    """The rows of highest worth stay for good; the share is one of the n / P rows of an average block row."""

    @abstractmethod
    def worth(self, keepers: Sequence[Keeper]) -> list[Tensor]:
        """The worth of the row of every vertex, to each of some ranks that keep a cache."""

    def build(self, keeper: Keeper) -> Cache:
        return self._filled(keeper, *self.worth([keeper]))

    def caches(self, keepers: Sequence[Keeper]) -> Iterator[Cache]:
        if not self.share:
            yield from super().caches(keepers)
            return
        for first in range(0, len(keepers), TOGETHER):
            some = keepers[first : first + TOGETHER]
            yield from map(self._filled, some, self.worth(some))

    def _filled(self, keeper: Keeper, worth: Tensor) -> "StaticCache":
        n = len(keeper.layout.vertices)
        others = complement(keeper.own, n)
        slots = self._slots(keeper.layout, keeper.own)
        return StaticCache(top(worth[others], others, slots).to(keeper.device), n)

    def size(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        return Holdings(self._slots(layout, layout.rows(at)), len(layout.vertices))

    def _slots(self, layout: BlockLayout, own: range) -> int:
        n = len(layout.vertices)
        return min(round(self.share * n / len(layout.blocks)), n - len(own))


class Popular(StaticPolicy):
    """The vertices with most out-neighbours come first, the order in which Quiver fills the memory of GPUs."""

    def worth(self, keepers: Sequence[Keeper]) -> list[Tensor]:
        return [shared_popularity(keeper) for keeper in keepers]


class Likeliest(StaticPolicy):
    """The vertices likeliest to be in a mini-batch of the rank come first; the popular ones if no chance is known."""

    def worth(self, keepers: Sequence[Keeper]) -> list[Tensor]:
        first = keepers[0]
        blocks, n, hops = first.layout.blocks, len(first.layout.vertices), first.sampler.hops()
        if hops is None:
            return [shared_popularity(keeper) for keeper in keepers]
        chances = [keeper.sampler.chances(keeper.group, keeper.targets, n) for keeper in keepers]
        return inclusion(first.read, blocks, chances, hops, shared_degrees(first))


@dataclass(frozen=True)
class AtBoundary(CachePolicy):
    """MassiveGNN's buffer for the boundary of a part: it begins with the rows of largest degree and evicts idle rows.

    The share is one of the rows at the boundary.
    """

    alpha: float = 0.05
    every: int = 16

    @property
    def learns(self) -> bool:
        return self.share > 0

    def build(self, keeper: Keeper) -> Cache:
        own, n = keeper.own, len(keeper.layout.vertices)
        neighbours = edges(keeper.read(own), own)[1]
        boundary = neighbours[~is_in_block(neighbours, own)].unique()
        degree = shared_popularity(keeper)[boundary]
        first = top(degree, boundary, round(self.share * len(boundary)))
        return EvictingCache(first.to(keeper.device), boundary.to(keeper.device), n, self.alpha, self.every)

    def size(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        """The sizes of the cache: two numbers per slot, and two per vertex."""
        rows = round(self.share * sum(layout.boundary(at, counts).incoming_rows().values()))
        return Holdings(rows, 2 * rows + 2 * len(layout.vertices))


class StaticCache:
    """The same rows all the time."""

    def __init__(self, vertices: Tensor, of: int) -> None:
        """`of` is the number of vertices in the graph."""
        self.vertices, self._of = vertices, of

    @cached_property
    def _slot(self) -> Tensor:
        """The slot of every vertex; -1 for a vertex without one."""
        slot = self.vertices.new_full((self._of,), -1)
        slot[self.vertices] = torch.arange(len(self.vertices), device=slot.device)
        return slot

    def packed(self) -> Callable[[], Cache]:
        return partial(StaticCache, self.vertices, self._of)

    def held(self) -> list[Tensor]:
        return [self._slot]

    def look_up(self, vertices: Tensor) -> Lookup:
        slot = self._slot[vertices]
        misses, hits = (slot < 0).nonzero()[:, 0], (slot >= 0).nonzero()[:, 0]
        nothing = hits[:0]
        return Lookup(vertices[misses], misses, hits, slot[hits], nothing, nothing)


class EvictingCache(StaticCache):
    """MassiveGNN's cache: rows that were idle for long make room for rows that were often missed (its algorithm 2).

    1. A row in the cache has a score S_E, one at first, which decays by 1 - alpha with each mini-batch without the row.
    2. Other vertices at the boundary have a score S_A, which grows by one with each mini-batch that misses the row.
    3. After every `every` mini-batches, rows with S_E of at most (1 - alpha)^every leave for the vertices of largest
       S_A above zero. The two rows take over each other's score.
    """

    def __init__(self, vertices: Tensor, boundary: Tensor, of: int, alpha: float, every: int) -> None:
        """The cache begins with the rows of `vertices`, and takes in rows of `boundary` alone."""
        super().__init__(vertices.clone(), of)
        self.boundary, self.alpha = boundary, alpha
        self.decay, self.every, self._batches = 1 - alpha, every, 0
        self.S_E = torch.ones(len(vertices), dtype=torch.float64, device=vertices.device)
        self.S_A = torch.full((of,), -torch.inf, dtype=torch.float64, device=vertices.device)
        self.S_A[boundary] = 0
        self.threshold = prod([self.decay] * every)

    def packed(self) -> Callable[[], Cache]:
        """Scores S_A are above minus infinity at the boundary alone."""
        made_with = self.vertices, self.boundary, self._of, self.alpha, self.every
        S_E, S_A, batches = self.S_E, self.S_A[self.boundary], self._batches

        def again() -> EvictingCache:
            cache = EvictingCache(*made_with)
            cache.S_E.copy_(S_E)
            cache.S_A[cache.boundary] = S_A
            cache._batches = batches
            return cache

        return again

    def held(self) -> list[Tensor]:
        return [self._slot, self.vertices, self.S_E, self.S_A]

    def look_up(self, vertices: Tensor) -> Lookup:
        lookup = super().look_up(vertices)
        factor = torch.full_like(self.S_E, self.decay)
        factor[lookup.slots] = 1
        self.S_E *= factor
        self.S_A[lookup.requested] += 1
        self._batches += 1
        return self._evict(lookup) if self._batches % self.every == 0 else lookup

    def _evict(self, lookup: Lookup) -> Lookup:
        """Exchanges idle rows for missed ones, and requests the new rows with the misses of this mini-batch."""
        missed = ((self.S_A > 0) & (self._slot < 0)).nonzero()[:, 0]
        slots = (self.threshold >= self.S_E).nonzero()[:, 0][: len(missed)]
        entering, leaving = top(self.S_A[missed], missed, len(slots)), self.vertices[slots]
        self.S_A[leaving], self.S_E[slots] = self.S_E[slots], self.S_A[entering]
        self._slot[leaving], self._slot[entering] = -1, slots
        self.vertices[slots] = entering
        requested, newcomers = _joined(lookup.requested, entering)
        return lookup._replace(requested=requested, freed=slots, newcomers=newcomers)


def _joined(requested: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
    """The first list and then the vertices of the second that are new; and the position of all of the second."""
    joined = torch.cat([requested, entering[~torch.isin(entering, requested)]])
    ascending, order = joined.sort()
    return joined, order[torch.searchsorted(ascending, entering)]


def top(scores: Tensor, vertices: Tensor, number: int) -> Tensor:
    """The vertices of the highest scores, as many as `number`; of equal scores, the first."""
    if number < len(scores):  # most of them are not sorted
        least = scores.topk(number + 1).values[-1]
        kept = (scores >= least).nonzero()[:, 0]
        scores, vertices = scores[kept], vertices[kept]
    return vertices[scores.sort(descending=True, stable=True).indices[:number]]


def complement(own: range, of: int) -> Tensor:
    """All vertices of the graph but a rank's own."""
    return torch.cat([torch.arange(own.start), torch.arange(own.stop, of)])


def inclusion(
    read: ReadRows, blocks: Sequence[range], chances: Sequence[Tensor], fanouts: Sequence[int], degree: Tensor
) -> list[Tensor]:
    """The chances of every vertex to be in the input of a batch, given those to be in the batch; float64.

    There may be several batches, up to `TOGETHER`, which go through the graph together. `degree` is the number of
    neighbours of each vertex without its loop.
    """
    p, drawn = list(chances), [(fanout / degree.clamp(min=1)).clamp(max=1) for fanout in fanouts]
    for share in drawn:  # batch by batch, so that the bits of a batch do not depend on the others
        log_not_drawn = torch.stack([torch.log1p(-(each * share)) for each in p], 1)
        log_absent = torch.stack([torch.log1p(-each) for each in p], 1)
        for strip in strips(blocks):
            A, starts = read(range(strip[0], strip[-1])), np.array(strip)
            sums = log_not_drawn.numpy(), log_absent.numpy()
            add_block_by_block((A.rowptr.numpy(), A.col.numpy()), starts, sums)
        p = [-torch.expm1(each) for each in log_absent.T.contiguous()]
    return p


def shared_degrees(keeper: Keeper) -> Tensor:
    """The neighbours of every vertex, counted once for all ranks that are replayed."""
    blocks, n = keeper.layout.blocks, len(keeper.layout.vertices)
    return keeper.once("degrees", lambda: [degrees(keeper.read, blocks, n)])[0]


def degrees(read: ReadRows, blocks: Sequence[range], vertices: int) -> Tensor:
    """The number of neighbours of every vertex, without its loop; float64."""
    degree = torch.empty(vertices, dtype=torch.float64)
    for strip in strips(blocks):
        A = read(range(strip[0], strip[-1]))
        count_neighbours(A.rowptr.numpy(), A.col.numpy(), strip[0], degree.numpy())
    return degree


def strips(blocks: Sequence[range], most: int = 1 << 20) -> list[list[int]]:
    """Adjacent blocks in strips of at most `most` rows, or one block: the starts of the blocks, and the last end."""
    strips = list[list[int]]()
    for rows in blocks:
        if strips and rows.stop - strips[-1][0] <= most:
            strips[-1].append(rows.stop)
        else:
            strips.append([rows.start, rows.stop])
    return strips


@compiled()
def count_neighbours(rowptr: Any, col: Any, first: int, degree: Any) -> None:
    """Counts the entries of each row without its loop; `first` is the vertex of the first row."""
    for row in range(rowptr.size - 1):
        u = first + row
        count = 0
        for e in range(rowptr[row], rowptr[row + 1]):
            count += col[e] != u
        degree[u] = count


@compiled()
def add_block_by_block(A: tuple[Any, Any], starts: Any, sums: tuple[Any, Any]) -> None:
    """Adds the numbers of each row to the totals of each of its neighbours.

    Numbers are summed within a block first, so the totals do not depend on how many blocks are read at a time.
    """
    rowptr, col = A
    numbers, totals = sums
    width = totals.shape[1]
    within = np.zeros(totals.shape)
    touched = np.empty(totals.shape[0], np.int64)
    is_touched = np.zeros(totals.shape[0], np.bool_)
    for block in range(starts.size - 1):
        count = 0
        for u in range(starts[block], starts[block + 1]):
            if not numbers[u].any():
                continue
            row = u - starts[0]
            for e in range(rowptr[row], rowptr[row + 1]):
                v = col[e]
                if v != u:
                    for batch in range(width):
                        within[v, batch] += numbers[u, batch]
                    if not is_touched[v]:
                        is_touched[v] = True
                        touched[count] = v
                        count += 1
        for place in range(count):
            v = touched[place]
            for batch in range(width):
                totals[v, batch] += within[v, batch]
                within[v, batch] = 0
            is_touched[v] = False


def shared_popularity(keeper: Keeper) -> Tensor:
    """The popularity of every vertex, counted once for all ranks that are replayed."""
    blocks, n = keeper.layout.blocks, len(keeper.layout.vertices)
    return keeper.once("popularity", lambda: [popularity(keeper.read, blocks, n)])[0]


def popularity(read: ReadRows, blocks: Sequence[range], vertices: int) -> Tensor:
    """The number of rows, other than its own, that have an entry in the column of each vertex; float64."""
    counts = torch.zeros(vertices, dtype=torch.float64)
    for strip in strips(blocks, 1 << 16):
        rows = range(strip[0], strip[-1])
        counts += edges(read(rows), rows)[1].bincount(minlength=vertices)
    return counts


def edges(A: Csr, rows: range) -> tuple[Tensor, Tensor]:
    """The row and the column of every entry in these rows of a graph, without loops."""
    u, v = row_indices(A) + rows.start, A.col.long()
    return u[u != v], v[u != v]
