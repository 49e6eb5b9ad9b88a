"""Generates a graph with nested communities, power-law degrees and a number of distinct edges, at any scale.

The graph is two halves, each half two quarters, and so on. `across` is the fraction of edges between the two halves.
Every further division multiplies the fraction by `growth`: the edges between the halves of each half are
`across * growth` of all edges. So in 2^k parts that follow the communities, the cut is

    cut(2^k) = across * (1 + growth + ... + growth^(k - 1))

of the edges. In a small and dense graph it is up to a tenth more: hubs of a small community draw the same edges again,
and repeated draws count once. A growth of 1 gives every division as many edges, and of sqrt(2) gives a planar graph.
The edges that are left stay in the smallest communities, which have room for them. In a small graph with many
communities, hubs have fewer neighbours than the law of degrees says, because they cannot have more than their
community.

Vertices are drawn by rank. The rank is n u^skew for a uniform number u, so the first x n of n ranks have x^(1/skew) of
the ends of edges. A skew of 1 gives equal degrees, and of 2 degrees that fall with the root of the rank. The last k
bits of a rank name its community among 2^k, so all communities have the same degrees. A random permutation hides the
ranks.

No draw needs a table: an edge is a function of (parameters, seed, number). `harness.graph.generators.community_counts`
computes what to expect, and fits the parameters to a published cut.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from harness.graph.generators.distinct_draws import DRAWS_PER_EDGE, DistinctDraws
from harness.graph.generators.rank_permutation import derive_edge_keys, to_unit
from harness.graph.generators.shapes import CommunityLaw
from harness.graph.model import Ints
from harness.kernels.jit import compiled
from harness.kernels.random import hash_index

DRAWS_PRECISION = 2.0**-10
"""The precision of the estimated draws per edge inside communities."""
SHARE_BITS = 32
"""Bits of the fraction of draws that a division cuts, few enough that all machines round it alike."""


@dataclass(frozen=True)
class Communities(DistinctDraws):
    """The generator. Draw k uses random numbers 3 k .. 3 k + 2."""

    law: CommunityLaw = field(kw_only=True)

    chunk: ClassVar[int] = 1 << 20

    @cached_property
    def cuts(self) -> NDArray[np.float64]:
        """The fraction of draws between communities after each division."""
        ends = 1 if self.directed else 2
        cuts = self.law.compute_cuts(self.n, ends * self.distinct / self.n)
        if not len(cuts) or not self.distinct:
            return cuts
        inside = self._estimate_draws_inside(len(cuts), self.distinct * (1 - cuts[-1]))
        draws = inside + self.distinct * cuts[-1]
        return round_all(cuts * self.distinct / draws, SHARE_BITS)

    @property
    def divisions(self) -> int:
        """The number of divisions: there are 2^divisions smallest communities."""
        return len(self.cuts)

    def draw_edge_ranks(self, draws: range) -> tuple[Ints, Ints]:
        """Return the ranks of source and target of these draws."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        quarters = round(4 * self.law.skew)
        draw_nested(draws.start, self.n, quarters, self.cuts, derive_edge_keys(self.seed), ends)
        return ends

    def _estimate_draws_inside(self, divisions: int, edges: float) -> float:
        """Estimate the draws inside the smallest communities that give a number of distinct edges.

        Their vertices are those of one community, one of each block of 2^divisions ranks. Blocks behind the first are
        grouped, as their probabilities hardly differ.
        """
        blocks = self.n >> divisions
        bounds = np.unique(np.concatenate([np.arange(256), np.geomspace(256, blocks, 512)]).astype(np.int64))
        bounds = np.append(bounds[bounds < blocks], blocks)
        sizes = np.diff(bounds)
        chance = np.diff((bounds / blocks) ** (1 / self.law.skew)) / sizes
        both = 1 if self.directed else 2
        pairs = np.outer(sizes, sizes) - np.diag(sizes)
        likely = both * np.outer(chance, chance)
        target = edges / (1 << divisions)

        def count_edges(draws: float) -> float:
            return float((pairs * -np.expm1(-draws * likely)).sum()) / both

        few, many = 1.0, float(DRAWS_PER_EDGE)
        while many - few > DRAWS_PRECISION:
            middle = (few + many) / 2
            few, many = (middle, many) if count_edges(middle * target) < target else (few, middle)
        return few * edges

    def compute_one_way(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        """Return the probability that a draw goes from one rank to another."""
        shared = np.minimum(count_shared_divisions(source, target), self.divisions)
        shares = np.diff(self.cuts, prepend=0.0, append=1.0)
        bits = np.minimum(shared + 1, self.divisions)
        return self.compute_rank_mass(source, 0) * shares[shared] * self.compute_rank_mass(target, bits)

    def compute_rank_mass(self, rank: Ints, bits: Ints | int) -> NDArray[np.float64]:
        """Return the probability that a drawn rank becomes this one if its last `bits` bits are given.

        It is the probability of the block of 2^bits ranks around it. The last rank of a community also has the
        probability of the incomplete block behind it.
        """
        size = np.left_shift(1, bits)
        first = rank - rank % size
        last = np.where(rank + size >= self.n, self.n, first + size)
        power = 1 / self.law.skew
        mass: NDArray[np.float64] = (last / self.n) ** power - (first / self.n) ** power
        return mass


def round_all(numbers: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Return numbers with this many bits after the binary point."""
    rounded: NDArray[np.float64] = np.round(numbers * 2.0**bits) / 2.0**bits
    return rounded


def count_shared_divisions(one: Ints, other: Ints) -> Ints:
    """Return how many divisions leave two ranks in the same community; 63 for the same rank."""
    lowest_bit = (one ^ other) & -(one ^ other)
    shared: Ints = np.where(lowest_bit == 0, 63, np.frexp(lowest_bit.astype(np.float64))[1] - 1)
    return shared


# Compiled loop. Verifier (tests/sources/test_communities.py): Python's integers.

NUMBERS_PER_DRAW = 3
"""Random numbers per draw: its source, the division between its ends, and its target."""


@compiled(nogil=True)
def draw_nested(
    first: int, n: int, quarters: int, cuts: Any, keys: tuple[Any, Any], out: tuple[Any, Any]
) -> None:
    """Fill `out` with the ranks of source and target of the draws from `first` on.

    `quarters` is four times the skew. `cuts` are the fractions of draws between communities after each division.
    """
    source, target = out
    for k in range(source.size):
        index = np.uint64(NUMBERS_PER_DRAW) * np.uint64(first + k)
        start = draw_skewed_rank(hash_index(index, keys[0], keys[1]), n, quarters)
        chance = to_unit(hash_index(index + np.uint64(1), keys[0], keys[1]))
        end = draw_skewed_rank(hash_index(index + np.uint64(2), keys[0], keys[1]), n, quarters)
        shared = 0
        while shared < cuts.size and chance >= cuts[shared]:
            shared += 1
        bits, given = shared, start
        if shared < cuts.size:
            bits, given = shared + 1, start ^ (1 << shared)
        end = (end >> bits << bits) | (given & ((1 << bits) - 1))
        if end >= n:
            end -= 1 << bits
        source[k], target[k] = start, end


@compiled(nogil=True)
def draw_skewed_rank(bits: Any, n: int, quarters: int) -> int:
    """Draw a rank n u^(quarters / 4), by products and roots, which all machines round alike."""
    u = to_unit(bits)
    power = 1.0
    for _ in range(quarters // 4):
        power *= u
    half = np.sqrt(u)
    if quarters % 4 >= 2:
        power *= half
    if quarters % 2:
        power *= np.sqrt(half)
    return min(int(power * n), n - 1)
