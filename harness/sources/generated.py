"""The keys of generated graphs in a card, and the sizes that follow from them.

Each generator is a module of its own, which imports torch and compiles loops, and is imported when a graph is drawn.
"""

from math import isqrt
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from harness.graph.model import RawGraph
from harness.sources.source import Generator, GraphSize, ReadOptions, Source, generate_graph
from harness.sources.stream import EdgeStream, stream_graph
from harness.validation import DEGREE, VERTICES, Frozen

if TYPE_CHECKING:
    from torch import Tensor

    from harness.sources.sbm import Sbm


class RmatSource(Source):
    """A scale-free graph: skewed degrees, many isolated vertices."""

    version = 1

    kind: Literal["rmat"]
    scale: int = Field(ge=1, le=30)
    """The graph has 2 ** scale vertices."""
    edge_factor: float = Field(16, gt=0, le=DEGREE)
    """Edges drawn per vertex, before loops and duplicates are dropped."""
    a: float = Field(0.57, ge=0, le=1)
    b: float = Field(0.19, ge=0, le=1)
    c: float = Field(0.19, ge=0, le=1)

    @model_validator(mode="after")
    def _check_quadrants(self) -> "RmatSource":
        if self.a + self.b + self.c > 1:
            raise ValueError(f"a + b + c = {self.a + self.b + self.c:g}; they leave 1 - a - b - c >= 0 for d")
        return self

    def bound_size(self) -> GraphSize:
        return GraphSize(1 << self.scale, round(self.edge_factor * (1 << self.scale)))

    def make_generator(self, seed: int, classes: int) -> Generator:
        from harness.sources.rmat import Rmat

        return Rmat(self.scale, self.edge_factor, seed, self.a, self.b, self.c)


class SbmSource(Source):
    """Planted classes that a graph network can learn and features alone cannot."""

    version = 1
    plants_labels = True

    kind: Literal["sbm"]
    n: int = Field(ge=2, le=VERTICES)
    mean_degree: float = Field(gt=0, le=DEGREE)
    homophily: float = Field(ge=0, le=1)
    """The fraction of edges within a class."""

    def bound_size(self) -> GraphSize:
        return GraphSize(self.n, round(self.n * self.mean_degree / 2))

    def make_generator(self, seed: int, classes: int) -> "Sbm":
        from harness.sources.sbm import Sbm

        return Sbm(self.n, classes, self.mean_degree, self.homophily, seed)

    def get_planted_labels(self, vertices: range, classes: int) -> "Tensor":
        return self.make_generator(0, classes).labels(vertices)

    def explain_misfit(self, classes: int) -> str | None:
        if self.n < 2 * classes:
            return f"each class of an sbm needs at least two vertices, but n = {self.n}"
        if classes == 1 and self.homophily < 1:
            return "an sbm with one class has no edges between classes; set homophily to 1"
        return None


SIDE = 1 << 20
"""The largest number of vertices along a side."""
SLOTS = 3
"""Possible edges at each vertex: right, down, diagonal."""


class LatticeSource(Source):
    """A road-like grid with missing edges."""

    version = 1

    kind: Literal["lattice"]
    height: int = Field(ge=1, le=SIDE)
    width: int = Field(ge=1, le=SIDE)
    keep: float = Field(0.55, ge=0, le=1)
    """The fraction of horizontal and vertical edges that exist."""
    diagonal: float = Field(0.01, ge=0, le=1)
    """The fraction of diagonal edges that exist."""
    inner: float = Field(0.0, ge=0, le=DEGREE)
    """The mean number of vertices inserted into an edge, which lowers the mean degree towards 2."""
    connected: bool = True
    """True to keep only the largest component."""

    def bound_size(self) -> GraphSize:
        n = self.height * self.width
        return GraphSize(n, SLOTS * n)

    def get_size(self) -> GraphSize | None:
        return None if self.connected or self.inner else self.bound_size()

    def make_generator(self, seed: int, classes: int) -> Generator:
        from harness.sources.lattice import Lattice

        return Lattice(self.height, self.width, seed, self.keep, self.diagonal)

    def read_graph(self, options: ReadOptions) -> RawGraph:
        from harness.sources.lattice import keep_largest_component, subdivide_edges

        lattice = self.make_generator(options.seed, options.classes)
        raw = generate_graph(lattice)
        if self.connected:
            raw = keep_largest_component(raw)
        return subdivide_edges(raw, self.inner, options.seed, lattice.draws) if self.inner else raw

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        if self.connected or self.inner:
            return stream_graph(self.read_graph(options))
        return super().open_stream(options)


