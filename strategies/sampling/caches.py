"""Policies of caches: the rows of others with which a rank begins, and the rows that it keeps from then on.

The chance of a vertex to be in a mini-batch follows the analysis of SALIENT++ (Kaler et al., MLSys 2023). A vertex u of
the frontier draws its neighbour v with chance min(1, s / d_u), where d_u is the number of neighbours of u without its
loop. So with p the chance of being in the frontier, hop after hop

    1 - p'(v) = (1 - p(v)) product over u of (1 - p(u) min(1, s / d_u)),

as if the vertices of a frontier were independent. The graph is read in stripes of rows, one at a time.
Verifier (tests/sampling/test_caches.py): plain Python, dense matrices, and the frequencies of vertices in samples.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
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


class StaticPolicy(CachePolicy):
    """The rows of highest worth stay for good; the share is one of the n / P rows of an average block row."""

    @abstractmethod
    def worth(self, keeper: Keeper) -> Tensor:
        """The worth, to the rank that keeps the cache, of the row of every vertex."""

    def build(self, keeper: Keeper) -> Cache:
        n = len(keeper.layout.vertices)
        others = complement(keeper.own, n)
        slots = self._slots(keeper.layout, keeper.own)
        return StaticCache(top(self.worth(keeper)[others], others, slots).to(keeper.device), n)

    def size(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        return Holdings(self._slots(layout, layout.rows(at)), len(layout.vertices))

    def _slots(self, layout: BlockLayout, own: range) -> int:
        n = len(layout.vertices)
        return min(round(self.share * n / len(layout.blocks)), n - len(own))


class Popular(StaticPolicy):
    """The vertices with most out-neighbours come first, the order in which Quiver fills the memory of GPUs."""

    def worth(self, keeper: Keeper) -> Tensor:
        return shared_popularity(keeper)


class Likeliest(StaticPolicy):
    """The vertices likeliest to be in a mini-batch of the rank come first; the popular ones if no chance is known."""

    def worth(self, keeper: Keeper) -> Tensor:
        blocks, n, hops = keeper.layout.blocks, len(keeper.layout.vertices), keeper.sampler.hops()
        if hops is None:
            return shared_popularity(keeper)
        return inclusion(keeper.read, blocks, keeper.sampler.chances(keeper.group, keeper.targets, n), hops)


@dataclass(frozen=True)
class AtBoundary(CachePolicy):
    """MassiveGNN's buffer for the boundary of a part: it begins with the rows of largest degree and evicts idle rows.

    The share is one of the rows at the boundary.
    """

    alpha: float = 0.05
    every: int = 16

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

    learns = False

    def __init__(self, vertices: Tensor, of: int) -> None:
        """`of` is the number of vertices in the graph."""
        self.vertices = vertices
        self._slot = vertices.new_full((of,), -1)
        self._slot[vertices] = torch.arange(len(vertices), device=vertices.device)

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

    learns = True

    def __init__(self, vertices: Tensor, boundary: Tensor, of: int, alpha: float, every: int) -> None:
        """The cache begins with the rows of `vertices`, and takes in rows of `boundary` alone."""
        super().__init__(vertices.clone(), of)
        self.decay, self.every, self._batches = 1 - alpha, every, 0
        self.S_E = torch.ones(len(vertices), dtype=torch.float64, device=vertices.device)
        self.S_A = torch.full((of,), -torch.inf, dtype=torch.float64, device=vertices.device)
        self.S_A[boundary] = 0
        self.threshold = prod([self.decay] * every)

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
    return vertices[scores.sort(descending=True, stable=True).indices[:number]]


def complement(own: range, of: int) -> Tensor:
    """All vertices of the graph but a rank's own."""
    return torch.cat([torch.arange(own.start), torch.arange(own.stop, of)])


def inclusion(read: ReadRows, blocks: Sequence[range], p: Tensor, fanouts: Sequence[int]) -> Tensor:
    """The chance of every vertex to be in a batch's input, given the chance `p` to be in the batch; float64."""
    degree = torch.empty_like(p)
    for strip in strips(blocks):
        A = read(range(strip[0], strip[-1]))
        count_neighbours(A.rowptr.numpy(), A.col.numpy(), strip[0], degree.numpy())
    for fanout in fanouts:
        log_absent = torch.log1p(-p)
        log_not_drawn = torch.log1p(-(p * (fanout / degree.clamp(min=1)).clamp(max=1)))
        for strip in strips(blocks):
            A, starts = read(range(strip[0], strip[-1])), np.array(strip)
            sums = log_not_drawn.numpy(), log_absent.numpy()
            add_block_by_block((A.rowptr.numpy(), A.col.numpy()), starts, sums)
        p = -torch.expm1(log_absent)
    return p


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
    """Adds the number of each row to the total of each of its neighbours.

    Numbers are summed within a block first, so the totals do not depend on how many blocks are read at a time.
    """
    rowptr, col = A
    number, total = sums
    within = np.zeros(total.size)
    touched = np.empty(total.size, np.int64)
    is_touched = np.zeros(total.size, np.bool_)
    for block in range(starts.size - 1):
        count = 0
        for u in range(starts[block], starts[block + 1]):
            if number[u] == 0:
                continue
            row = u - starts[0]
            for e in range(rowptr[row], rowptr[row + 1]):
                v = col[e]
                if v != u:
                    within[v] += number[u]
                    if not is_touched[v]:
                        is_touched[v] = True
                        touched[count] = v
                        count += 1
        for place in range(count):
            v = touched[place]
            total[v] += within[v]
            within[v] = 0
            is_touched[v] = False


def shared_popularity(keeper: Keeper) -> Tensor:
    """The popularity of every vertex, counted once for all ranks that are replayed."""
    blocks, n = keeper.layout.blocks, len(keeper.layout.vertices)
    return keeper.once("popularity", lambda: [popularity(keeper.read, blocks, n)])[0]


def popularity(read: ReadRows, blocks: Sequence[range], vertices: int) -> Tensor:
    """The number of rows, other than its own, that have an entry in the column of each vertex; float64."""
    counts = torch.zeros(vertices, dtype=torch.float64)
    for rows in blocks:
        counts += edges(read(rows), rows)[1].bincount(minlength=vertices)
    return counts


def edges(A: Csr, rows: range) -> tuple[Tensor, Tensor]:
    """The row and the column of every entry in these rows of a graph, without loops."""
    u, v = row_indices(A) + rows.start, A.col.long()
    return u[u != v], v[u != v]
