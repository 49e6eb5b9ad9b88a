"""The compiled twin of `random.bits_by_tensors`: one pass over the indices, a nanosecond each."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.splitmix import GOLDEN, MIX_1, MIX_2

G, M1, M2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
S20, LANE = np.uint64(20), np.uint64(0xFFFF)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def bits_of(index: Any, first: int, second: int) -> Any:
    """64 random bits for each element of an int64 array, as int64 in an array of its shape."""
    flat = np.ascontiguousarray(index).reshape(-1).view(np.uint64)
    return _bits(flat, np.uint64(first), np.uint64(second)).view(np.int64).reshape(index.shape)


def mask_of(rows: Any, start: int, stop: int, first: int, second: int, below: int) -> Any:
    """The truth values of `random.mask`."""
    rows = np.ascontiguousarray(rows).view(np.uint64)
    return _mask(rows, start, stop, np.uint64(first), np.uint64(second), np.uint64(below))


@compiled(nogil=True)
def bits_at(index: Any, first: Any, second: Any) -> Any:
    """Those of one index; all three are unsigned."""
    return mixed(mixed(index * G + first) + second)


@compiled(nogil=True)
def mixed(z: Any) -> Any:
    """The splitmix64 finaliser."""
    z = (z ^ (z >> S30)) * M1
    z = (z ^ (z >> S27)) * M2
    return z ^ (z >> S31)


@compiled(nogil=True)
def _bits(index: Any, first: Any, second: Any) -> Any:
    out = np.empty_like(index)
    for i in range(index.size):
        out[i] = bits_at(index[i], first, second)
    return out


@compiled(nogil=True)
def _mask(rows: Any, start: int, stop: int, first: Any, second: Any, below: Any) -> Any:
    out = np.empty((rows.size, stop - start), dtype=np.bool_)
    for i in range(rows.size):
        row = rows[i] << S20
        for block in range(start // 4, (stop + 3) // 4):
            word = bits_at(row + np.uint64(block), first, second)
            for lane in range(max(start - 4 * block, 0), min(stop - 4 * block, 4)):
                out[i, 4 * block + lane - start] = ((word >> np.uint64(16 * lane)) & LANE) < below
    return out
