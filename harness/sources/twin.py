"""A graph with the shape of a published one, at any scale: as many vertices and edges, degrees of the same nature.

Degrees by a power law: a vertex is drawn by its rank, and a random name hides the rank. Ranks are drawn as the square
of a uniform number. So degrees fall with the root of the rank, as those of citations and purchases roughly do; the
largest of n vertices with m edges is near m / sqrt(n). In clusters, a share of draws stays among neighbours by rank.
Loops and repeated pairs are lost, so draws go on until the wanted number of different edges is reached. Roads are a
lattice in which exactly the wanted number of places has an edge.

No table is needed: an edge is a function of (seed, its number), and the name of a rank is a function of (seed, rank).

A twin lacks the published graph's communities, correlations and labels. Never report its accuracy.
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
from harness.sources.source import Generator, Size, Source
from harness.validation import VERTICES

CLUSTER, WITHIN = 64, 0.8
"""The fewest members of a cluster, and the share of draws that stay."""
COUNTED = 1 << 18
"""The most edges whose draws are counted; the draws of more follow from the chances of this many."""
DRAWS_PER_EDGE = 64
"""The most draws for an edge: a graph that takes more is nearly complete."""
DIGITS = 12
"""Binary digits of a computed number of draws: so few that the last bit of a machine's logarithm changes none."""
VERSION = 2

Nature = Literal["power", "clusters", "lattice"]


