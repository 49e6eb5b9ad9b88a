"""Compiled code is kept on disk, and where nothing can be kept it is compiled all the same."""

import numba

from harness.kernels.jit import compiled
from harness.kernels.tiles import multiply_rows


def test_kernels_are_kept():
    assert multiply_rows.stats.cache_path is not None


def test_no_place_to_keep_it():
    """A function without a file stands for a folder that cannot be written: both have no place."""
    space: dict = {}
    exec("def double(x):\n    return 2 * x", space)
    double = compiled()(space["double"])
    assert isinstance(double, numba.core.registry.CPUDispatcher)
    assert double(21) == 42
