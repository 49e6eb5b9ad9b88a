"""Generates graphs that resemble a published graph at any scale: the same vertices and edges, similar degrees.

Power law: vertices are drawn by rank, and a random permutation hides the ranks. A rank is the square of a uniform
number, so degrees fall with the root of the rank, as degrees of citations and purchases roughly do; the largest degree
of n vertices with m edges is near m / sqrt(n). With clusters, a fraction of the draws stays among vertices of similar
rank. Loops and duplicates are lost, so drawing continues until the requested number of distinct edges is reached. Roads
are a lattice with exactly the requested number of edges.

Nothing needs a table: an edge is a function of (seed, number), and the permuted rank a function of (seed, rank).

A twin does not have the communities, correlations or labels of the published graph. Never report its accuracy.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from harness.errors import UserError
from harness.graph.model import Ints
from harness.kernels.jit import compiled
from harness.kernels.random import MIX_1, Purpose, derive_key, hash_index
from harness.sources.source import Generator, GraphSize, Source
from harness.validation import VERTICES

MIN_CLUSTER, SHARE_WITHIN = 64, 0.8
"""The smallest cluster, and the fraction of draws that stay in their cluster."""
MAX_COUNTED_EDGES = 1 << 18
"""Up to this many edges, draws are counted exactly; beyond, they are estimated from as many probabilities."""
DRAWS_PER_EDGE = 64
"""The most draws per edge: a graph that needs more is nearly complete."""
DIGITS = 12
"""Significant bits of an estimated number of draws, few enough that all machines round their logarithms alike."""
VERSION = 2

Nature = Literal["power", "clusters", "lattice"]


@dataclass(frozen=True)
class PowerLawTwin:
    """Generates power laws and clusters. Draw k uses random numbers 4 k .. 4 k + 3."""

    n: int
    distinct: int
    """The number of distinct edges, without loops."""
    seed: int
    within: float = 0.0
    """The fraction of draws that stay in their cluster."""
    directed: bool = False
    """True if (u, v) and (v, u) are different edges."""

    chunk: ClassVar[int] = 1 << 20
    version: ClassVar[int] = VERSION

    @cached_property
    def draws(self) -> int:
        """The fewest draws that give `distinct` edges: counted if the graph is small, else estimated.

        The estimate for a large graph is within a fraction of a percent.
        """
        return self._count_draws() if self.distinct <= MAX_COUNTED_EDGES else self._estimate_draws()

    @property
    def cluster(self) -> int:
        """The number of vertices in a cluster: twice the mean degree, which leaves room for the edges within."""
        ends = 1 if self.directed else 2
        return max(MIN_CLUSTER, -(-2 * ends * self.distinct // self.n))

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Return source and target of these draws, loops and duplicates included."""
        ends = self.draw_edge_ranks(draws)
        for end in ends:
            permute_ranks(end, self.n, _count_bits(self.n), _derive_keys(self.seed))
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])

    def draw_edge_ranks(self, draws: range) -> tuple[Ints, Ints]:
        """Return the same edges between ranks, before the ranks are permuted."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        draw_ranks(draws.start, self.n, (self.cluster, self.within), _derive_keys(self.seed), ends)
        return ends

    def compute_probability(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        """Return the probability that a draw is the edge between two ranks, in either direction unless directed."""
        forward = self._compute_one_way(source, target)
        return forward if self.directed else forward + self._compute_one_way(target, source)

    def _compute_one_way(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        def get_rank_probability(rank: Ints) -> NDArray[np.float64]:
            return np.sqrt((rank + 1) / self.n) - np.sqrt(rank / self.n)

        corner = source - source % self.cluster
        stays = corner == target - target % self.cluster
        inside = np.where(stays, self.within / np.minimum(self.cluster, self.n - corner), 0.0)
        return get_rank_probability(source) * ((1 - self.within) * get_rank_probability(target) + inside)

    def _count_draws(self) -> int:
        """Return the number of draws up to the last new edge."""
        draws = self.distinct
        while draws < DRAWS_PER_EDGE * self.distinct:
            draws *= 2
            source, target = self.draw_edge_ranks(range(draws))
            low, high = source, target
            if not self.directed:
                low, high = np.minimum(source, target), np.maximum(source, target)
            pairs = np.where(source == target, -1, low * self.n + high)
            distinct, first = np.unique(pairs, return_index=True)
            new_draws = np.sort(first[distinct >= 0])
            if len(new_draws) >= self.distinct:
                return int(new_draws[self.distinct - 1]) + 1
        if self.distinct:
            raise self._make_nearly_complete_error()
        return 0

    def _estimate_draws(self) -> int:
        """Return the fewest draws whose expected number of distinct edges is `distinct`.

        An edge with probability q is among m draws with probability 1 - (1 - q)^m, and is drawn with probability q. So
        the mean of (1 - (1 - q)^m) / q over some draws, with 0 for loops, estimates the distinct edges of m draws.
        """
        starts = range(0, MAX_COUNTED_EDGES, MAX_COUNTED_EDGES >> 4)
        probabilities = np.concatenate([self._sample_probabilities(start) for start in starts])
        log_missed = np.log1p(-probabilities)

        def estimate_distinct(draws: int) -> int:
            return int(-np.sum(np.expm1(draws * log_missed) / probabilities) / MAX_COUNTED_EDGES)

        step = 1 << (self.distinct.bit_length() - DIGITS)
        numbers = range(self.distinct, DRAWS_PER_EDGE * self.distinct, step)
        index = bisect_left(numbers, self.distinct, key=estimate_distinct)
        if index == len(numbers):
            raise self._make_nearly_complete_error()
        return numbers[index]

    def _sample_probabilities(self, start: int) -> NDArray[np.float64]:
        """Return the probabilities of the edges found by a sixteenth of the sampled draws."""
        source, target = self.draw_edge_ranks(range(start, start + (MAX_COUNTED_EDGES >> 4)))
        edges = source != target
        return self.compute_probability(source[edges], target[edges])

    def _make_nearly_complete_error(self) -> UserError:
        return UserError(
            f"a twin of {self.n:,} vertices and {self.distinct:,} edges is nearly complete: it needs more "
            f"than {DRAWS_PER_EDGE} draws per edge. Choose a larger scale."
        )


@dataclass(frozen=True)
class RoadTwin:
    """Generates road maps. Draw k is the k-th edge of a lattice, in a random order of all its edges.

    Vertex i * width + j can have an edge to the right and one down; the last row may be shorter.
    """

    n: int
    draws: int
    seed: int

    chunk: ClassVar[int] = 1 << 20
    version: ClassVar[int] = VERSION

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Return source and target of these draws, which are distinct and not loops."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        across, down = _count_lattice_edges(self.n)
        lattice = isqrt(self.n), across, across + down
        draw_roads(draws.start, lattice, _count_bits(across + down), _derive_keys(self.seed), ends)
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])


def count_max_edges(nature: Nature, n: int, *, directed: bool) -> int:
    """Return the largest number of edges that a twin of this nature can have."""
    return sum(_count_lattice_edges(n)) if nature == "lattice" else n * (n - 1) // (1 if directed else 2)


class TwinSource(Source):
    """A generated graph of a given nature with `n` vertices and `edges` edges."""

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

    def make_generator(self, seed: int, classes: int) -> Generator:
        if self.nature == "lattice":
            return RoadTwin(self.n, self.edges, seed)
        within = SHARE_WITHIN if self.nature == "clusters" else 0.0
        return PowerLawTwin(self.n, self.edges, seed, within, self.directed)

    def get_size(self, seed: int, classes: int) -> GraphSize:
        return GraphSize(self.n, self.edges)


def _count_lattice_edges(n: int) -> tuple[int, int]:
    """Return the number of edges in a lattice of n vertices with rows of isqrt(n): horizontal and vertical."""
    width = isqrt(n)
    return n - -(-n // width), n - width


def _count_bits(count: int) -> int:
    """Return the number of bits of numbers below `count`; the permutation needs at least two."""
    return max((count - 1).bit_length(), 2)


def _derive_keys(seed: int) -> tuple[np.uint64, np.uint64]:
    first, second = derive_key(seed, Purpose.EDGES)
    return np.uint64(first), np.uint64(second)


# Compiled loops. Verifier (tests/sources/test_twin.py): Python's integers.

DROPPED_BITS, UNIT = np.uint64(11), 0.5**53
ROUNDS = 2
ODD, FOLD = np.uint64(MIX_1), np.uint64(31)
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
def permute_ranks(ranks: Any, n: int, bits: int, keys: tuple[Any, Any]) -> None:
    """Replace every rank by its image under the permutation."""
    for k in range(ranks.size):
        ranks[k] = permute_rank(ranks[k], n, bits, keys)


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


@compiled(nogil=True)
def to_unit(bits: Any) -> float:
    """Convert 64 random bits to a number in [0, 1), of which a float64 has 53 bits."""
    return np.float64(bits >> DROPPED_BITS) * UNIT


@compiled(nogil=True)
def permute_rank(rank: int, n: int, bits: int, keys: tuple[Any, Any]) -> int:
    """Permute 0 .. n - 1 without a table, by a Feistel network that is repeated until the result is below n.

    Two cheap rounds hide ranks well enough; the network of `harness.kernels.shuffle` is statistically random. The two
    cannot be merged, because the edges of all twins would change.
    """
    low = np.uint64(bits - bits // 2)
    left_mask = (np.uint64(1) << np.uint64(bits // 2)) - np.uint64(1)
    right_mask = (np.uint64(1) << low) - np.uint64(1)
    x = np.uint64(rank)
    while True:
        left, right = x >> low, x & right_mask
        for number in range(ROUNDS):
            shift = np.uint64(number)
            left, right = right, left ^ (mix_bits(right, keys[0] >> shift) & left_mask)
            left, right = right, left ^ (mix_bits(right, keys[1] >> shift) & right_mask)
        x = (left << low) | right
        if x < np.uint64(n):
            return int(x)


@compiled(nogil=True)
def mix_bits(half: Any, key: Any) -> Any:
    """Mix the bits by one multiplication, which hides ranks well enough."""
    z = (half ^ key) * ODD
    return z ^ (z >> FOLD)
