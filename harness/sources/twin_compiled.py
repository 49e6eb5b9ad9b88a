"""The draws of `harness.sources.twin` as compiled loops. Verifier (tests/sources/test_twin.py): Python's integers."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random_compiled import bits_at
from harness.kernels.splitmix import MIX_1

KEPT, UNIT = np.uint64(11), 0.5**53
ROUNDS = 2
ODD, FOLD = np.uint64(MIX_1), np.uint64(31)
NUMBERS = 4
"""Of a draw: its source, whether it stays in its cluster, its target there or anywhere, one to spare."""


@compiled(nogil=True)
def draw_ranks(
    first: int, n: int, cluster: tuple[int, float], keys: tuple[Any, Any], out: tuple[Any, Any]
) -> None:
    """Source and target, by rank, of the draws from `first` on, as many as there is room for.

    `cluster` is how many neighbours are one, and the share of draws within.
    """
    source, target = out
    size, within = cluster
    for k in range(source.size):
        index = np.uint64(NUMBERS) * np.uint64(first + k)
        start = rank_of(bits_at(index, keys[0], keys[1]), n)
        u = bits_at(index + np.uint64(2), keys[0], keys[1])
        if within > 0 and np.float64(bits_at(index + np.uint64(1), keys[0], keys[1]) >> KEPT) * UNIT < within:
            corner = start - start % size
            end = corner + int(np.float64(u >> KEPT) * UNIT * min(size, n - corner))
        else:
            end = rank_of(u, n)
        source[k], target[k] = start, end


@compiled(nogil=True)
def name_ranks(ranks: Any, n: int, bits: int, keys: tuple[Any, Any]) -> None:
    """Puts the name of every rank in its place; `bits` are those of a name."""
    for k in range(ranks.size):
        ranks[k] = name_of(ranks[k], n, bits, keys)


@compiled(nogil=True)
def draw_roads(
    first: int, lattice: tuple[int, int, int], bits: int, keys: tuple[Any, Any], out: tuple[Any, Any]
) -> None:
    """Source and target of the places of a lattice from the `first` on, in their random order.

    `lattice` is its width, its places across and all its places; `bits` are those of a place.
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
    """A vertex by its rank: the chance falls with the root of the rank, as degrees then do."""
    u = np.float64(bits >> KEPT) * UNIT
    return int(u * u * n)


@compiled(nogil=True)
def name_of(rank: int, n: int, bits: int, keys: tuple[Any, Any]) -> int:
    """The name behind a rank: a permutation of 0 .. n - 1 that needs no table (Feistel, walking until it is inside)."""
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
    """One multiplication: a name must look like any other, and no more."""
    z = (half ^ key) * ODD
    return z ^ (z >> FOLD)
