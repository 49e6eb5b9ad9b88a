"""Cache policies: which rows of other ranks a rank caches initially, and which it caches later.

The probability that a vertex is in a mini-batch follows the analysis of SALIENT++ (Kaler et al., MLSys 2023). A vertex
u of the frontier draws its neighbour v with probability min(1, s / d_u), where d_u is the number of neighbours of u
without its self-loop. With p the probability of being in the frontier, each hop gives

    1 - p'(v) = (1 - p(v)) product over u of (1 - p(u) min(1, s / d_u)),

as if the vertices of a frontier were independent. The graph is read in strips of rows, one at a time. Tested in
tests/sampling/test_caches.py against plain Python, dense matrices, and the frequencies of vertices in samples.
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
from harness.strategies.sampling.features import Cache, CacheOwner, CachePolicy, HeldSizes, Lookup, ReadRows
from harness.strategies.sampling.graph_placement import BlockLayout
from harness.strategy import Coordinates, Counts
from harness.strategy.parallel.row_requests import is_in_block

RANKS_PER_PASS = 8
"""The number of ranks whose probabilities are computed in one pass over the graph: one float64 each, a cache line."""


class StaticPolicy(CachePolicy):
    """Caches the rows of highest score and never replaces them. The share is relative to n / P rows."""

    @abstractmethod
    def score_vertices(self, owners: Sequence[CacheOwner]) -> list[Tensor]:
        """Return the score of every vertex for each rank that has a cache."""

    def build_cache(self, owner: CacheOwner) -> Cache:
        return self._build_static_cache(owner, *self.score_vertices([owner]))

    def initial_caches(self, owners: Sequence[CacheOwner]) -> Iterator[Cache]:
        if not self.share:
            yield from super().initial_caches(owners)
            return
        for first in range(0, len(owners), RANKS_PER_PASS):
            some = owners[first : first + RANKS_PER_PASS]
            yield from map(self._build_static_cache, some, self.score_vertices(some))

    def _build_static_cache(self, owner: CacheOwner, scores: Tensor) -> "StaticCache":
        n = len(owner.layout.vertices)
        others = other_vertices(owner.own, n)
        slots = self._count_slots(owner.layout, owner.own)
        return StaticCache(highest_scoring(scores[others], others, slots).to(owner.device), n)

    def cache_sizes(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> HeldSizes:
        """Return the sizes of the cache: one number for each slot, and one for each vertex."""
        slots = self._count_slots(layout, layout.rows(at))
        return HeldSizes(slots, slots + len(layout.vertices))

    def _count_slots(self, layout: BlockLayout, own: range) -> int:
        n = len(layout.vertices)
        return min(round(self.share * n / len(layout.blocks)), n - len(own))


class PopularPolicy(StaticPolicy):
    """Caches the vertices with most out-neighbours, as Quiver fills the memory of GPUs."""

    def score_vertices(self, owners: Sequence[CacheOwner]) -> list[Tensor]:
        return [count_popularity_once(owner) for owner in owners]


class LikelyPolicy(StaticPolicy):
    """Caches the vertices most likely to be in the rank's mini-batches; popular ones if probabilities are unknown."""

    def score_vertices(self, owners: Sequence[CacheOwner]) -> list[Tensor]:
        first = owners[0]
        blocks, n, hops = first.layout.blocks, len(first.layout.vertices), first.sampler.fanouts_per_hop()
        if hops is None:
            return [count_popularity_once(owner) for owner in owners]
        p = [owner.sampler.target_probabilities(owner.group, owner.targets, n) for owner in owners]
        return inclusion_probabilities(first.read, blocks, p, hops, count_neighbours_once(first))


