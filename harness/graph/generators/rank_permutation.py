"""Random permutations of ranks without a table, by which generators hide the ranks of vertices.

Verifier (tests/sources/test_twin.py): Python's integers.
"""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random import MIX_1, Purpose, derive_key

DROPPED_BITS, UNIT = np.uint64(11), 0.5**53
ROUNDS = 2
ODD, FOLD = np.uint64(MIX_1), np.uint64(31)


def count_bits(count: int) -> int:
    """Return the number of bits of numbers below `count`; the permutation needs at least two."""
    return max((count - 1).bit_length(), 2)


def derive_edge_keys(seed: int) -> tuple[np.uint64, np.uint64]:
    """Return the keys of the random numbers of edges."""
    first, second = derive_key(seed, Purpose.EDGES)
    return np.uint64(first), np.uint64(second)


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


@compiled(nogil=True)
def permute_ranks(ranks: Any, n: int, bits: int, keys: tuple[Any, Any]) -> None:
    """Replace every rank by its image under the permutation."""
    for k in range(ranks.size):
        ranks[k] = permute_rank(ranks[k], n, bits, keys)
