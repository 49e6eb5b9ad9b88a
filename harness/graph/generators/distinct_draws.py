"""Generators that draw edges until a requested number of distinct edges is reached.

Loops and duplicates are lost, so there are more draws than edges.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.base.errors import UserError
from harness.graph.generators.rank_permutation import count_bits, derive_edge_keys, permute_ranks
from harness.graph.model import Ints

MAX_COUNTED_EDGES = 1 << 18
"""Up to this many edges, draws are counted exactly; beyond, they are estimated from as many probabilities."""
DRAWS_PER_EDGE = 64
"""The most draws per edge: a graph that needs more is nearly complete."""
DIGITS = 12
"""Significant bits of an estimated number of draws, few enough that all machines round their logarithms alike."""


@dataclass(frozen=True)
class DistinctDraws(ABC):
    """The size of a random graph, and the number of draws that it takes."""

    n: int
    distinct: int
    """The number of distinct edges, without loops."""
    seed: int
    directed: bool = False
    """True if (u, v) and (v, u) are different edges."""

    @abstractmethod
    def draw_edge_ranks(self, draws: range) -> tuple[Ints, Ints]:
        """Return the ranks of source and target of these draws."""

    @abstractmethod
    def compute_one_way(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        """Return the probability that a draw goes from one rank to another."""

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Return source and target of these draws, loops and duplicates included."""
        ends = self.draw_edge_ranks(draws)
        for end in ends:
            permute_ranks(end, self.n, count_bits(self.n), derive_edge_keys(self.seed))
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])

    @cached_property
    def draws(self) -> int:
        """The fewest draws that give `distinct` edges: counted if the graph is small, else estimated.

        The estimate for a large graph is within a fraction of a percent.
        """
        return self._count_draws() if self.distinct <= MAX_COUNTED_EDGES else self._estimate_draws()

    def compute_probability(self, source: Ints, target: Ints) -> NDArray[np.float64]:
        """Return the probability that a draw is the edge between two ranks, in either direction unless directed."""
        forward = self.compute_one_way(source, target)
        return forward if self.directed else forward + self.compute_one_way(target, source)

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
