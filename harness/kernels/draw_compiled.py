"""The compiled twin of `draw.by_tensors`: some numbers at once, and those that are left outside the range once more."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random_compiled import bits_at

HALF = np.uint64(32)
AT_ONCE = 1024


def first_of_permutation(
    size: int, below: int, shape: tuple[int, int], rounds: int, key: tuple[int, int]
) -> Any:
    """The first values of the permutation, in its order, int64."""
    return _first(size, below, shape[0], shape[1], rounds, np.uint64(key[0]), np.uint64(key[1]))


@compiled(nogil=True)
def _first(size: int, below: int, tall: int, wide: int, rounds: int, first: Any, second: Any) -> Any:
    drawn = np.empty(size, dtype=np.int64)
    rows, cols = np.empty(AT_ONCE, dtype=np.int64), np.empty(AT_ONCE, dtype=np.int64)
    for start in range(0, size, AT_ONCE):
        many = min(AT_ONCE, size - start)
        row, col = start // wide, start % wide
        for i in range(many):
            rows[i], cols[i] = row, col
            col += 1
            if col == wide:
                row, col = row + 1, 0
        _move(rows[:many], cols[:many], tall, wide, rounds, first, second)
        for i in range(many):
            drawn[start + i] = rows[i] * wide + cols[i]
    for i in range(size):
        while drawn[i] >= below:
            rows[0], cols[0] = drawn[i] // wide, drawn[i] % wide
            _move(rows[:1], cols[:1], tall, wide, rounds, first, second)
            drawn[i] = rows[0] * wide + cols[0]
    return drawn


@compiled(nogil=True)
def _move(rows: Any, cols: Any, tall: int, wide: int, rounds: int, first: Any, second: Any) -> None:
    """Many through one round before any goes through the next: so the loops become vectors."""
    for turn in range(0, rounds, 2):
        for i in range(rows.size):
            rows[i] = _moved(rows[i], tall, (turn << 40) + cols[i], first, second)
        for i in range(rows.size):
            cols[i] = _moved(cols[i], wide, (turn + 1 << 40) + rows[i], first, second)


@compiled(nogil=True, forceinline=True)
def _moved(half: int, below: int, by: int, first: Any, second: Any) -> Any:
    """Further along 0 .. below - 1, round and round; no division, which would cost more than the bits."""
    word = bits_at(np.uint64(by), first, second) >> HALF
    moved = half + np.int64((word * np.uint64(below)) >> HALF)
    return moved - below if moved >= below else moved
