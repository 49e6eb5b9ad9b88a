"""R-MAT's descent as a compiled loop: the same numbers, compared in the same way. Verifier: `Rmat.edges_by_tensors`."""

from math import ceil
from typing import Any

import numpy as np

from harness.kernels.jit import compiled
from harness.kernels.random_compiled import bits_at

KEPT, BITS, ONE = np.uint64(11), 53, np.uint64(1)
"""A number in [0, 1) is 53 of the 64 bits: here it is compared as the whole number that they are."""
SOME = 2048
"""Draws at a time: their vertices stay in the first cache."""


def descend(
    draws: range, names: Any, keys: tuple[int, int], chances: tuple[float, ...], out: tuple[Any, Any]
) -> None:
    """Fills sources and targets with these draws, by the vertices' names; chances of a, a + b, a + b + c."""
    one, other = (np.uint64(key) for key in keys)
    a, ab, abc = (np.uint64(ceil(chance * 2**BITS)) for chance in chances)
    scale = len(names).bit_length() - 1
    _descend(draws.start, scale, names, (one, other), (a, ab, abc), out)


@compiled(nogil=True)
def _descend(
    first: int,
    scale: int,
    names: Any,
    keys: tuple[Any, Any],
    bounds: tuple[Any, Any, Any],
    out: tuple[Any, Any],
) -> None:
    """Level by level for some draws at a time, so that one instruction serves several."""
    source, target = out
    s, t = np.empty(SOME, np.uint64), np.empty(SOME, np.uint64)
    for begin in range(0, source.size, SOME):
        size = min(SOME, source.size - begin)
        s[:size] = 0
        t[:size] = 0
        for level in range(scale):
            _choose(
                np.uint64((first + begin) * scale + level), np.uint64(scale), keys, bounds, s[:size], t[:size]
            )
        for k in range(size):
            source[begin + k], target[begin + k] = names[s[k]], names[t[k]]


@compiled(nogil=True)
def _choose(
    index: Any, stride: Any, keys: tuple[Any, Any], bounds: tuple[Any, Any, Any], s: Any, t: Any
) -> None:
    """One more bit for every source and target."""
    a, ab, abc = bounds
    for k in range(s.size):
        v = bits_at(index + np.uint64(k) * stride, keys[0], keys[1]) >> KEPT
        right = abc if v >= ab else a
        s[k] = (s[k] << ONE) | np.uint64(v >= ab)
        t[k] = (t[k] << ONE) | np.uint64(v >= right)
