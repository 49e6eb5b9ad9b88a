"""G3's second stage: vertices are swapped between parts until the numbers of remote vertices balance (Algorithm 1).

The remote vertices of a part are the vertices of other parts that are neighbours of its own: the rows that the part
receives. The first stage is METIS with two constraints. `g3-literal` is the algorithm as printed. It swaps the vertex
with most remote neighbours in the fullest part for the vertex with fewest in the emptiest part, whatever the effect,
and soon repeats a pair; the best partition on the way is kept. `g3-guarded` swaps only if the larger of the two sets
shrinks, degrees stay balanced and the sum of all sets hardly grows. Verifier (tests/graph/test_partition_swap.py):
remote vertices counted by scipy after every move.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.graph.partitioners import balanced_parts, neighbours
from harness.kernels.csr import Csr
from harness.kernels.jit import compiled

Ints = NDArray[np.int64]

BYTES_PER_COUNT = 4
"""Bytes of memory for every vertex and part."""
GAMMA = 0.005
"""The imbalance at which swapping stops: 1 minus the ratio of the fewest remote vertices to the most."""
CANDIDATES = 12
"""The vertices of each side that a guarded swap considers."""
UNEVEN, GROWTH = 0.05, 0.02
"""The deviation of a part's sum of degrees from the mean, and the growth of the sum of all sets, that guards allow."""


@dataclass(frozen=True)
class Swapped:
    """A partition after the swaps, with their number and effect."""

    part: Tensor
    swaps: int
    stopped: str
    """The reason for which swapping stopped."""
    before: tuple[int, ...]
    """The number of remote vertices of every part."""
    after: tuple[int, ...]

    @property
    def report(self) -> dict[str, Any]:
        """The report for a record."""
        ratios = {"ratio_before": ratio(self.before), "ratio_after": ratio(self.after)}
        most = {"most_remote_before": max(self.before), "most_remote_after": max(self.after)}
        return {"swaps": self.swaps, "stopped": self.stopped, **ratios, **most}


def ratio(remote: Any) -> float:
    """The ratio of the fewest remote vertices of a part to the most; 1 where no part has any."""
    return float(min(remote) / max(remote)) if max(remote) else 1.0


class SwapState:
    """A partition under change. A move updates `remote` in time proportional to the neighbours of its vertex."""

    def __init__(self, A: Csr, part: Tensor, parts: int) -> None:
        M = neighbours(A)
        self.starts: Ints = M.indptr.astype(np.int64)
        self.ends: Ints = M.indices.astype(np.int64)
        self.part: Ints = part.numpy().astype(np.int64)
        self.count = np.zeros((parts, A.rows), np.int32)
        self.remote = np.zeros(parts, np.int64)
        count_neighbours(*self.arrays)
        self.load = np.bincount(self.part, weights=self.starts[1:] - self.starts[:-1], minlength=parts)
        """The sum of degrees of every part."""

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.starts, self.ends, self.part, self.count, self.remote

    def move(self, v: int, to: int) -> None:
        """Takes a vertex out of its part and into another."""
        degree = self.starts[v + 1] - self.starts[v]
        self.load[self.part[v]] -= degree
        self.load[to] += degree
        move_vertex(v, to, *self.arrays)

    def swap(self, v: int, w: int) -> None:
        """Exchanges the parts of two vertices."""
        a, b = int(self.part[v]), int(self.part[w])
        self.move(v, b)
        self.move(w, a)

    def hub(self, p: int) -> int:
        return int(hub_of(p, self.starts, self.part, self.count))

    def leaf(self, p: int, other: int) -> int:
        return int(leaf_of(p, other, self.starts, self.part, self.count))

    def best_to_leave(self, a: int) -> list[int]:
        """The vertices of a whose leaving makes `remote[a]` smallest, the best first."""
        change = np.empty(len(self.part), np.int64)
        changes_by_leaving(a, self.starts, self.ends, self.part, self.count, change)
        return self._smallest(change, a)

    def best_to_enter(self, a: int, b: int) -> list[int]:
        """The vertices of b whose entering makes `remote[a]` smallest, the best first."""
        change = np.empty(len(self.part), np.int64)
        changes_by_entering(a, b, self.starts, self.ends, self.part, self.count, change)
        return self._smallest(change, b)

    def _smallest(self, change: Ints, p: int) -> list[int]:
        few = min(CANDIDATES, int((self.part == p).sum()))
        candidates = np.argpartition(change, few - 1)[:few] if few else np.zeros(0, np.int64)
        return [int(v) for v in sorted(candidates, key=lambda v: (change[v], v))]


def swapped(A: Csr, start: Tensor, parts: int, *, guarded: bool) -> Swapped:
    """The second stage, from any partition."""
    state = SwapState(A, start, parts)
    before = tuple(state.remote.tolist())
    swaps, stopped = (_guarded if guarded else _literal)(state)
    return Swapped(torch.from_numpy(state.part), swaps, stopped, before, tuple(state.remote.tolist()))


def g3_parts(A: Csr, parts: int, seed: int, *, guarded: bool) -> Swapped:
    """The partition after both stages."""
    return swapped(A, balanced_parts(A, parts, seed), parts, guarded=guarded)


