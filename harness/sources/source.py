"""What a source is: the part of a card that says where a graph comes from, and how that is followed.

A new source is a file of this folder, with its keys and its reader, and its name in `harness.sources`.
"""

from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.graph.model import RawGraph
from harness.sources.remote import Remote
from harness.sources.stream import Edges, Piece, Stream, stream_of, whole
from harness.validation import Frozen

# What every generator is, and how a whole graph comes out of one.
#
# A generator numbers what it draws: edge k is a function of (parameters, seed, k). So any cut of the
# numbers into chunks, on any number of ranks, draws the same edges, and a large graph never needs to be
# held whole.


class Generator(Protocol):
    """A random graph with n vertices, known before anything is drawn."""

    chunk: ClassVar[int]
    """Edges drawn at a time, so that their temporaries stay near the core."""
    version: ClassVar[int]
    """Changes with every change that draws other edges for the same parameters."""

    @property
    def n(self) -> int: ...

    @property
    def draws(self) -> int:
        """How many edges are drawn; some draws leave none."""

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Source and target of the edges with these numbers."""


def stream_drawn(generator: Generator) -> Stream:
    """All its edges, in pieces of any size."""

    def pieces(at_once: int) -> list[Piece]:
        starts = range(0, generator.draws, at_once)
        numbers = [range(start, min(start + at_once, generator.draws)) for start in starts]
        return [lambda draws=draws: iter([drawn(generator, draws)]) for draws in numbers]  # type: ignore[misc]

    return Stream(generator.n, generator.draws, pieces)


def drawn(generator: Generator, draws: range, chunk: int | None = None) -> Edges:
    """The edges with these numbers."""
    step = chunk or generator.chunk
    pieces = [generator.edges(draws[start : start + step]) for start in range(0, len(draws), step)]
    source, target = (
        torch.cat([piece[end] for piece in pieces]).numpy() if pieces else np.zeros(0, dtype=np.int64)
        for end in (0, 1)
    )
    return source, target


def generate(generator: Generator, chunk: int | None = None) -> RawGraph:
    """The whole graph."""
    return RawGraph(generator.n, *drawn(generator, range(generator.draws), chunk))


class Rest(NamedTuple):
    """What the rest of a card says to its source."""

    folder: Path
    """Where the paths of the card begin."""
    seed: int
    classes: int
    split: int
    """Which split, where a file brings several."""


class Size(NamedTuple):
    """Of a graph that nobody has drawn yet."""

    vertices: int
    edges: int
    """At most."""


class Source(Frozen):
    """The keys of a card under `source`. Each has a `graph`, a `stream` or a `generator`, or several of them."""

    kind: str
    """By which a card names it."""

    plants_labels: ClassVar[bool] = False

    def graph(self, rest: Rest) -> RawGraph:
        """The edges, and whatever else the source knows of its vertices."""
        return whole(self.stream(rest))

    def stream(self, rest: Rest) -> Stream:
        """The same without holding it: for a source that can draw or read some of its edges alone."""
        generator = self.generator(rest.seed, rest.classes)
        return stream_drawn(generator) if generator else stream_of(self.graph(rest))

    def files(self) -> list[str]:
        """What it reads, by the names that the card has for them, or by their paths under the data folder."""
        return [remote.file for remote in self.remotes()]

    def remotes(self) -> list[Remote]:
        """Those of its files that somebody publishes."""
        return []

    def generator(self, seed: int, classes: int) -> Generator | None:
        """What draws the edges; None where they are read."""
        return None

    def size(self, seed: int, classes: int) -> Size | None:
        """What the graph will be; None where only reading or drawing it tells."""
        generator = self.generator(seed, classes)
        return Size(generator.n, generator.draws) if generator else None

    def planted_labels(self, vertices: range, classes: int) -> Tensor:
        """The classes by which edges were drawn, where `plants_labels` says so."""
        raise NotImplementedError

    def misfit(self, classes: int) -> str | None:
        """Why it cannot have so many classes, or None."""
        return None


class FileSource(Source):
    """A graph in a file that the card names."""

    path: str

    def files(self) -> list[str]:
        return [self.path]
