"""The compiled twin of `draw.by_tensors`: one number after the other, each until it stands inside the range."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random_compiled import bits_at

HALF = np.uint64(32)


def first_of_permutation(
    size: int, below: int, shape: tuple[int, int], rounds: int, key: tuple[int, int]
) -> Any:
    """The first values of the permutation, in its order, int64."""
    return _first(size, below, shape[0], shape[1], rounds, np.uint64(key[0]), np.uint64(key[1]))


@compiled(nogil=True)
def _first(size: int, below: int, tall: int, wide: int, rounds: int, first: Any, second: Any) -> Any:
    drawn = np.empty(size, dtype=np.int64)
    for i in range(size):
        place = i
        while True:
            row, col = place // wide, place % wide
            for turn in range(0, rounds, 2):
                row = _moved(row, tall, (turn << 40) + col, first, second)
                col = _moved(col, wide, (turn + 1 << 40) + row, first, second)
            place = row * wide + col
            if place < below:
                break
        drawn[i] = place
    return drawn


@compiled(nogil=True, forceinline=True)
def _moved(half: int, below: int, by: int, first: Any, second: Any) -> Any:
    """Further along 0 .. below - 1, round and round; no division, which would cost more than the bits."""
    word = bits_at(np.uint64(by), first, second) >> HALF
    moved = half + np.int64((word * np.uint64(below)) >> HALF)
    return moved - below if moved >= below else moved