def _literal(state: SwapState) -> tuple[int, str]:
    """Lines 3 to 14 of Algorithm 1; then undoes the swaps after the best partition, whose fullest set is smallest."""
    seen: set[tuple[int, int]] = set()
    swaps: list[tuple[int, int]] = []
    best, kept = int(state.remote.max()), 0
    while True:
        most, fewest = int(state.remote.argmax()), int(state.remote.argmin())
        if 1 - ratio(state.remote) < GAMMA:
            stopped = "gamma"
            break
        v, w = state.hub(most), state.leaf(fewest, most)
        if w < 0 or (min(v, w), max(v, w)) in seen:
            stopped = "no vertex to swap" if w < 0 else "cycle"
            break
        seen.add((min(v, w), max(v, w)))
        state.swap(v, w)
        swaps.append((v, w))
        if state.remote.max() < best:
            best, kept = int(state.remote.max()), len(swaps)
    for v, w in reversed(swaps[kept:]):
        state.swap(v, w)
    return kept, stopped


def _guarded(state: SwapState) -> tuple[int, str]:
    """Swaps between the fullest part and the emptiest part that offers a swap, as long as a swap helps."""
    most_in_all, swaps = state.remote.sum() * (1 + GROWTH), 0
    while 1 - ratio(state.remote) >= GAMMA:
        fullest = int(state.remote.argmax())
        others = [int(p) for p in np.argsort(state.remote, kind="stable") if p != fullest]
        done = next((done for p in others if (done := _exchange(state, fullest, p, most_in_all))), 0)
        if not done:
            return swaps, "no swap helps"
        swaps += done
    return swaps, "gamma"


def _exchange(state: SwapState, a: int, b: int, most_in_all: float) -> int:
    """Swaps the best vertices of two parts as long as a swap helps, and returns the number of swaps."""
    leaving, entering, swaps = state.best_to_leave(a), state.best_to_enter(a, b), 0
    for v in leaving:
        for w in entering:
            if _tried(state, v, w, most_in_all):
                entering.remove(w)
                swaps += 1
                break
    return swaps


def _tried(state: SwapState, v: int, w: int, most_in_all: float) -> bool:
    """Swaps two vertices, and swaps back unless the larger of the two sets has shrunk and the guards hold."""
    pair = [int(state.part[v]), int(state.part[w])]
    larger, mean = state.remote[pair].max(), state.load.mean()
    room = max(UNEVEN * mean, float(np.abs(state.load[pair] - mean).max()))
    state.swap(v, w)
    even = bool((np.abs(state.load[pair] - mean) <= room).all())
    if even and state.remote[pair].max() < larger and state.remote.sum() <= most_in_all:
        return True
    state.swap(w, v)
    return False


# The compiled loops: the changes by a move of a vertex, in time proportional to its neighbours.
#
# `count[p, v]` is the number of neighbours of v in part p; `remote[p]` is the number of vertices outside p with a
# neighbour in p.


@compiled()
def count_neighbours(starts: Any, ends: Any, part: Any, count: Any, remote: Any) -> None:
    """Computes `count` and `remote` from zeros, over all edges."""
    for v in range(part.size):
        for e in range(starts[v], starts[v + 1]):
            count[part[ends[e]], v] += 1
    for p in range(remote.size):
        for v in range(part.size):
            remote[p] += part[v] != p and count[p, v] > 0


@compiled()
def move_vertex(v: int, b: int, starts: Any, ends: Any, part: Any, count: Any, remote: Any) -> None:
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
    """The vertex of part p with most neighbours outside p; of equal vertices the first."""
    best, most = -1, -1
    for v in range(part.size):
        if part[v] == p:
            outside = starts[v + 1] - starts[v] - count[p, v]
            if outside > most:
                best, most = v, outside
    return best


@compiled()
def leaf_of(p: int, other: int, starts: Any, part: Any, count: Any) -> int:
    """The vertex of part p with fewest neighbours outside the other part; of equal vertices the first."""
    best, fewest = -1, starts[-1] + 1
    for v in range(part.size):
        if part[v] == p:
            outside = starts[v + 1] - starts[v] - count[other, v]
            if outside < fewest:
                best, fewest = v, outside
    return best


@compiled()
def changes_by_leaving(a: int, starts: Any, ends: Any, part: Any, count: Any, change: Any) -> None:
    """The change of `remote[a]` if a vertex leaves part a for any other; vertices not in a get a value above all."""
    for v in range(part.size):
        change[v] = part.size
        if part[v] == a:
            change[v] = count[a, v] > 0
            for e in range(starts[v], starts[v + 1]):
                u = ends[e]
                change[v] -= count[a, u] == 1 and part[u] != a


@compiled()
def changes_by_entering(a: int, b: int, starts: Any, ends: Any, part: Any, count: Any, change: Any) -> None:
    """The change of `remote[a]` if a vertex of part b enters a; vertices not in b get a value above all."""
    for v in range(part.size):
        change[v] = part.size + starts[-1]
        if part[v] == b:
            change[v] = -(count[a, v] > 0)
            for e in range(starts[v], starts[v + 1]):
                u = ends[e]
                change[v] += count[a, u] == 0 and part[u] != a
