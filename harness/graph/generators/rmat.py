"""R-MAT: a scale-free graph, as in Graph500. Skewed degrees, one giant component, many isolated vertices.

An edge falls into one of the four quadrants of the adjacency with probabilities a, b, c, d, then again within that
quadrant, `scale` times, until one element is left; so the number of vertices is always 2 ** scale. Vertices are renamed
by a random permutation at the end: otherwise vertex 0 would be the hub.

Statistics, symmetrised, with default probabilities and edge factor 16: at scale 16, the mean degree is 28, 29 % of the
vertices are isolated, the largest degree is near 10^4, and 13 % of the draws are loops or duplicates.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from harness.kernels.jit import compiled
from harness.kernels.random import NUMBA_THRESHOLD, Purpose, derive_key, hash_index, random_order, uniform


@dataclass(frozen=True)
class Rmat:
    """The generator. Draw k uses random numbers k * scale .. (k + 1) * scale - 1; later numbers give names."""

    scale: int
    edge_factor: float
    seed: int
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19

    chunk: ClassVar[int] = 1 << 20

    @property
    def n(self) -> int:
        return 1 << self.scale

    @property
    def draws(self) -> int:
        return round(self.edge_factor * self.n)

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Return source and target of these draws, loops and duplicates included."""
        is_small = len(draws) * self.scale < NUMBA_THRESHOLD
        return self.edges_by_tensors(draws) if is_small else self.edges_by_loop(draws)

    def edges_by_tensors(self, draws: range) -> tuple[Tensor, Tensor]:
        """Draw the same edges with tensor operations, level by level for all draws at once."""
        numbers = range(draws.start * self.scale, draws.stop * self.scale)
        chance = uniform(self.seed, Purpose.EDGES, numbers).view(len(draws), self.scale)
        source = torch.zeros(len(draws), dtype=torch.int64)
        target = torch.zeros(len(draws), dtype=torch.int64)
        for level in range(self.scale):
            u = chance[:, level]
            lower = u >= self.a + self.b
            right = torch.where(lower, u >= self.a + self.b + self.c, u >= self.a)
            source = 2 * source + lower
            target = 2 * target + right
        return self._names[source].long(), self._names[target].long()

    def edges_by_loop(self, draws: range) -> tuple[Tensor, Tensor]:
        """Draw the same edges with a compiled loop, ten times as fast."""
        ends = np.empty(len(draws), np.int64), np.empty(len(draws), np.int64)
        chances = self.a, self.a + self.b, self.a + self.b + self.c
        descend_quadrants(draws, self._names.numpy(), derive_key(self.seed, Purpose.EDGES), chances, ends)
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])

    @cached_property
    def _names(self) -> Tensor:
        after = self.draws * self.scale
        return random_order(self.seed, Purpose.EDGES, range(after, after + self.n)).to(torch.int32)


# The compiled loop uses the same numbers and the same comparisons. Verifier: `Rmat.edges_by_tensors`.

DROPPED_BITS, BITS, ONE = np.uint64(11), 53, np.uint64(1)
"""A number in [0, 1) consists of 53 of the 64 bits. The loop compares these bits as integers."""
BATCH_DRAWS = 2048
"""The number of draws at a time, whose vertices fit in the L1 cache."""


def descend_quadrants(
    draws: range, names: Any, keys: tuple[int, int], chances: tuple[float, ...], out: tuple[Any, Any]
) -> None:
    """Fill `out` with sources and targets of these draws. `chances` are a, a + b, a + b + c."""
    one, other = (np.uint64(key) for key in keys)
    a, ab, abc = (np.uint64(ceil(chance * 2**BITS)) for chance in chances)
    scale = len(names).bit_length() - 1
    _descend_all_levels(draws.start, scale, names, (one, other), (a, ab, abc), out)


@compiled(nogil=True)
def _descend_all_levels(
    first: int,
    scale: int,
    names: Any,
    keys: tuple[Any, Any],
    bounds: tuple[Any, Any, Any],
    out: tuple[Any, Any],
) -> None:
    """Descend level by level for BATCH_DRAWS draws at a time, so that the loops are vectorised."""
    source, target = out
    s, t = np.empty(BATCH_DRAWS, np.uint64), np.empty(BATCH_DRAWS, np.uint64)
    for start in range(0, source.size, BATCH_DRAWS):
        size = min(BATCH_DRAWS, source.size - start)
        s[:size] = 0
        t[:size] = 0
        for level in range(scale):
            index = np.uint64((first + start) * scale + level)
            _choose_quadrants(index, np.uint64(scale), keys, bounds, s[:size], t[:size])
        for k in range(size):
            source[start + k], target[start + k] = names[s[k]], names[t[k]]


@compiled(nogil=True)
def _choose_quadrants(
    index: Any, stride: Any, keys: tuple[Any, Any], bounds: tuple[Any, Any, Any], s: Any, t: Any
) -> None:
    """Append one bit to every source and target."""
    a, ab, abc = bounds
    for k in range(s.size):
        v = hash_index(index + np.uint64(k) * stride, keys[0], keys[1]) >> DROPPED_BITS
        right = abc if v >= ab else a
        s[k] = (s[k] << ONE) | np.uint64(v >= ab)
        t[k] = (t[k] << ONE) | np.uint64(v >= right)
