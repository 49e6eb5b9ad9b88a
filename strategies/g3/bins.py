"""The bins of a rank: its vertices in a list, and the list cut (SIGMOD'23, section 5.2)."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr, block
from harness.kernels.jit import compiled
from harness.strategy import Context

# Vertices in the order in which a search comes to them.
#
# Verifier (tests/kernels/test_traverse.py): scipy's search of every component.


def breadth_first(A: Csr) -> Tensor:
    """All vertices, component by component: from the first that was not met yet, along the entries of its row."""
    assert A.rows == A.cols
    found = np.empty(A.rows, np.int64)
    _search(A.rowptr.numpy(), A.col.numpy(), found)
    return torch.from_numpy(found)


@compiled()
def _search(rowptr: Any, col: Any, found: Any) -> None:
    met = np.zeros(found.size, np.bool_)
    head = tail = 0
    for first in range(found.size):
        if met[first]:
            continue
        met[first] = True
        found[tail] = first
        tail += 1
        while head < tail:
            v = found[head]
            head += 1
            for e in range(rowptr[v], rowptr[v + 1]):
                u = col[e]
                if not met[u]:
                    met[u] = True
                    found[tail] = u
                    tail += 1


class Bins:
    """Their vertices, and in which order they are computed.

    What the first layer needs is there: its order is that of the list. In later layers, where bins do not wait for
    whole layers, those come first that wait for nobody.
    """

    def __init__(self, parts: Sequence[Tensor], waits: Sequence[bool]) -> None:
        self.parts = parts
        self.later = sorted(range(len(parts)), key=lambda number: waits[number])

    def order(self, layer: int) -> Sequence[int]:
        return self.later if layer else range(len(self.parts))

    @cached_property
    def of_vertices(self) -> Tensor:
        """By vertex, the bin it is in, and the turn of that in later layers."""
        turns = torch.empty(len(self.parts), dtype=torch.int64)
        turns[torch.tensor(self.later, dtype=torch.int64)] = torch.arange(len(self.parts))
        found = torch.empty(sum(map(len, self.parts)), 2, dtype=torch.int64)
        for number, vertices in enumerate(self.parts):
            found[vertices, 0], found[vertices, 1] = number, turns[number]
        return found


def bins_of(ctx: Context, rows: range, size: int, *, priority: bool, at_once: bool) -> Bins:
    """Those of a rank, of so many vertices. In a priority list, first those with neighbours on other ranks and then the
    rest, both as a search comes to them; of shapes alone the list is that of the numbers, and all wait."""
    listed, remote = torch.arange(len(rows)), torch.ones(len(rows), dtype=torch.bool)
    if not len(rows):
        return Bins((), ())
    A = ctx.blocks.host_block(rows, range(ctx.facts.vertices))
    if not A.col.is_meta:
        inside = block(A, range(len(rows)), rows)
        remote = inside.rowptr.diff() < A.rowptr.diff()
        if priority:
            found = breadth_first(inside)
            listed = torch.cat([found[remote[found]], found[~remote[found]]])
    parts = listed.split(size)
    return Bins(parts, [at_once and bool(remote[part].any()) for part in parts])
