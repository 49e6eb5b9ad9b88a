"""Policies of caches: which rows of others a rank keeps, by their numbers alone; and which it begins with.

How likely a vertex is in a mini-batch is the analysis of SALIENT++ (Kaler et al., MLSys 2023). A vertex u of the
frontier draws its neighbour v with chance min(1, s / d_u), d_u its neighbours but itself. So with p the chance of being
in the frontier, hop after hop

    1 - p'(v) = (1 - p(v)) product over u of (1 - p(u) min(1, s / d_u)),

as if the vertices of a frontier were independent. The graph is read in stripes of rows, one at a time.
Verifier (tests/sampling/test_caches.py): plain Python, dense matrices, and how often samplers meet a vertex.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.kernels import Csr, row_of
from harness.parallel.row_requests import inside
from harness.strategy import Coordinates, Counts
from strategies.sampling.features import Cache, Held, Keeper, Look, Policy, Stripe
from strategies.sampling.graph_at import Layout


class Keeping(Policy):
    """The rows of most worth stay; the share is one of the rows that each rank had if all had as many."""

    @abstractmethod
    def worth(self, keeper: Keeper) -> Tensor:
        """How much it is worth to a rank to keep the row of a vertex."""

    def kept_by(self, keeper: Keeper) -> Cache:
        n = len(keeper.layout.vertices)
        others = elsewhere(keeper.own, n)
        return Static(top(self.worth(keeper)[others], others, self._slots(keeper.layout, keeper.own)), n)

    def room(self, layout: Layout, at: Coordinates, counts: Counts) -> Held:
        return Held(self._slots(layout, layout.rows(at)), len(layout.vertices))

    def _slots(self, layout: Layout, own: range) -> int:
        n = len(layout.vertices)
        return min(round(self.share * n / len(layout.blocks)), n - len(own))


class Popular(Keeping):
    """The vertices with most listeners, the order in which Quiver fills the memory of GPUs."""

    def worth(self, keeper: Keeper) -> Tensor:
        return listeners(keeper.graph, keeper.layout.blocks, len(keeper.layout.vertices))


class Likeliest(Keeping):
    """The vertices that are likeliest to be in a mini-batch of the rank; with most listeners, where nobody can tell."""

    def worth(self, keeper: Keeper) -> Tensor:
        blocks, n, hops = keeper.layout.blocks, len(keeper.layout.vertices), keeper.sampler.hops()
        if hops is None:
            return listeners(keeper.graph, blocks, n)
        return inclusion(keeper.graph, blocks, keeper.sampler.chances(keeper.group, keeper.targets, n), hops)


@dataclass(frozen=True)
class AtBoundary(Policy):
    """MassiveGNN's buffer of rows at the boundary of a part, at first those of largest degree; it evicts the idle.

    The share is one of the rows at the boundary.
    """

    alpha: float = 0.05
    every: int = 16

    def kept_by(self, keeper: Keeper) -> Cache:
        own, n = keeper.own, len(keeper.layout.vertices)
        reached = edges(keeper.graph(own), own)[1]
        boundary = reached[~inside(reached, own)].unique()
        degree = listeners(keeper.graph, keeper.layout.blocks, n)[boundary]
        kept = top(degree, boundary, round(self.share * len(boundary)))
        return Evicting(kept, boundary, n, self.alpha, self.every)

    def room(self, layout: Layout, at: Coordinates, counts: Counts) -> Held:
        """Two numbers a row that is kept, and two a vertex."""
        rows = round(self.share * sum(layout.boundary(at, counts).arriving().values()))
        return Held(rows, 2 * rows + 2 * len(layout.vertices))


class Static:
    """The same rows all the time."""

    learns = False

    def __init__(self, vertices: Tensor, of: int) -> None:
        """`of` is the number of vertices in the graph."""
        self.vertices = vertices
        self._slot = torch.full((of,), -1)
        self._slot[vertices] = torch.arange(len(vertices))

    def held(self) -> list[Tensor]:
        return [self._slot]

    def look(self, vertices: Tensor) -> Look:
        slot = self._slot[vertices]
        lacking, found = (slot < 0).nonzero()[:, 0], (slot >= 0).nonzero()[:, 0]
        nothing = found[:0]
        return Look(vertices[lacking], lacking, found, slot[found], nothing, nothing)


class Evicting(Static):
    """MassiveGNN's: what was long not asked for makes room for what was often missed (their algorithm 2).

    A row that is kept has a score S_E, one at first; it decays by 1 - alpha with each mini-batch that does without it.
    Others at the boundary have a score S_A; it grows by one with each mini-batch that lacks them. After every so many
    mini-batches, rows whose S_E is no more than (1 - alpha)^every leave for those of largest S_A above zero, and the
    two take over each other's score.
    """

    learns = True

    def __init__(self, vertices: Tensor, boundary: Tensor, of: int, alpha: float, every: int) -> None:
        """It begins with the rows of `vertices`, and takes those of the boundary alone."""
        super().__init__(vertices.clone(), of)
        self.decay, self.every, self._seen = 1 - alpha, every, 0
        self.S_E = torch.ones(len(vertices), dtype=torch.float64)
        self.S_A = torch.full((of,), -torch.inf, dtype=torch.float64)
        self.S_A[boundary] = 0
        self.threshold = float(self.S_E.new_full((every,), self.decay).cumprod(0)[-1])

    def held(self) -> list[Tensor]:
        return [self._slot, self.vertices, self.S_E, self.S_A]

    def look(self, vertices: Tensor) -> Look:
        look = super().look(vertices)
        idle = torch.ones_like(self.S_E, dtype=torch.bool)
        idle[look.slots] = False
        self.S_E[idle] *= self.decay
        self.S_A[look.named] += 1
        self._seen += 1
        return self._swapped(look) if self._seen % self.every == 0 else look

    def _swapped(self, look: Look) -> Look:
        missed = ((self.S_A > 0) & (self._slot < 0)).nonzero()[:, 0]
        slots = (self.threshold >= self.S_E).nonzero()[:, 0][: len(missed)]
        wanted = top(self.S_A[missed], missed, len(slots))
        leaving = self.vertices[slots]
        self.S_A[leaving], self.S_E[slots] = self.S_E[slots], self.S_A[wanted]
        self._slot[leaving], self._slot[wanted] = -1, slots
        self.vertices[slots] = wanted
        named, newcomers = _with(look.named, wanted)
        return look._replace(named=named, freed=slots, newcomers=newcomers)


def _with(named: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The vertices of both lists, each once, those of the first as they stand; and the places of the second's."""
    named = torch.cat([named, wanted[~torch.isin(wanted, named)]])
    ascending, order = named.sort()
    return named, order[torch.searchsorted(ascending, wanted)]


