"""The compiled twin of `shuffle.by_tensors`: many numbers at once, and what is left outside once more."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random_compiled import G, mixed

HIGH = np.uint64(32)
AT_ONCE = 1024


def walked(index: Any, n: int, sides: tuple[int, int], keys: Any, back: bool) -> Any:
    """int64, as the index is."""
    flat = np.ascontiguousarray(index).reshape(-1).view(np.uint64)
    height, width = np.uint64(sides[0]), np.uint64(sides[1])
    found = _walk(flat, np.uint64(n), height, width, keys.view(np.uint64), back)
    return found.view(np.int64).reshape(index.shape)


@compiled(nogil=True)
def _walk(index: Any, n: Any, height: Any, width: Any, keys: Any, back: bool) -> Any:
    found = np.empty_like(index)
    for start in range(0, index.size, AT_ONCE):
        _once(index[start : start + AT_ONCE], found[start : start + AT_ONCE], height, width, keys, back)
    for i in range(index.size):
        while found[i] >= n:
            _once(found[i : i + 1], found[i : i + 1], height, width, keys, back)
    return found


@compiled(nogil=True)
def _once(index: Any, found: Any, height: Any, width: Any, keys: Any, back: bool) -> None:
    """All through one round before any goes through the next, or back: so the loops become vectors."""
    rows = index // width
    cols = index - rows * width
    if back:
        for last in range(keys.size, 0, -2):
            _take_back(cols, rows, keys[last - 1], width)
            _take_back(rows, cols, keys[last - 2], height)
    else:
        for number in range(0, keys.size, 2):
            _move(rows, cols, keys[number], height)
            _move(cols, rows, keys[number + 1], width)
    found[:] = rows * width + cols


@compiled(nogil=True)
def _move(ends: Any, others: Any, key: Any, bound: Any) -> None:
    for i in range(ends.size):
        moved = ends[i] + _below(others[i], key, bound)
        ends[i] = moved - bound if moved >= bound else moved


@compiled(nogil=True)
def _take_back(ends: Any, others: Any, key: Any, bound: Any) -> None:
    for i in range(ends.size):
        step = _below(others[i], key, bound)
        ends[i] = ends[i] - step if ends[i] >= step else ends[i] + (bound - step)


@compiled(nogil=True, forceinline=True)
def _below(x: Any, key: Any, bound: Any) -> Any:
    return ((mixed(x * G + key) >> HIGH) * bound) >> HIGH
