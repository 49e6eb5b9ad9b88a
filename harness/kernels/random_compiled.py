"""The compiled twin of `random.bits_by_tensors`: one pass over the indices, a nanosecond each."""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.splitmix import GOLDEN, MIX_1, MIX_2

G, M1, M2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def bits_of(index: Any, first: int, second: int) -> Any:
    """64 random bits for each element of an int64 array, as int64 in an array of its shape."""
    flat = np.ascontiguousarray(index).reshape(-1).view(np.uint64)
    return _bits(flat, np.uint64(first), np.uint64(second)).view(np.int64).reshape(index.shape)


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
