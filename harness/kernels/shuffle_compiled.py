"""The compiled twin of `shuffle.by_tensors`."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random_compiled import G, mixed

HIGH, NOTHING = np.uint64(32), np.uint64(0)


def by_loop(index: Any, n: int, sides: tuple[int, int], keys: Any, back: bool) -> Any:
    """int64, as the index is."""
    flat = np.ascontiguousarray(index).reshape(-1).view(np.uint64)
    rectangle = np.uint64(n), np.uint64(sides[0]), np.uint64(sides[1])
    walk = _back if back else _through
    return walk(flat, rectangle, keys.view(np.uint64)).view(np.int64).reshape(index.shape)


@compiled(nogil=True)
def _through(index: Any, rectangle: tuple[Any, Any, Any], keys: Any) -> Any:
    n, height, width = rectangle
    out = np.empty_like(index)
    for i in range(index.size):
        x = index[i]
        while True:
            row = x // width
            col = x - row * width
            for number in range(0, keys.size, 2):
                row += _below(col, keys[number], height)
                row -= height if row >= height else NOTHING
                col += _below(row, keys[number + 1], width)
                col -= width if col >= width else NOTHING
            x = row * width + col
            if x < n:
                break
        out[i] = x
    return out


@compiled(nogil=True)
def _back(index: Any, rectangle: tuple[Any, Any, Any], keys: Any) -> Any:
    n, height, width = rectangle
    out = np.empty_like(index)
    for i in range(index.size):
        x = index[i]
        while True:
            row = x // width
            col = x - row * width
            for last in range(keys.size, 0, -2):
                step = _below(row, keys[last - 1], width)
                col += NOTHING if col >= step else width
                col -= step
                step = _below(col, keys[last - 2], height)
                row += NOTHING if row >= step else height
                row -= step
            x = row * width + col
            if x < n:
                break
        out[i] = x
    return out


@compiled(nogil=True)
def _below(x: Any, key: Any, bound: Any) -> Any:
    return ((mixed(x * G + key) >> HIGH) * bound) >> HIGH