def top(scores: Tensor, vertices: Tensor, number: int) -> Tensor:
    """So many of the vertices, those of the highest scores; of equal ones, the first."""
    return vertices[scores.sort(descending=True, stable=True).indices[:number]]


def elsewhere(own: range, of: int) -> Tensor:
    """All vertices but these."""
    return torch.cat([torch.arange(own.start), torch.arange(own.stop, of)])


def inclusion(graph: Stripe, blocks: Sequence[range], p: Tensor, fanouts: Sequence[int]) -> Tensor:
    """The chance of every vertex to be in a batch's input, `p` that of being in the batch; float64."""
    for fanout in fanouts:
        absent = torch.log1p(-p)
        for rows in blocks:
            u, v = edges(graph(rows), rows)
            degree = u.bincount(minlength=rows.stop).clamp(min=1).double()
            drawn = p[u] * (fanout / degree[u]).clamp(max=1)
            absent += v.bincount(torch.log1p(-drawn), minlength=len(p))
        p = -torch.expm1(absent)
    return p


def listeners(graph: Stripe, blocks: Sequence[range], vertices: int) -> Tensor:
    """How many rows have an entry in the column of every vertex, its own not counted; float64."""
    counts = torch.zeros(vertices, dtype=torch.float64)
    for rows in blocks:
        counts += edges(graph(rows), rows)[1].bincount(minlength=vertices)
    return counts


def edges(A: Csr, rows: range) -> tuple[Tensor, Tensor]:
    """Row and column of every entry of these rows of a graph, loops left out."""
    u, v = row_of(A) + rows.start, A.col.long()
    return u[u != v], v[u != v]
