"""A graph with the shape of a published one, at any scale: as many vertices and edges, degrees of the same nature.

A vertex has a rank, by which it is drawn, and a name behind which the rank is hidden. Ranks are drawn as the square of
a uniform number, so that degrees fall with the root of the rank, as those of citations and purchases roughly do; the
largest of n vertices with m edges is near m / sqrt(n). In clusters, a share of the edges stays among neighbours by
rank. No table is needed: an edge is a function of (seed, its number), and the name of a rank is one too.

What a twin does not have: the published graph's communities, its correlations, its labels. Never report its accuracy.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harness.kernels.random import Purpose, key_of
from harness.sources.source import Source

CLUSTER, WITHIN = 64, 0.8
"""Neighbours in a cluster, and the share of edges that stay."""


@dataclass(frozen=True)
class Twin:
    """The generator: draw k uses the random numbers 4 k .. 4 k + 3."""

    n: int
    draws: int
    seed: int
    within: float = 0.0
    """The share of edges that stay in their cluster."""

    chunk: ClassVar[int] = 1 << 20
    version: ClassVar[int] = 1

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Source and target of these draws, loops and duplicates included."""
        from harness.sources.twin_compiled import draw_edges

        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        first, second = (np.uint64(key) for key in key_of(self.seed, Purpose.EDGES))
        bits = max((self.n - 1).bit_length(), 2)
        draw_edges(draws.start, self.n, (CLUSTER, self.within), (first, second), bits, ends)
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])


class TwinSource(Source):
    """As many vertices and draws, of this nature."""

    kind: Literal["twin"]
    nature: Literal["power", "clusters"]
    n: int = Field(ge=1)
    edges: int = Field(ge=0)

    def generator(self, seed: int, classes: int) -> Twin:
        return Twin(self.n, self.edges, seed, WITHIN if self.nature == "clusters" else 0.0)
