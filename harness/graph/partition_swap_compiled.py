"""The loops of `harness.graph.partition_swap`: what moves of vertices change, in the time of their neighbours.

`count[p, v]` is how many neighbours of v are in part p, `remote[p]` how many vertices outside p have any there.
"""

from typing import Any

from harness.kernels.jit import compiled


@compiled()
def count_neighbours(starts: Any, ends: Any, part: Any, count: Any, remote: Any) -> None:
    """From nothing, over all edges."""
    for v in range(part.size):
        for e in range(starts[v], starts[v + 1]):
            count[part[ends[e]], v] += 1
    for p in range(remote.size):
        for v in range(part.size):
            remote[p] += part[v] != p and count[p, v] > 0


@compiled()
def move(v: int, b: int, starts: Any, ends: Any, part: Any, count: Any, remote: Any) -> None:
    """Takes v out of its part and into b."""
    a = part[v]
    remote[b] -= count[b, v] > 0
    part[v] = b
    remote[a] += count[a, v] > 0
    for e in range(starts[v], starts[v + 1]):
        u = ends[e]
        count[a, u] -= 1
        remote[a] -= count[a, u] == 0 and part[u] != a
        remote[b] += count[b, u] == 0 and part[u] != b
        count[b, u] += 1


@compiled()
def hub_of(p: int, starts: Any, part: Any, count: Any) -> int:
    """The vertex of part p with most neighbours outside it; of equal ones the first."""
    best, most = -1, -1
    for v in range(part.size):
        if part[v] == p:
            outside = starts[v + 1] - starts[v] - count[p, v]
            if outside > most:
                best, most = v, outside
    return best


@compiled()
def leaf_of(p: int, other: int, starts: Any, part: Any, count: Any) -> int:
    """The vertex of part p with fewest neighbours outside the other part; of equal ones the first."""
    best, fewest = -1, starts[-1] + 1
    for v in range(part.size):
        if part[v] == p:
            outside = starts[v + 1] - starts[v] - count[other, v]
            if outside < fewest:
                best, fewest = v, outside
    return best


@compiled()
def changes_by_leaving(a: int, starts: Any, ends: Any, part: Any, count: Any, change: Any) -> None:
    """By how much `remote[a]` changes if a vertex leaves part a for any other; of vertices elsewhere more than all."""
    for v in range(part.size):
        change[v] = part.size
        if part[v] == a:
            change[v] = count[a, v] > 0
            for e in range(starts[v], starts[v + 1]):
                u = ends[e]
                change[v] -= count[a, u] == 1 and part[u] != a


@compiled()
def changes_by_entering(a: int, b: int, starts: Any, ends: Any, part: Any, count: Any, change: Any) -> None:
    """By how much `remote[a]` changes if a vertex of part b enters; of vertices elsewhere more than all."""
    for v in range(part.size):
        change[v] = part.size + starts[-1]
        if part[v] == b:
            change[v] = -(count[a, v] > 0)
            for e in range(starts[v], starts[v + 1]):
                u = ends[e]
                change[v] += count[a, u] == 0 and part[u] != a
