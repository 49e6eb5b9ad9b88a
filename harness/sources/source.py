"""The contract of a source: the part of a card that names a graph's origin, and its reader or generator.

A new source is a file of this folder with its keys and its reader, and a name in `harness.sources`.
"""

from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.graph.model import RawGraph, Weighting
from harness.sources.remote import RemoteFile
from harness.sources.stream import Edges, Stream, by_number, stream_of, whole
from harness.validation import Frozen


class Generator(Protocol):
    """A random graph whose number of vertices is known before any edge is drawn.

    A generator numbers its draws: edge k is a function of (parameters, seed, k). So any cut of the numbers into chunks,
    on any number of ranks, draws the same edges, and a large graph need never be in memory whole.
    """

    chunk: ClassVar[int]
    """Edges drawn at a time, so that their temporaries stay near the core."""
    version: ClassVar[int]
    """Changes with every change that draws other edges for the same parameters."""

    @property
    def n(self) -> int: ...

    @property
    def draws(self) -> int:
        """The number of draws; some of them give no edge."""

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Source and target of the edges with these numbers."""


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
    """The keys of a card that a source needs besides its own."""

    folder: Path
    """The folder in which the paths of the card begin."""
    seed: int
    classes: int
    split: int
    """The index of the split, where a file holds several."""
    weights: Weighting | None = None
    """Set if the weights of the edges are to be read, too."""


class Size(NamedTuple):
    """The size of a graph before it is drawn."""

    vertices: int
    edges: int
    """An upper bound."""


class Source(Frozen):
    """The keys of a card under `source`. A source overrides `graph`, `stream` or `generator`, or several of them."""

    kind: str
    """The name of the source in a card."""

    plants_labels: ClassVar[bool] = False
    reads_weights: ClassVar[bool] = False

    def graph(self, rest: Rest) -> RawGraph:
        """The edges, and the features, labels and split if the source has them."""
        return whole(self.stream(rest))

    def stream(self, rest: Rest) -> Stream:
        """The same graph in pieces, for a source that can draw or read some of its edges alone."""
        generator = self.generator(rest.seed, rest.classes)
        if generator is None:
            return stream_of(self.graph(rest))
        return Stream(generator.n, generator.draws, by_number(generator.draws, partial(drawn, generator)))

    def files(self) -> list[str]:
        """The files that the source reads, by their names in the card or by their paths under the data folder."""
        return [remote.file for remote in self.remotes()]

    def remotes(self) -> list[RemoteFile]:
        """Those of the files that are published."""
        return []

    def generator(self, seed: int, classes: int) -> Generator | None:
        """The generator of the edges; None for a source that reads them."""
        return None

    def size(self, seed: int, classes: int) -> Size | None:
        """The size of the graph; None where only reading or drawing shows it."""
        generator = self.generator(seed, classes)
        return Size(generator.n, generator.draws) if generator else None

    def planted_labels(self, vertices: range, classes: int) -> Tensor:
        """The classes by which the edges were drawn, of a source that sets `plants_labels`."""
        raise NotImplementedError

    def misfit(self, classes: int) -> str | None:
        """The reason why the source cannot have this number of classes, or None."""
        return None


class FileSource(Source):
    """A graph in a file that the card names."""

    path: str

    def files(self) -> list[str]:
        return [self.path]
