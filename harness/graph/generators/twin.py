"""Generates graphs that resemble a published graph at any scale: the same vertices and edges, similar degrees.

Power law: vertices are drawn by rank, and a random permutation hides the ranks. A rank is the square of a uniform
number, so degrees fall with the root of the rank, as degrees of citations and purchases roughly do; the largest degree
of n vertices with m edges is near m / sqrt(n). With clusters, a fraction of the draws stays among vertices of similar
rank. Loops and duplicates are lost, so drawing continues until the requested number of distinct edges is reached
(`harness.graph.generators.distinct_draws`). Roads are a lattice with exactly the requested number of edges.

Nothing needs a table: an edge is a function of (seed, number), and the permuted rank a function of (seed, rank).

A twin does not have the communities, correlations or labels of the published graph. Never report its accuracy.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.graph.generators.distinct_draws import DistinctDraws
from harness.graph.generators.rank_permutation import count_bits, derive_edge_keys, permute_rank, to_unit
from harness.graph.generators.shapes import count_lattice_edges
from harness.graph.model import Ints
from harness.kernels.jit import compiled
from harness.kernels.random import hash_index

MIN_CLUSTER = 64
"""The vertices of the smallest cluster."""


@dataclass(frozen=True)
class PowerLawTwin(DistinctDraws):
    """Generates power laws and clusters. Draw k uses random numbers 4 k .. 4 k + 3."""

    within: float = 0.0
    """The fraction of draws that stay in their cluster."""

    chunk: ClassVar[int] = 1 << 20

    @property
    def cluster(self) -> int:
        """The number of vertices in a cluster: twice the mean degree, which leaves room for the edges within."""
        ends = 1 if self.directed else 2
        return max(MIN_CLUSTER, -(-2 * ends * self.distinct // self.n))

    def draw_edge_ranks(self, draws: range) -> tuple[Ints, Ints]:
        """Return the same edges between ranks, before the ranks are permuted."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        draw_ranks(draws.start, self.n, (self.cluster, self.within), derive_edge_keys(self.seed), ends)
        return ends

    def compute_one_way(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        """Return the probability that a draw goes from one rank to another."""

        def get_rank_probability(rank: Ints) -> NDArray[np.float64]:
            return np.sqrt((rank + 1) / self.n) - np.sqrt(rank / self.n)

        corner = source - source % self.cluster
        stays = corner == target - target % self.cluster
        inside = np.where(stays, self.within / np.minimum(self.cluster, self.n - corner), 0.0)
        return get_rank_probability(source) * ((1 - self.within) * get_rank_probability(target) + inside)


@dataclass(frozen=True)
class RoadTwin:
    """Generates road maps. Draw k is the k-th edge of a lattice, in a random order of all its edges.

    Vertex i * width + j can have an edge to the right and one down; the last row may be shorter.
    """

    n: int
    draws: int
    seed: int

    chunk: ClassVar[int] = 1 << 20

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Return source and target of these draws, which are distinct and not loops."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        across, down = count_lattice_edges(self.n)
        lattice = isqrt(self.n), across, across + down
        draw_roads(draws.start, lattice, count_bits(across + down), derive_edge_keys(self.seed), ends)
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])


# Compiled loops. Verifier (tests/sources/test_twin.py): Python's integers.

NUMBERS_PER_DRAW = 4
"""Random numbers per draw: its source, whether it stays in the cluster, its target, and one that is unused."""


@compiled(nogil=True)
def draw_ranks(
    first: int, n: int, cluster: tuple[int, float], keys: tuple[Any, Any], out: tuple[Any, Any]
) -> None:
    """Fill `out` with the ranks of source and target of the draws from `first` on.

    `cluster` holds the size of a cluster and the fraction of draws that stay within.
    """
    source, target = out
    size, within = cluster
    for k in range(source.size):
        index = np.uint64(NUMBERS_PER_DRAW) * np.uint64(first + k)
        start = draw_rank(hash_index(index, keys[0], keys[1]), n)
        u = hash_index(index + np.uint64(2), keys[0], keys[1])
        if within > 0 and to_unit(hash_index(index + np.uint64(1), keys[0], keys[1])) < within:
            corner = start - start % size
            end = corner + int(to_unit(u) * min(size, n - corner))
        else:
            end = draw_rank(u, n)
        source[k], target[k] = start, end


@compiled(nogil=True)
def draw_roads(
    first: int, lattice: tuple[int, int, int], bits: int, keys: tuple[Any, Any], out: tuple[Any, Any]
) -> None:
    """Fill `out` with source and target of lattice edges, from position `first` of their random order.

    `lattice` holds the width, the number of horizontal edges, and the number of all edges, which has `bits` bits.
    """
    source, target = out
    width, across, edge_count = lattice
    for k in range(source.size):
        edge = permute_rank(first + k, edge_count, bits, keys)
        if edge < across:
            source[k] = edge // (width - 1) * width + edge % (width - 1)
            target[k] = source[k] + 1
        else:
            source[k] = edge - across
            target[k] = source[k] + width


@compiled(nogil=True)
def draw_rank(bits: Any, n: int) -> int:
    """Draw a rank. Its probability falls with the root of the rank, and so do the degrees."""
    u = to_unit(bits)
    return int(u * u * n)