@dataclass(frozen=True)
class EvictingPolicy(CachePolicy):
    """MassiveGNN's buffer for the boundary of a part: starts with the rows of largest degree and evicts idle rows.

    The share is relative to the number of rows at the boundary.
    """

    alpha: float = 0.05
    every: int = 16

    @property
    def learns(self) -> bool:
        return self.share > 0

    def build_cache(self, owner: CacheOwner) -> Cache:
        own, n = owner.own, len(owner.layout.vertices)
        neighbours = list_edges(owner.read(own), own)[1]
        boundary = neighbours[~is_in_block(neighbours, own)].unique()
        degree = count_popularity_once(owner)[boundary]
        first = highest_scoring(degree, boundary, round(self.share * len(boundary)))
        return EvictingCache(first.to(owner.device), boundary.to(owner.device), n, self.alpha, self.every)

    def cache_sizes(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> HeldSizes:
        """Return the sizes of the cache: two numbers for each slot, one at the boundary, and two for each vertex."""
        boundary = sum(layout.boundary(at, counts).incoming_rows().values())
        rows = round(self.share * boundary)
        return HeldSizes(rows, 2 * rows + boundary + 2 * len(layout.vertices))


class StaticCache:
    """A cache whose rows never change."""

    def __init__(self, vertices: Tensor, of: int) -> None:
        """Cache the rows of `vertices`; `of` is the number of vertices in the graph."""
        self.vertices, self._of = vertices, of

    @cached_property
    def _slot(self) -> Tensor:
        """The slot of every vertex; -1 for a vertex without one."""
        slot = self.vertices.new_full((self._of,), -1)
        slot[self.vertices] = torch.arange(len(self.vertices), device=slot.device)
        return slot

    def pack(self) -> Callable[[], Cache]:
        return partial(StaticCache, self.vertices, self._of)

    def held_tensors(self) -> list[Tensor]:
        return [self._slot, self.vertices]

    def look_up(self, vertices: Tensor) -> Lookup:
        slot = self._slot[vertices]
        misses, hits = (slot < 0).nonzero()[:, 0], (slot >= 0).nonzero()[:, 0]
        empty = hits[:0]
        return Lookup(vertices[misses], misses, hits, slot[hits], empty, empty)


class EvictingCache(StaticCache):
    """MassiveGNN's cache: replaces idle rows by rows that were often missed (its algorithm 2).

    1. A row in the cache has a score S_E, initially 1, which is multiplied by 1 - alpha in each mini-batch without it.
    2. Other vertices at the boundary have a score S_A, which grows by 1 in each mini-batch that misses them.
    3. After every `every` mini-batches, the vertices of largest S_A above zero replace rows whose S_E is at most
       (1 - alpha)^every. The two rows swap their scores.
    """

    def __init__(self, vertices: Tensor, boundary: Tensor, of: int, alpha: float, every: int) -> None:
        """Cache the rows of `vertices` initially, and only rows of `boundary` later."""
        super().__init__(vertices.clone(), of)
        self.boundary, self.alpha = boundary, alpha
        self.decay, self.every, self._batches = 1 - alpha, every, 0
        self.S_E = torch.ones(len(vertices), dtype=torch.float64, device=vertices.device)
        self.S_A = torch.full((of,), -torch.inf, dtype=torch.float64, device=vertices.device)
        self.S_A.index_fill_(0, boundary, 0)
        self.threshold = prod([self.decay] * every)

    def pack(self) -> Callable[[], Cache]:
        """Scores S_A are above minus infinity only at the boundary, so only these are kept."""
        arguments = self.vertices, self.boundary, self._of, self.alpha, self.every
        S_E, S_A, batches = self.S_E, self.S_A[self.boundary], self._batches

        def unpack() -> EvictingCache:
            cache = EvictingCache(*arguments)
            cache.S_E.copy_(S_E)
            cache.S_A[cache.boundary] = S_A
            cache._batches = batches
            return cache

        return unpack

    def held_tensors(self) -> list[Tensor]:
        return [*super().held_tensors(), self.boundary, self.S_E, self.S_A]

    def look_up(self, vertices: Tensor) -> Lookup:
        lookup = super().look_up(vertices)
        factor = torch.full_like(self.S_E, self.decay)
        factor.index_fill_(0, lookup.slots, 1)
        self.S_E *= factor
        self.S_A[lookup.requested] += 1
        self._batches += 1
        return self._evict(lookup) if self._batches % self.every == 0 else lookup

    def _evict(self, lookup: Lookup) -> Lookup:
        """Replace idle rows by missed ones, and request the new rows with the misses of this mini-batch."""
        missed = ((self.S_A > 0) & (self._slot < 0)).nonzero()[:, 0]
        slots = (self.threshold >= self.S_E).nonzero()[:, 0][: len(missed)]
        entering, leaving = highest_scoring(self.S_A[missed], missed, len(slots)), self.vertices[slots]
        self.S_A[leaving], self.S_E[slots] = self.S_E[slots], self.S_A[entering]
        self._slot.index_fill_(0, leaving, -1)
        self._slot[entering] = slots
        self.vertices[slots] = entering
        requested, newcomers = _append_new(lookup.requested, entering)
        return lookup._replace(requested=requested, freed=slots, newcomers=newcomers)


def _append_new(requested: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
    """Append the new vertices of the second list to the first; return the result and the second's positions in it."""
    joined = torch.cat([requested, entering[~torch.isin(entering, requested)]])
    ascending, order = joined.sort()
    return joined, order[torch.searchsorted(ascending, entering)]


def highest_scoring(scores: Tensor, vertices: Tensor, number: int) -> Tensor:
    """Return the `number` vertices of highest scores; of equal scores, the first."""
    if number < len(scores):  # the others need not be sorted
        least = scores.topk(number + 1).values[-1]
        kept = (scores >= least).nonzero()[:, 0]
        scores, vertices = scores[kept], vertices[kept]
    return vertices[scores.sort(descending=True, stable=True).indices[:number]]


def other_vertices(own: range, of: int) -> Tensor:
    """Return all vertices of the graph except a rank's own."""
    return torch.cat([torch.arange(own.start), torch.arange(own.stop, of)])


def inclusion_probabilities(
    read: ReadRows, blocks: Sequence[range], p: Sequence[Tensor], fanouts: Sequence[int], degree: Tensor
) -> list[Tensor]:
    """Return the probability (float64) that each vertex is in a batch's input, given `p`, that it is in the batch.

    There may be several batches, up to `RANKS_PER_PASS`, which share one pass over the graph. `degree` is the number of
    neighbours of each vertex without its loop.
    """
    p, drawn = list(p), [(fanout / degree.clamp(min=1)).clamp(max=1) for fanout in fanouts]
    for share in drawn:  # batch by batch, so that the bits of a batch do not depend on the others
        log_not_drawn = torch.stack([torch.log1p(-(each * share)) for each in p], 1)
        log_absent = torch.stack([torch.log1p(-each) for each in p], 1)
        for strip in group_into_strips(blocks):
            A, starts = read(range(strip[0], strip[-1])), np.array(strip)
            sums = log_not_drawn.numpy(), log_absent.numpy()
            add_block_by_block((A.rowptr.numpy(), A.col.numpy()), starts, sums)
        p = [-torch.expm1(each) for each in log_absent.T.contiguous()]
    return p


def count_neighbours_once(owner: CacheOwner) -> Tensor:
    """Count the neighbours of every vertex, once for all replayed ranks."""
    blocks, n = owner.layout.blocks, len(owner.layout.vertices)
    return owner.once("degrees", lambda: [count_all_neighbours(owner.read, blocks, n)])[0]


def count_all_neighbours(read: ReadRows, blocks: Sequence[range], vertices: int) -> Tensor:
    """Return the number of neighbours of every vertex, without its loop (float64)."""
    degree = torch.empty(vertices, dtype=torch.float64)
    for strip in group_into_strips(blocks):
        A = read(range(strip[0], strip[-1]))
        count_neighbours(A.rowptr.numpy(), A.col.numpy(), strip[0], degree.numpy())
    return degree


def group_into_strips(blocks: Sequence[range], most: int = 1 << 20) -> list[list[int]]:
    """Group adjacent blocks into strips of at most `most` rows; return each as its blocks' starts and its end."""
    strips = list[list[int]]()
    for rows in blocks:
        if strips and rows.stop - strips[-1][0] <= most:
            strips[-1].append(rows.stop)
        else:
            strips.append([rows.start, rows.stop])
    return strips


@compiled()
def count_neighbours(rowptr: Any, col: Any, first: int, degree: Any) -> None:
    """Count the entries of each row without its self-loop; `first` is the vertex of the first row."""
    for row in range(rowptr.size - 1):
        u = first + row
        count = 0
        for e in range(rowptr[row], rowptr[row + 1]):
            count += col[e] != u
        degree[u] = count


@compiled()
def add_block_by_block(A: tuple[Any, Any], starts: Any, sums: tuple[Any, Any]) -> None:
    """Add the numbers of each row to the totals of each of its neighbours.

    Numbers are first summed within a block, so that the totals do not depend on how many blocks are read together.
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


def count_popularity_once(owner: CacheOwner) -> Tensor:
    """Count the popularity of every vertex, once for all replayed ranks."""
    blocks, n = owner.layout.blocks, len(owner.layout.vertices)
    return owner.once("popularity", lambda: [count_popularity(owner.read, blocks, n)])[0]


def count_popularity(read: ReadRows, blocks: Sequence[range], vertices: int) -> Tensor:
    """Return the number of other rows that have an entry in each vertex's column (float64)."""
    counts = torch.zeros(vertices, dtype=torch.float64)
    for strip in group_into_strips(blocks, 1 << 16):
        rows = range(strip[0], strip[-1])
        counts += list_edges(read(rows), rows)[1].bincount(minlength=vertices)
    return counts


def list_edges(A: Csr, rows: range) -> tuple[Tensor, Tensor]:
    """Return the row and the column of every entry in these rows of a graph, without self-loops."""
    u, v = row_indices(A) + rows.start, A.col.long()
    return u[u != v], v[u != v]
