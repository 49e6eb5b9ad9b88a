"""A road-like graph: a grid with missing edges and a few diagonals. Low degrees, long paths, banded order.

Vertex i * width + j may have an edge to the right, one down (chance `keep` each) and one down to the right
(chance `diagonal`). Two further steps towards a road map work on whole graphs: `subdivided` turns edges into
chains, `largest_component` drops the islands and with them an unforeseeable number of vertices.

Stated statistics, 1000 x 1000 with the usual chances, largest component: 89 % of the vertices, mean degree 2.37,
largest degree 6, degrees 1 to 4 in the shares .18 .39 .33 .11; europe_osm has mean degree 2.12, which `inner`
= 1.73 reaches.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harness.graph.model import Ints, RawGraph
from harness.kernels.random import Purpose, uniform
from harness.sources.source import Rest, Size, Source, generate
from harness.sources.stream import Stream, stream_of
from harness.validation import DEGREE

SIDE = 1 << 20
"""The most vertices along a side."""
SLOTS = 3
"""Places for an edge at each vertex: right, down, diagonal."""


@dataclass(frozen=True)
class Lattice:
    """The generator: draw 3 v + s decides whether slot s of vertex v has an edge."""

    height: int
    width: int
    seed: int
    keep: float = 0.55
    diagonal: float = 0.01

    chunk: ClassVar[int] = 1 << 16
    version: ClassVar[int] = 1

    @property
    def n(self) -> int:
        return self.height * self.width

    @property
    def draws(self) -> int:
        return SLOTS * self.n

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Source and target of the edges that exist among these draws."""
        number = torch.arange(draws.start, draws.stop)
        vertex, slot = number // SLOTS, number % SLOTS
        chance = torch.tensor([self.keep, self.keep, self.diagonal], dtype=torch.float64)
        step = torch.tensor([1, self.width, self.width + 1])
        exists = uniform(self.seed, Purpose.EDGES, draws) < chance[slot]
        exists &= (vertex % self.width < self.width - 1) | (slot == 1)
        exists &= (vertex // self.width < self.height - 1) | (slot == 0)
        return vertex[exists], (vertex + step[slot])[exists]


def subdivided(raw: RawGraph, inner: float, seed: int, number: int) -> RawGraph:
    """The graph with new vertices on its edges, `inner` on average. n and the number of edges grow equally.

    The new vertices of an edge come right after its source, so that a banded order stays banded. Edges must be
    in the order of their sources. `number` is the first unused random number.
    """
    edges = len(raw.source)
    extra = (inner + uniform(seed, Purpose.EDGES, range(number, number + edges))).long().numpy()
    per_vertex = np.bincount(raw.source, weights=extra, minlength=raw.n).astype(np.int64)
    name = np.arange(raw.n) + np.cumsum(per_vertex) - per_vertex
    first = name[raw.source] + 1 + _before(extra) - _before(per_vertex)[raw.source]
    chain = np.repeat(first, extra) + np.arange(extra.sum()) - np.repeat(_before(extra), extra)
    begins = np.concatenate([name[raw.source], chain])
    nexts = np.concatenate([np.where(extra > 0, first, name[raw.target]), chain + 1])
    nexts[edges:][(np.cumsum(extra) - 1)[extra > 0]] = name[raw.target][extra > 0]
    return RawGraph(raw.n + int(extra.sum()), begins, nexts)


def largest_component(raw: RawGraph) -> RawGraph:
    """The vertices and edges of the largest component, in the same order with new names."""
    from scipy import sparse

    ones = np.ones(len(raw.source), dtype=np.int8)
    matrix = sparse.coo_array((ones, (raw.source, raw.target)), shape=(raw.n, raw.n))
    _, component = sparse.csgraph.connected_components(matrix, directed=False)
    stays = component == np.argmax(np.bincount(component))
    name = np.cumsum(stays) - 1
    kept = stays[raw.source]
    return RawGraph(int(stays.sum()), name[raw.source[kept]], name[raw.target[kept]])


class LatticeSource(Source):
    """A road-like grid with missing edges."""

    kind: Literal["lattice"]
    height: int = Field(ge=1, le=SIDE)
    width: int = Field(ge=1, le=SIDE)
    keep: float = Field(0.55, ge=0, le=1)
    """The share of horizontal and vertical edges that exist."""
    diagonal: float = Field(0.01, ge=0, le=1)
    """The share of diagonal edges that exist."""
    inner: float = Field(0.0, ge=0, le=DEGREE)
    """The mean number of vertices put on an edge: lowers the mean degree towards 2."""
    connected: bool = True
    """True if only the largest component is kept."""

    def generator(self, seed: int, classes: int) -> Lattice:
        return Lattice(self.height, self.width, seed, self.keep, self.diagonal)

    def size(self, seed: int, classes: int) -> Size | None:
        return None if self.connected or self.inner else super().size(seed, classes)

    def graph(self, rest: Rest) -> RawGraph:
        lattice = self.generator(rest.seed, rest.classes)
        raw = generate(lattice)
        if self.connected:
            raw = largest_component(raw)
        return subdivided(raw, self.inner, rest.seed, lattice.draws) if self.inner else raw

    def stream(self, rest: Rest) -> Stream:
        if self.connected or self.inner:
            return stream_of(self.graph(rest))
        return super().stream(rest)


def _before(counts: Ints) -> Ints:
    """The sum of all counts before each one."""
    return np.cumsum(counts) - counts
