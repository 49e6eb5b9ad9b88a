"""What a part does about the rows of others that it needs: some it computes itself, the others it fetches.

Every rank makes the choice of every part, so nobody has to be told who fetches what.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.errors import UserError
from harness.kernels import Csr
from harness.kernels.csr import block, take
from harness.kernels.jit import compiled
from harness.kernels.parts import filled_columns
from harness.parallel.row_requests import inside

# Vertices of others that are computed here, with all that this takes: those for which it is worth it.
#
# A vertex at height k has been computed through k layers; that takes its neighbours at height k - 1, and so
# on down to the features at height 0. Every vertex is its own neighbour, so who is at a height is at all
# below. Neighbours of a block are raised from height to height, at each the shortest rows first, and each
# only if what it takes beyond what is there already costs less than it is worth: the greedy choice of
# NeutronStar (SIGMOD'22). Verifier (tests/kernels/test_closure.py): sets.


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


# The compiled loops.
#
# Heights fall along the search, so it comes to a vertex once at most, and what was raised in vain can be
# put back.

Rows = tuple[Any, Any]
"""Row pointers and columns."""
Costs = tuple[Any, Any]
"""Of a vertex, and of an entry of its row, up to each height; first of all to that of nowhere, which is -1."""
Limits = tuple[float, int]
"""What raising a vertex must stay below, and how many may come in from nowhere."""


@compiled()
def raise_each(A: Rows, costs: Costs, height: Any, wanted: Any, level: int, limits: Limits) -> int:
    """Raises vertices to a level, one after the other, where it is worth it; returns how many came in."""
    log = np.empty(height.size, np.int64), np.empty(height.size, np.int8)
    worth, room = limits
    for v in wanted:
        if height[v] < level:
            room -= _raise(A, costs, height, log, v, level, (worth, room))
    return limits[1] - room


@compiled()
def _raise(
    A: Rows, costs: Costs, height: Any, log: tuple[Any, Any], first: int, level: int, limits: Limits
) -> int:
    """Raises a vertex with all that this takes, or nothing."""
    rowptr, col = A
    reached, before = log
    worth, room = limits
    reached[0], before[0] = first, height[first]
    cost, came = _cost(rowptr, costs, first, height[first], level), int(height[first] < 0)
    height[first] = level
    head, tail = 0, 1
    while head < tail and cost < worth and came <= room:
        v = reached[head]
        head += 1
        for e in range(rowptr[v], rowptr[v + 1]):
            u, below = col[e], height[v] - 1
            if height[u] < below:
                reached[tail], before[tail] = u, height[u]
                cost += _cost(rowptr, costs, u, height[u], below)
                came += height[u] < 0
                height[u] = below
                tail += 1
    if cost < worth and came <= room:
        return came
    for place in range(tail):
        height[reached[place]] = before[place]
    return 0


@compiled()
def _cost(rowptr: Any, costs: Costs, v: int, low: int, high: int) -> Any:
    """Of raising a vertex."""
    vertex, entry = costs
    entries = rowptr[v + 1] - rowptr[v]
    return vertex[high + 1] - vertex[low + 1] + entries * (entry[high + 1] - entry[low + 1])


class Choice(NamedTuple):
    """One part's."""

    replicas: Tensor
    """Vertices of others whose rows it computes, or at least their features: those that go highest come first."""
    sizes: list[int]
    """How many of them it has at the input of each layer, and at the output, where there are none."""
    fetched: list[Tensor]
    """The vertices whose rows it fetches for each layer, ascending."""

    def at(self, layer: int) -> Tensor:
        """Those of the replicas that are there at the input of a layer."""
        return self.replicas[: self.sizes[layer]]


def choices(A: Csr, blocks: Sequence[range], prices: Prices, share: float | None) -> list[Choice]:
    """Every part's; each takes at most this share of its own vertices of others, or any number."""
    if A.col.is_meta:
        raise UserError(
            "What is worth computing twice hangs on who is whose neighbour, which is not known before the graph is "
            "there: build the dataset (harness data build)."
        )
    return [_choice(A, own, prices, A.rows if share is None else int(share * len(own))) for own in blocks]


def _choice(A: Csr, own: range, prices: Prices, room: int) -> Choice:
    height, layers, needed = heights(A, own, prices, room), len(prices.worth), boundary(A, own)
    of_others = ((height >= 0) & (height < layers)).nonzero()[:, 0]
    replicas = of_others[height[of_others].argsort(descending=True, stable=True)]
    sizes = [int((height[replicas] >= layer).sum()) for layer in range(layers + 1)]
    return Choice(replicas, sizes, [needed[height[needed] < layer] for layer in range(layers)])


def leaving(choices: Sequence[Choice], layer: int, own: range) -> list[Tensor]:
    """Which of a part's own vertices each other fetches for a layer, ascending and counted from its start."""
    return [
        fetched[inside(fetched, own)] - own.start for fetched in (choice.fetched[layer] for choice in choices)
    ]


def arriving(choice: Choice, layer: int, blocks: Sequence[range]) -> list[int]:
    """How many rows come from each part."""
    stops = torch.tensor([block.stop for block in blocks])
    before = torch.searchsorted(choice.fetched[layer], stops)
    return before.diff(prepend=before.new_zeros(1)).tolist()
