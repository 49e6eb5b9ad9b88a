"""Pseudo-random permutations of 0 .. n - 1 that are computed on demand, in both directions, without a table.

A Feistel network over a rectangle: a number is a row and a column of the smallest near-square rectangle with at least
n cells. Each round shifts one coordinate by a random function of the other, which is invertible. Results of n or more
pass through the network again (cycle walking). In large batches a number takes five nanoseconds; a table of 10^8
numbers would take half a gigabyte. There are two bitwise-identical implementations: torch operations and, on a CPU, a
compiled loop, which is used for every size because samplers permute a few numbers in each step.
Verifier (tests/kernels/test_shuffle.py): Python's integers, and the statistics of permutations.
"""

from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.kernels.jit import compiled
from harness.kernels.random import (
    GOLDEN,
    G,
    Index,
    Purpose,
    Seed,
    mix,
    mix_word,
    random_bits,
    shift_right,
    to_signed,
)

ROUNDS, ROUNDS_OF_FEW = 4, 16
"""Four rounds suffice for large n (Luby and Rackoff, 1988); small n needs more rounds."""
FEW = 1 << 20
LARGEST = 1 << 61
HIGH = 32
"""The number of random bits that are used: the upper half."""


class RandomPermutation(NamedTuple):
    """A pseudo-random permutation of 0 .. n - 1."""

    n: int
    keys: Tensor
    """The key of each round, int64."""

    def values_at(self, places: Index) -> Tensor:
        """Return the values of the permutation at these positions."""
        return self._permute(places, back=False)

    def positions_of(self, numbers: Index) -> Tensor:
        """Return the positions of these values: the inverse of `values_at`."""
        return self._permute(numbers, back=True)

    @property
    def sides(self) -> tuple[int, int]:
        """The rows and columns of the rectangle."""
        height = max(isqrt(max(self.n, 1) - 1) + 1, 1)
        return height, max(-(-self.n // height), 1)

    def _permute(self, index: Index, *, back: bool) -> Tensor:
        if isinstance(index, range):
            index = torch.arange(index.start, index.stop, index.step)
        return (permute_numba if index.device.type == "cpu" else permute_torch)(self, index, back=back)


def random_permutation(seed: Seed, purpose: Purpose, n: int, number: int = 0) -> RandomPermutation:
    """Return the permutation of 0 .. n - 1 with this number."""
    assert 0 <= n < LARGEST, n
    rounds = ROUNDS_OF_FEW if n < FEW else ROUNDS
    return RandomPermutation(n, random_bits(seed, purpose, range(rounds * number, rounds * (number + 1))))


def sample_distinct(seed: Seed, high: int, size: int, device: torch.device | None = None) -> Tensor:
    """Sample `size` distinct numbers of 0 .. high - 1 uniformly, in ascending order.

    The work depends only on `size`. Samplers rely on exact pair probabilities, so the draw uses the larger round count.
    """
    assert 0 <= size <= high < LARGEST, (size, high)
    permutation = RandomPermutation(high, random_bits(seed, Purpose.SAMPLE, range(ROUNDS_OF_FEW)))
    return permutation.values_at(torch.arange(size, device=device)).sort().values


def permute_numba(permutation: RandomPermutation, index: Tensor, *, back: bool) -> Tensor:
    """Permute numbers with a compiled loop."""
    n, keys = permutation
    return torch.from_numpy(permute_array(index.numpy(), n, permutation.sides, keys.numpy(), back))


def permute_torch(permutation: RandomPermutation, index: Tensor, *, back: bool) -> Tensor:
    """Permute numbers with torch operations, repeated until all results are below n."""
    n, keys, sides = permutation.n, permutation.keys, permutation.sides
    result = _permute_once(index, sides, keys, back)
    while len(outside := (result >= n).nonzero(as_tuple=True)[0]):
        result[outside] = _permute_once(result[outside], sides, keys, back)
    return result


def _permute_once(index: Tensor, sides: tuple[int, int], keys: Tensor, back: bool) -> Tensor:
    """Pass through all rounds once, forward or backward."""
    coordinates = [index // sides[1], index % sides[1]]
    for number in reversed(range(len(keys))) if back else range(len(keys)):
        moved, other = number % 2, 1 - number % 2
        step = _random_below(coordinates[other], int(keys[number]), sides[moved])
        coordinates[moved] = (coordinates[moved] + (-step if back else step)) % sides[moved]
    return coordinates[0] * sides[1] + coordinates[1]


def _random_below(x: Tensor, key: int, bound: int) -> Tensor:
    """Return a random number in [0, bound) for each x."""
    return (shift_right(mix(x * to_signed(GOLDEN) + key), HIGH) * bound) >> HIGH


# The compiled version of `permute_torch`, which processes numbers in batches.

HIGH_BITS = np.uint64(32)
BATCH = 1024
"""The numbers that pass through a round together, so that they stay in cache."""


def permute_array(index: Any, n: int, sides: tuple[int, int], keys: Any, back: bool) -> Any:
    """Return the permuted numbers, int64, in the shape of `index`."""
    flat = np.ascontiguousarray(index).reshape(-1).view(np.uint64)
    height, width = np.uint64(sides[0]), np.uint64(sides[1])
    result = _walk(flat, np.uint64(n), height, width, keys.view(np.uint64), back)
    return result.view(np.int64).reshape(index.shape)


@compiled(nogil=True)
def _walk(index: Any, n: Any, height: Any, width: Any, keys: Any, back: bool) -> Any:
    result = np.empty_like(index)
    for start in range(0, index.size, BATCH):
        _walk_once(index[start : start + BATCH], result[start : start + BATCH], height, width, keys, back)
    for i in range(index.size):
        while result[i] >= n:
            _walk_once(result[i : i + 1], result[i : i + 1], height, width, keys, back)
    return result


@compiled(nogil=True)
def _walk_once(index: Any, result: Any, height: Any, width: Any, keys: Any, back: bool) -> None:
    """Pass once, forward or backward. All numbers finish a round before the next one, so that the loops vectorise."""
    rows = index // width
    cols = index - rows * width
    if back:
        for last in range(keys.size, 0, -2):
            _shift_back(cols, rows, keys[last - 1], width)
            _shift_back(rows, cols, keys[last - 2], height)
    else:
        for number in range(0, keys.size, 2):
            _shift_forward(rows, cols, keys[number], height)
            _shift_forward(cols, rows, keys[number + 1], width)
    result[:] = rows * width + cols


@compiled(nogil=True)
def _shift_forward(ends: Any, others: Any, key: Any, bound: Any) -> None:
    for i in range(ends.size):
        moved = ends[i] + _random_word_below(others[i], key, bound)
        ends[i] = moved - bound if moved >= bound else moved


@compiled(nogil=True)
def _shift_back(ends: Any, others: Any, key: Any, bound: Any) -> None:
    for i in range(ends.size):
        step = _random_word_below(others[i], key, bound)
        ends[i] = ends[i] - step if ends[i] >= step else ends[i] + (bound - step)


@compiled(nogil=True, forceinline=True)
def _random_word_below(x: Any, key: Any, bound: Any) -> Any:
    return ((mix_word(x * G + key) >> HIGH_BITS) * bound) >> HIGH_BITS
