"""What every generator is, and how a whole graph comes out of one.

A generator numbers what it draws: edge k is a function of (parameters, seed, k). So any cut of the numbers
into chunks, on any number of ranks, draws the same edges, and a large graph never needs to be held whole.
"""

from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.graph.model import RawGraph
from harness.sources.stream import Edges, Piece, Stream


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
