"""The keys of generated graphs in a card, and the sizes that follow from them.

Each generator has a separate module, which imports torch and compiles loops. It is imported when a graph is generated.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from harness.base.validation import DEGREE, VERTICES
from harness.graph.generators.shapes import SLOTS, CommunityLaw, Nature, count_max_edges
from harness.graph.model import RawGraph
from harness.graph.sources.source import Generator, GraphSize, ReadOptions, Source, generate_graph
from harness.graph.sources.stream import EdgeStream, stream_graph

if TYPE_CHECKING:
    from torch import Tensor

    from harness.graph.generators.sbm import Sbm


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
        from harness.graph.generators.rmat import Rmat

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
        from harness.graph.generators.sbm import Sbm

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
        from harness.graph.generators.lattice import Lattice

        return Lattice(self.height, self.width, seed, self.keep, self.diagonal)

    def read_graph(self, options: ReadOptions) -> RawGraph:
        from harness.graph.generators.lattice import keep_largest_component, subdivide_edges

        lattice = self.make_generator(options.seed, options.classes)
        raw = generate_graph(lattice)
        if self.connected:
            raw = keep_largest_component(raw)
        return subdivide_edges(raw, self.inner, options.seed, lattice.draws) if self.inner else raw

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        if self.connected or self.inner:
            return stream_graph(self.read_graph(options))
        return super().open_stream(options)


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
        from harness.graph.generators.communities import Communities

        return Communities(self.n, self.edges, seed, self.directed, law=self.law)


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
        from harness.graph.generators.twin import PowerLawTwin, RoadTwin

        if self.nature == "lattice":
            return RoadTwin(self.n, self.edges, seed)
        within = SHARE_WITHIN if self.nature == "clusters" else 0.0
        return PowerLawTwin(self.n, self.edges, seed, self.directed, within)
