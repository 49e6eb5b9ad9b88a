"""Vertices of others that are computed here, with all that this takes: those for which it is worth it.

A vertex at height k has been computed through k layers; that takes its neighbours at height k - 1, and so on down to
the features at height 0. Every vertex is its own neighbour, so who is at a height is at all below. Neighbours of a
block are raised from height to height, at each the shortest rows first, and each only if what it takes beyond what is
there already costs less than it is worth: the greedy choice of NeutronStar (SIGMOD'22).
Verifier (tests/kernels/test_closure.py): sets.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr, block, take
from harness.kernels.parts import filled_columns


class Prices(NamedTuple):
    """By height, all in one unit."""

    worth: Sequence[float]
    """What it saves to have a vertex there."""
    vertex: Sequence[float]
    """What it costs to bring a vertex up to there."""
    entry: Sequence[float]
    """What more it costs for every entry of its row."""


def heights(A: Csr, own: range, prices: Prices, room: int) -> Tensor:
    """Of every vertex the height at which the owner of a block has it: -1 for nowhere, beyond all for its own.

    int8; `room` is how many vertices of others it takes at most.
    """
    from harness.kernels.closure_compiled import raise_each

    rows = A.rowptr.numpy(), A.col.numpy()
    vertex, entry = (np.array([0.0, *each]) for each in (prices.vertex, prices.entry))
    height = np.full(A.cols, -1, np.int8)
    height[own.start : own.stop] = len(prices.worth)
    wanted = boundary(A, own)
    shortest_first = wanted[take(A.rowptr.diff(), wanted).argsort(stable=True)].numpy()
    for level, worth in enumerate(prices.worth):
        room -= raise_each(rows, (vertex, entry), height, shortest_first, level, (float(worth), room))
    return torch.from_numpy(height)


def boundary(A: Csr, own: range) -> Tensor:
    """The vertices outside a block at which its rows have entries, ascending."""
    cols = filled_columns(block(A, own, range(A.cols)))
    return cols[(cols < own.start) | (cols >= own.stop)]
