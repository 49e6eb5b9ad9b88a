"""The bins of a rank: groups of its vertices, in the order of a priority list (SIGMOD'23, section 5.2)."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.jit import compiled
from harness.kernels.parts import extract_block
from harness.strategy import Context

# Breadth-first search of every component. Tested in tests/kernels/test_traverse.py against scipy.


def breadth_first(A: Csr) -> Tensor:
    """Return all vertices in breadth-first order; each search starts at the first vertex not yet visited."""
    assert A.rows == A.cols
    order = np.empty(A.rows, np.int64)
    _search(A.rowptr.numpy(), A.col.numpy(), order)
    return torch.from_numpy(order)


@compiled()
def _search(rowptr: Any, col: Any, order: Any) -> None:
    visited = np.zeros(order.size, np.bool_)
    head = tail = 0
    for first in range(order.size):
        if visited[first]:
            continue
        visited[first] = True
        order[tail] = first
        tail += 1
        while head < tail:
            v = order[head]
            head += 1
            for e in range(rowptr[v], rowptr[v + 1]):
                u = col[e]
                if not visited[u]:
                    visited[u] = True
                    order[tail] = u
                    tail += 1


class BinOrder(NamedTuple):
    """The order in which bins are computed.

    The inputs of the first layer are complete, so it computes bins in list order. In later layers, if bins do not wait
    for whole layers, the bins that need no rows of other ranks come first.
    """

    later: Sequence[int]

    def in_layer(self, layer: int) -> Sequence[int]:
        """Return the bins in the order of a layer's forward pass. The position of a bin in this order is its turn."""
        return self.later if layer else range(len(self.later))


class BinList:
    """The vertices of each bin, and the order of the bins."""

    def __init__(self, parts: Sequence[Tensor], waits: Sequence[bool]) -> None:
        self.parts = parts
        self.order = BinOrder(sorted(range(len(parts)), key=lambda number: waits[number]))

    @cached_property
    def bin_and_turn(self) -> Tensor:
        """The bin of every vertex, and the turn of that bin in later layers."""
        turns = torch.empty(len(self.parts), dtype=torch.int64)
        turns[torch.tensor(self.order.later, dtype=torch.int64)] = torch.arange(len(self.parts))
        table = torch.empty(sum(map(len, self.parts)), 2, dtype=torch.int64)
        for number, vertices in enumerate(self.parts):
            table[vertices, 0], table[vertices, 1] = number, turns[number]
        return table


def cut_into_bins(ctx: Context, rows: range, size: int, *, priority: bool, at_once: bool) -> BinList:
    """Cut the vertices of a rank into bins of `size` vertices.

    A priority list starts with the vertices that have neighbours on other ranks; both halves are in breadth-first
    order. With shapes only, vertices stay in numerical order, and every bin waits for other ranks.
    """
    listed, remote = torch.arange(len(rows)), torch.ones(len(rows), dtype=torch.bool)
    if not len(rows):
        return BinList((), ())
    if not ctx.blocks.has_only_shapes:
        A = ctx.blocks.host_adjacency(rows, range(ctx.facts.vertices))
        inside = extract_block(A, range(len(rows)), rows)
        remote = inside.rowptr.diff() < A.rowptr.diff()
        if priority:
            order = breadth_first(inside)
            listed = torch.cat([order[remote[order]], order[~remote[order]]])
    parts = listed.split(size)
    return BinList(parts, [at_once and bool(remote[part].any()) for part in parts])
