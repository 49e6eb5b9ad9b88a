"""The search of `harness.kernels.closure` as compiled loops.

Heights fall along the search, so it comes to a vertex once at most, and what was raised in vain can be put back.
"""

from typing import Any

import numpy as np

from harness.kernels.jit import compiled

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