@dataclass(frozen=True)
class Twin:
    """The generator of power laws and clusters: draw k uses the random numbers 4 k .. 4 k + 3."""

    n: int
    distinct: int
    """The number of different edges that the draws make, without loops."""
    seed: int
    within: float = 0.0
    """The share of draws that stay in their cluster."""
    directed: bool = False
    """True if (u, v) and (v, u) are two edges."""

    chunk: ClassVar[int] = 1 << 20
    version: ClassVar[int] = VERSION

    @cached_property
    def draws(self) -> int:
        """The fewest draws that make `distinct` edges: counted if the graph is small, else by expectation.

        The expectation of a large graph is within a fraction of a percent of its count.
        """
        return self._draws_counted() if self.distinct <= COUNTED else self._draws_expected()

    @property
    def cluster(self) -> int:
        """Members of a cluster: twice the mean degree, so that the edges that stay have room."""
        ends = 1 if self.directed else 2
        return max(CLUSTER, -(-2 * ends * self.distinct // self.n))

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Source and target of these draws, loops and duplicates included."""
        ends = self.ranks(draws)
        for end in ends:
            name_ranks(end, self.n, _bits(self.n), _keys(self.seed))
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])

    def ranks(self, draws: range) -> tuple[Ints, Ints]:
        """The same edges, between ranks instead of names."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        draw_ranks(draws.start, self.n, (self.cluster, self.within), _keys(self.seed), ends)
        return ends

    def chance(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        """The chance that a draw is the edge between these different ranks; in either direction unless directed."""
        forth = self._chance(source, target)
        return forth if self.directed else forth + self._chance(target, source)

    def _chance(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        def of_rank(rank: Ints) -> NDArray[np.float64]:
            return np.sqrt((rank + 1) / self.n) - np.sqrt(rank / self.n)

        corner = source - source % self.cluster
        stays = corner == target - target % self.cluster
        inside = np.where(stays, self.within / np.minimum(self.cluster, self.n - corner), 0.0)
        return of_rank(source) * ((1 - self.within) * of_rank(target) + inside)

    def _draws_counted(self) -> int:
        """The draws up to that of the last new edge."""
        draws = self.distinct
        while draws < DRAWS_PER_EDGE * self.distinct:
            draws *= 2
            source, target = self.ranks(range(draws))
            ends = (
                (source, target)
                if self.directed
                else (np.minimum(source, target), np.maximum(source, target))
            )
            pairs = np.where(source == target, -1, ends[0] * self.n + ends[1])
            different, first = np.unique(pairs, return_index=True)
            news = np.sort(first[different >= 0])
            if len(news) >= self.distinct:
                return int(news[self.distinct - 1]) + 1
        if self.distinct:
            raise self._nearly_complete()
        return 0

    def _draws_expected(self) -> int:
        """The fewest draws whose expected number of different edges is `distinct`.

        An edge of chance q is among m draws with the chance 1 - (1 - q)^m, and one draw meets the edge with the chance
        q. So the mean of (1 - (1 - q)^m) / q over some draws, 0 for loops, estimates the different edges of m draws.
        """
        chances = np.concatenate([self._met(start) for start in range(0, COUNTED, COUNTED >> 4)])
        missed = np.log1p(-chances)

        def different(draws: int) -> int:
            return int(-np.sum(np.expm1(draws * missed) / chances) / COUNTED)

        step = 1 << (self.distinct.bit_length() - DIGITS)
        numbers = range(self.distinct, DRAWS_PER_EDGE * self.distinct, step)
        index = bisect_left(numbers, self.distinct, key=different)
        if index == len(numbers):
            raise self._nearly_complete()
        return numbers[index]

    def _met(self, start: int) -> NDArray[np.float64]:
        """The chances of the edges that a sixteenth of the sampled draws met."""
        source, target = self.ranks(range(start, start + (COUNTED >> 4)))
        edges = source != target
        return self.chance(source[edges], target[edges])

    def _nearly_complete(self) -> UserError:
        return UserError(
            f"a twin of {self.n:,} vertices and {self.distinct:,} edges is nearly complete: more than "
            f"{DRAWS_PER_EDGE} draws an edge would find too few. Take a larger scale."
        )


@dataclass(frozen=True)
class Roads:
    """The generator of road maps: draw k is the k-th place of a lattice, in a random order of all its places.

    Vertex i * width + j has two places for an edge, to its right and down; the last row may be shorter.
    """

    n: int
    draws: int
    seed: int

    chunk: ClassVar[int] = 1 << 20
    version: ClassVar[int] = VERSION

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Source and target of these draws: all different, and no loops."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        across, down = _places(self.n)
        lattice = isqrt(self.n), across, across + down
        draw_roads(draws.start, lattice, _bits(across + down), _keys(self.seed), ends)
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])


def most_edges(nature: Nature, n: int, *, directed: bool) -> int:
    """The most edges that a twin of this nature can have."""
    return sum(_places(n)) if nature == "lattice" else n * (n - 1) // (1 if directed else 2)


class TwinSource(Source):
    """A drawn graph of this nature with `n` vertices and `edges` edges."""

    kind: Literal["twin"]
    nature: Nature
    n: int = Field(ge=1, le=VERTICES)
    edges: int = Field(ge=0, le=VERTICES)
    """The number of different edges, without loops."""
    directed: bool = False
    """True if (u, v) and (v, u) are two edges, as in `directed` of the card."""

    @model_validator(mode="after")
    def _edges_fit(self) -> "TwinSource":
        most = most_edges(self.nature, self.n, directed=self.directed)
        if self.edges > most:
            raise ValueError(f"{self.n} vertices of nature {self.nature} have at most {most} edges")
        return self

    def generator(self, seed: int, classes: int) -> Generator:
        if self.nature == "lattice":
            return Roads(self.n, self.edges, seed)
        return Twin(self.n, self.edges, seed, WITHIN if self.nature == "clusters" else 0.0, self.directed)

    def size(self, seed: int, classes: int) -> Size:
        return Size(self.n, self.edges)


def _places(n: int) -> tuple[int, int]:
    """The places for an edge in a lattice of n vertices with isqrt(n) in a row: across, and down."""
    width = isqrt(n)
    return n - -(-n // width), n - width


def _bits(count: int) -> int:
    """The bits of a number below `count`; the permutation needs two or more."""
    return max((count - 1).bit_length(), 2)


def _keys(seed: int) -> tuple[np.uint64, np.uint64]:
    first, second = derive_key(seed, Purpose.EDGES)
    return np.uint64(first), np.uint64(second)


# The compiled loops. Verifier (tests/sources/test_twin.py): Python's integers.

KEPT, UNIT = np.uint64(11), 0.5**53
ROUNDS = 2
ODD, FOLD = np.uint64(MIX_1), np.uint64(31)
NUMBERS = 4
"""Random numbers of a draw: its source, whether it stays in the cluster, its target in or out of it, and a spare."""


@compiled(nogil=True)
def draw_ranks(
    first: int, n: int, cluster: tuple[int, float], keys: tuple[Any, Any], out: tuple[Any, Any]
) -> None:
    """Fills `out` with source and target, by rank, of the draws from `first` on.

    `cluster` holds the number of neighbours in a cluster, and the share of draws that stay within.
    """
    source, target = out
    size, within = cluster
    for k in range(source.size):
        index = np.uint64(NUMBERS) * np.uint64(first + k)
        start = rank_of(hash_index(index, keys[0], keys[1]), n)
        u = hash_index(index + np.uint64(2), keys[0], keys[1])
        if (
            within > 0
            and np.float64(hash_index(index + np.uint64(1), keys[0], keys[1]) >> KEPT) * UNIT < within
        ):
            corner = start - start % size
            end = corner + int(np.float64(u >> KEPT) * UNIT * min(size, n - corner))
        else:
            end = rank_of(u, n)
        source[k], target[k] = start, end


@compiled(nogil=True)
def name_ranks(ranks: Any, n: int, bits: int, keys: tuple[Any, Any]) -> None:
    """Replaces every rank by its name of `bits` bits."""
    for k in range(ranks.size):
        ranks[k] = name_of(ranks[k], n, bits, keys)


@compiled(nogil=True)
def draw_roads(
    first: int, lattice: tuple[int, int, int], bits: int, keys: tuple[Any, Any], out: tuple[Any, Any]
) -> None:
    """Fills `out` with source and target of the places of a lattice from the `first` on, in their random order.

    `lattice` holds the width, the number of places across, and the number of all places; a place has `bits` bits.
    """
    source, target = out
    width, across, places = lattice
    for k in range(source.size):
        place = name_of(first + k, places, bits, keys)
        if place < across:
            source[k] = place // (width - 1) * width + place % (width - 1)
            target[k] = source[k] + 1
        else:
            source[k] = place - across
            target[k] = source[k] + width


@compiled(nogil=True)
def rank_of(bits: Any, n: int) -> int:
    """The rank of a drawn vertex: its chance falls with the root of the rank, so degrees do too."""
    u = np.float64(bits >> KEPT) * UNIT
    return int(u * u * n)


@compiled(nogil=True)
def name_of(rank: int, n: int, bits: int, keys: tuple[Any, Any]) -> int:
    """The name of a rank: a permutation of 0 .. n - 1 without a table (Feistel, repeated until below n)."""
    low = np.uint64(bits - bits // 2)
    left_mask = (np.uint64(1) << np.uint64(bits // 2)) - np.uint64(1)
    right_mask = (np.uint64(1) << low) - np.uint64(1)
    x = np.uint64(rank)
    while True:
        left, right = x >> low, x & right_mask
        for number in range(ROUNDS):
            shift = np.uint64(number)
            left, right = right, left ^ (mixed(right, keys[0] >> shift) & left_mask)
            left, right = right, left ^ (mixed(right, keys[1] >> shift) & right_mask)
        x = (left << low) | right
        if x < np.uint64(n):
            return int(x)


@compiled(nogil=True)
def mixed(half: Any, key: Any) -> Any:
    """Mixes the bits by one multiplication: names need to look alike, and no more."""
    z = (half ^ key) * ODD
    return z ^ (z >> FOLD)
