"""What every generator is, and how a whole graph comes out of one.

A generator numbers what it draws: edge k is a function of (parameters, seed, k). So any cut of the numbers
into chunks, on any number of ranks, draws the same edges, and a large graph never needs to be held whole.
"""

from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.graph.model import RawGraph

CHUNK = 1 << 16
"""Edges drawn at a time: their temporaries stay near the core."""


class Generator(Protocol):
    """A random graph with n vertices, known before anything is drawn."""

    version: ClassVar[int]
    """Changes with every change that draws other edges for the same parameters."""

    @property
    def n(self) -> int: ...

    @property
    def draws(self) -> int:
        """How many edges are drawn; some draws leave none."""

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Source and target of the edges with these numbers."""


def generate(generator: Generator, chunk: int = CHUNK) -> RawGraph:
    """The whole graph."""
    starts = range(0, generator.draws, chunk)
    pieces = [generator.edges(range(start, min(start + chunk, generator.draws))) for start in starts]
    source, target = (
        torch.cat([piece[end] for piece in pieces]).numpy() if pieces else np.zeros(0, dtype=np.int64)
        for end in (0, 1)
    )
    return RawGraph(generator.n, source, target)
