"""The bins of a rank: the priority list of its vertices, cut into groups (SIGMOD'23, section 5.2)."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.jit import compiled
from harness.kernels.parts import extract_block
from harness.strategy import Context

# The vertices in the order of a breadth-first search of every component.
#
# Verifier (tests/kernels/test_traverse.py): scipy's search of every component.


def breadth_first(A: Csr) -> Tensor:
    """All vertices, component by component; each search starts at the first vertex not yet visited."""
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


class BinList:
    """The vertices of every bin, and the order in which the bins are computed.

    The inputs of the first layer are complete, so its order is the list's. In later layers, if bins do not wait for
    whole layers, the bins that need no rows of other ranks come first.
    """

    def __init__(self, parts: Sequence[Tensor], waits: Sequence[bool]) -> None:
        self.parts = parts
        self.later = sorted(range(len(parts)), key=lambda number: waits[number])

    def order(self, layer: int) -> Sequence[int]:
        """The bins in the order of a layer's forward pass; the place of a bin in this order is its turn."""
        return self.later if layer else range(len(self.parts))

    @cached_property
    def bin_and_turn(self) -> Tensor:
        """For every vertex its bin, and the turn of that bin in later layers."""
        turns = torch.empty(len(self.parts), dtype=torch.int64)
        turns[torch.tensor(self.later, dtype=torch.int64)] = torch.arange(len(self.parts))
        table = torch.empty(sum(map(len, self.parts)), 2, dtype=torch.int64)
        for number, vertices in enumerate(self.parts):
            table[vertices, 0], table[vertices, 1] = number, turns[number]
        return table


def cut_into_bins(ctx: Context, rows: range, size: int, *, priority: bool, at_once: bool) -> BinList:
    """The bins of a rank, of `size` vertices each.

    A priority list has the vertices with neighbours on other ranks first and then the rest, both in the order of the
    search. Shapes alone give the list in the order of the numbers, and every bin waits for other ranks.
    """
    listed, remote = torch.arange(len(rows)), torch.ones(len(rows), dtype=torch.bool)
    if not len(rows):
        return BinList((), ())
    A = ctx.blocks.host_block(rows, range(ctx.facts.vertices))
    if not A.col.is_meta:
        inside = extract_block(A, range(len(rows)), rows)
        remote = inside.rowptr.diff() < A.rowptr.diff()
        if priority:
            order = breadth_first(inside)
            listed = torch.cat([order[remote[order]], order[~remote[order]]])
    parts = listed.split(size)
    return BinList(parts, [at_once and bool(remote[part].any()) for part in parts])