MIN_COMMUNITY = 16
"""The fewest vertices of a community."""
ROOM = 1.5
"""The fewest vertices of a community, compared with the mean number of neighbours that its vertices have inside."""


class CommunityLaw(Frozen):
    """The communities and the degrees of a graph of any size."""

    across: float = Field(ge=0, le=0.5)
    """The fraction of edges between the two halves of the graph."""
    growth: float = Field(gt=0, le=2)
    """The fraction of edges between the halves of all communities, over that of the communities twice as large."""
    skew: float = Field(2.0, ge=1, le=8, multiple_of=0.25)
    """The first x n ranks have x^(1 / skew) of the ends of edges."""
    divisions: int = Field(8, ge=0, le=32)
    """How often communities are divided if there is room: 8 times gives 256 communities."""

    def compute_cuts(self, n: int, degree: float) -> NDArray[np.float64]:
        """Return the fraction of edges between communities after each division, for a mean number of neighbours.

        The last division is the last that leaves room for the edges inside. No cut exceeds the cut of random vertices.
        """
        cuts: list[float] = []
        cut, share, deepest = 0.0, self.across, 0
        for division in range(1, self.divisions + 1):
            cut, share = max(cut, min(cut + share, 1 - 0.5**division)), share * self.growth
            cuts.append(cut)
            if n >> division >= max(MIN_COMMUNITY, ROOM * degree * (1 - cut)):
                deepest = division
        return np.array(cuts[:deepest])


class CommunitiesSource(Source):
    """A generated graph with nested communities, power-law degrees, and `edges` distinct edges."""

    version = 1

    kind: Literal["communities"]
    n: int = Field(ge=1, le=VERTICES)
    edges: int = Field(ge=0, le=VERTICES)
    """The number of distinct edges, without loops."""
    directed: bool = False
    """True if (u, v) and (v, u) are different edges; equal to `directed` of the card."""
    law: CommunityLaw

    @model_validator(mode="after")
    def _check_edges(self) -> "CommunitiesSource":
        most = self.n * (self.n - 1) // (1 if self.directed else 2)
        if self.edges > most:
            raise ValueError(f"{self.n} vertices have at most {most} edges")
        return self

    def bound_size(self) -> GraphSize:
        return GraphSize(self.n, self.edges)

    def make_generator(self, seed: int, classes: int) -> Generator:
        from harness.sources.communities import Communities

        return Communities(self.n, self.edges, seed, self.directed, law=self.law)


Nature = Literal["power", "clusters", "lattice"]
SHARE_WITHIN = 0.8
"""The fraction of draws that stay in their cluster."""


class TwinSource(Source):
    """A generated graph of a given nature with `n` vertices and `edges` edges."""

    version = 2

    kind: Literal["twin"]
    nature: Nature
    n: int = Field(ge=1, le=VERTICES)
    edges: int = Field(ge=0, le=VERTICES)
    """The number of distinct edges, without loops."""
    directed: bool = False
    """True if (u, v) and (v, u) are different edges; equal to `directed` of the card."""

    @model_validator(mode="after")
    def _check_edges(self) -> "TwinSource":
        most = count_max_edges(self.nature, self.n, directed=self.directed)
        if self.edges > most:
            raise ValueError(f"{self.n} vertices of nature {self.nature} have at most {most} edges")
        return self

    def bound_size(self) -> GraphSize:
        return GraphSize(self.n, self.edges)

    def make_generator(self, seed: int, classes: int) -> Generator:
        from harness.sources.twin import PowerLawTwin, RoadTwin

        if self.nature == "lattice":
            return RoadTwin(self.n, self.edges, seed)
        within = SHARE_WITHIN if self.nature == "clusters" else 0.0
        return PowerLawTwin(self.n, self.edges, seed, self.directed, within)


def count_max_edges(nature: Nature, n: int, *, directed: bool) -> int:
    """Return the largest number of edges that a twin of this nature can have."""
    return sum(count_lattice_edges(n)) if nature == "lattice" else n * (n - 1) // (1 if directed else 2)


def count_lattice_edges(n: int) -> tuple[int, int]:
    """Return the number of edges in a lattice of n vertices with rows of isqrt(n): horizontal and vertical."""
    width = isqrt(n)
    return n - -(-n // width), n - width
