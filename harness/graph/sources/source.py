"""The interface of a source: the part of a card that says where a graph comes from, with its reader or generator.

A new source is a module of this package with its keys and its reader, and an entry in `harness.graph.sources`.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from harness.base.validation import Frozen
from harness.graph.model import RawGraph, Weighting
from harness.graph.sources.remote import RemoteFile
from harness.graph.sources.stream import Edges, EdgeStream, collect_graph, cut_by_index, stream_graph

if TYPE_CHECKING:  # a card is read without torch
    from torch import Tensor


class Generator(Protocol):
    """A random graph whose number of vertices is known before any edge is drawn.

    Draws are numbered: edge k is a function of (parameters, seed, k). So the edges do not depend on how draws are cut
    into chunks, and a large graph need never be in memory as a whole.
    """

    chunk: ClassVar[int]
    """The number of draws at a time, so that temporaries fit in the cache."""

    @property
    def n(self) -> int:
        """The number of vertices."""

    @property
    def draws(self) -> int:
        """The number of draws, some of which may not give an edge."""

    def edges(self, draws: range) -> "tuple[Tensor, Tensor]":
        """Return source and target of the edges of these draws."""


def draw_edges(generator: Generator, draws: range, chunk: int | None = None) -> Edges:
    """Return the edges of these draws, computed chunk by chunk."""
    step = chunk or generator.chunk
    pieces = [generator.edges(draws[start : start + step]) for start in range(0, len(draws), step)]
    if not pieces:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    sources, targets = (
        np.concatenate([piece.numpy() for piece in ends]) for ends in zip(*pieces, strict=True)
    )
    return sources, targets


def generate_graph(generator: Generator, chunk: int | None = None) -> RawGraph:
    """Return the whole graph."""
    return RawGraph(generator.n, *draw_edges(generator, range(generator.draws), chunk))


class ReadOptions(NamedTuple):
    """What a source needs from the rest of the card."""

    folder: Path
    """The folder that paths in the card are relative to."""
    seed: int
    classes: int
    split: int
    """The index of the split, for files with several."""
    weights: Weighting | None = None
    """Not None if edge weights are read too."""


class GraphSize(NamedTuple):
    """An upper bound on the size of a graph, known before it is generated."""

    vertices: int
    edges: int


class Source(Frozen):
    """The keys of a card under `source`.

    A subclass overrides at least one of `read_graph`, `open_stream` and `make_generator`.
    """

    kind: str
    """The name of the source in a card."""

    plants_labels: ClassVar[bool] = False
    """True if the source provides labels by which the edges were drawn."""
    reads_weights: ClassVar[bool] = False
    """True if the source can read edge weights."""
    version: ClassVar[int | None] = None
    """Of a source that generates edges: changes whenever the same parameters give others."""

    def read_graph(self, options: ReadOptions) -> RawGraph:
        """Return the edges, and features, labels and split if the source has them."""
        return collect_graph(self.open_stream(options))

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        """Return the same graph in pieces, each of which can be read independently."""
        generator = self.make_generator(options.seed, options.classes)
        if generator is None:
            return stream_graph(self.read_graph(options))
        cut = cut_by_index(generator.draws, partial(draw_edges, generator))
        return EdgeStream(generator.n, generator.draws, cut)

    def list_files(self) -> list[str]:
        """Return the files that the source reads, as named in the card or relative to the data folder."""
        return [remote.file for remote in self.list_remote_files()]

    def list_remote_files(self) -> list[RemoteFile]:
        """Return the published files among them."""
        return []

    def make_generator(self, seed: int, classes: int) -> Generator | None:
        """Return the generator of the edges; None for a source that reads files."""
        return None

    def bound_size(self) -> GraphSize | None:
        """Return the largest size of a generated graph; None for a source that reads files."""
        return None

    def get_size(self) -> GraphSize | None:
        """Return the size of the graph; None if it is not known before reading or generating the graph."""
        return self.bound_size()

    def get_planted_labels(self, vertices: range, classes: int) -> "Tensor":
        """Return the classes by which the edges were drawn, if `plants_labels`."""
        raise NotImplementedError

    def explain_misfit(self, classes: int) -> str | None:
        """Return why the source cannot have this number of classes, or None if it can."""
        return None


class FileSource(Source):
    """A graph in one file."""

    path: str

    def list_files(self) -> list[str]:
        return [self.path]
