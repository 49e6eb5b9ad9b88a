"""G3's second stage: swaps vertices between parts until the numbers of remote vertices are balanced (Algorithm 1).

The remote vertices of a part are the neighbours of its vertices that belong to other parts: the rows that the part
receives. The first stage is METIS with two constraints. `g3-literal` is the algorithm as printed: it swaps the vertex
with the most remote neighbours in the part with the most remote vertices for the vertex with the fewest in the part
with the fewest, whatever the effect, and soon repeats a pair; the best partition found is kept. `g3-guarded` swaps only
if the larger of the two sets of remote vertices shrinks, degrees stay balanced and the sum of all sets hardly grows.
Verifier (tests/graph/test_partition_swap.py): remote vertices counted by scipy after every move.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.graph.model import Ints
from harness.graph.partitions.metis import find_neighbours, partition_with_balanced_metis
from harness.kernels.csr import Csr
from harness.kernels.jit import compiled

BYTES_PER_COUNT = 4
"""Memory for each pair of a vertex and a part."""
GAMMA = 0.005
"""Swapping stops at this imbalance: 1 minus the ratio of the fewest remote vertices to the most."""
CANDIDATES = 12
"""The number of vertices of each part that a guarded swap considers."""
MAX_IMBALANCE, MAX_GROWTH = 0.05, 0.02
"""What guards allow: the deviation of a part's sum of degrees from the mean, and the growth of the sum of all sets."""


@dataclass(frozen=True)
class SwapResult:
    """A partition after swapping, with the number and the effect of the swaps."""

    part: Tensor
    swaps: int
    stopped: str
    """Why swapping stopped."""
    before: tuple[int, ...]
    """The number of remote vertices of every part before swapping."""
    after: tuple[int, ...]

    @property
    def report(self) -> dict[str, Any]:
        """The entries of the partition's record about the swaps."""
        ratios = {"ratio_before": compute_balance(self.before), "ratio_after": compute_balance(self.after)}
        most = {"most_remote_before": max(self.before), "most_remote_after": max(self.after)}
        return {"swaps": self.swaps, "stopped": self.stopped, **ratios, **most}


def compute_balance(remote: Any) -> float:
    """Return the ratio of the fewest remote vertices of a part to the most; 1 if no part has any."""
    return float(min(remote) / max(remote)) if max(remote) else 1.0


class SwapState:
    """A mutable partition. A move updates `remote` in time proportional to the neighbours of the vertex."""

    def __init__(self, A: Csr, part: Tensor, parts: int) -> None:
        M = find_neighbours(A)
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
        """Move a vertex to another part."""
        degree = self.starts[v + 1] - self.starts[v]
        self.load[self.part[v]] -= degree
        self.load[to] += degree
        move_vertex(v, to, *self.arrays)

    def swap(self, v: int, w: int) -> None:
        """Exchange the parts of two vertices."""
        a, b = int(self.part[v]), int(self.part[w])
        self.move(v, b)
        self.move(w, a)

    def find_hub(self, p: int) -> int:
        """Return the vertex of part p with the most neighbours outside p."""
        return int(find_hub(p, self.starts, self.part, self.count))

    def find_leaf(self, p: int, other: int) -> int:
        """Return the vertex of part p with the fewest neighbours outside the other part."""
        return int(find_leaf(p, other, self.starts, self.part, self.count))

    def rank_leaving(self, a: int) -> list[int]:
        """Return the vertices of part a whose departure makes `remote[a]` smallest, best first."""
        change = np.empty(len(self.part), np.int64)
        compute_leaving_changes(a, self.starts, self.ends, self.part, self.count, change)
        return self._select_candidates(change, a)

    def rank_entering(self, a: int, b: int) -> list[int]:
        """Return the vertices of part b whose arrival makes `remote[a]` smallest, best first."""
        change = np.empty(len(self.part), np.int64)
        compute_entering_changes(a, b, self.starts, self.ends, self.part, self.count, change)
        return self._select_candidates(change, b)

    def _select_candidates(self, change: Ints, p: int) -> list[int]:
        count = min(CANDIDATES, int((self.part == p).sum()))
        candidates = np.argpartition(change, count - 1)[:count] if count else np.zeros(0, np.int64)
        return [int(v) for v in sorted(candidates, key=lambda v: (change[v], v))]


def balance_by_swaps(A: Csr, start: Tensor, parts: int, *, guarded: bool) -> SwapResult:
    """Run the second stage, starting from any partition."""
    state = SwapState(A, start, parts)
    before = tuple(state.remote.tolist())
    swaps, stopped = (_swap_guarded if guarded else _swap_literally)(state)
    return SwapResult(torch.from_numpy(state.part), swaps, stopped, before, tuple(state.remote.tolist()))


def partition_with_g3(A: Csr, parts: int, seed: int, *, guarded: bool) -> SwapResult:
    """Return the partition after both stages."""
    return balance_by_swaps(A, partition_with_balanced_metis(A, parts, seed), parts, guarded=guarded)


def _swap_literally(state: SwapState) -> tuple[int, str]:
    """Run lines 3 to 14 of Algorithm 1, then undo the swaps after the partition with the smallest maximum."""
    seen: set[tuple[int, int]] = set()
    swaps: list[tuple[int, int]] = []
    best, kept = int(state.remote.max()), 0
    while True:
        most, fewest = int(state.remote.argmax()), int(state.remote.argmin())
        if 1 - compute_balance(state.remote) < GAMMA:
            stopped = "gamma"
            break
        v, w = state.find_hub(most), state.find_leaf(fewest, most)
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


def _swap_guarded(state: SwapState) -> tuple[int, str]:
    """Swap between the part with the most remote vertices and the one with the fewest that helps, while it helps."""
    max_total, swaps = state.remote.sum() * (1 + MAX_GROWTH), 0
    while 1 - compute_balance(state.remote) >= GAMMA:
        largest = int(state.remote.argmax())
        others = [int(p) for p in np.argsort(state.remote, kind="stable") if p != largest]
        done = next((done for p in others if (done := _swap_between(state, largest, p, max_total))), 0)
        if not done:
            return swaps, "no swap helps"
        swaps += done
    return swaps, "gamma"


def _swap_between(state: SwapState, a: int, b: int, max_total: float) -> int:
    """Swap the best vertices of two parts while it helps; return the number of swaps."""
    leaving, entering, swaps = state.rank_leaving(a), state.rank_entering(a, b), 0
    for v in leaving:
        for w in entering:
            if _try_swap(state, v, w, max_total):
                entering.remove(w)
                swaps += 1
                break
    return swaps


def _try_swap(state: SwapState, v: int, w: int, max_total: float) -> bool:
    """Swap two vertices; undo it and return False unless the larger set has shrunk and the guards hold."""
    pair = [int(state.part[v]), int(state.part[w])]
    larger, mean = state.remote[pair].max(), state.load.mean()
    allowed = max(MAX_IMBALANCE * mean, float(np.abs(state.load[pair] - mean).max()))
    state.swap(v, w)
    is_balanced = bool((np.abs(state.load[pair] - mean) <= allowed).all())
    if is_balanced and state.remote[pair].max() < larger and state.remote.sum() <= max_total:
        return True
    state.swap(w, v)
    return False


# Compiled loops: the effect of moving a vertex, in time proportional to its neighbours.
#
# `count[p, v]` is the number of neighbours of v in part p; `remote[p]` is the number of vertices outside p with a
# neighbour in p.


@compiled()
def count_neighbours(starts: Any, ends: Any, part: Any, count: Any, remote: Any) -> None:
    """Compute `count` and `remote` from zeros, over all edges."""
    for v in range(part.size):
        for e in range(starts[v], starts[v + 1]):
            count[part[ends[e]], v] += 1
    for p in range(remote.size):
        for v in range(part.size):
            remote[p] += part[v] != p and count[p, v] > 0


@compiled()
def move_vertex(v: int, b: int, starts: Any, ends: Any, part: Any, count: Any, remote: Any) -> None:
    """Move v to part b."""
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
def find_hub(p: int, starts: Any, part: Any, count: Any) -> int:
    """Return the vertex of part p with the most neighbours outside p; of equal vertices, the first."""
    best, most = -1, -1
    for v in range(part.size):
        if part[v] == p:
            outside = starts[v + 1] - starts[v] - count[p, v]
            if outside > most:
                best, most = v, outside
    return best


@compiled()
def find_leaf(p: int, other: int, starts: Any, part: Any, count: Any) -> int:
    """Return the vertex of part p with the fewest neighbours outside the other part; of equal vertices, the first."""
    best, fewest = -1, starts[-1] + 1
    for v in range(part.size):
        if part[v] == p:
            outside = starts[v + 1] - starts[v] - count[other, v]
            if outside < fewest:
                best, fewest = v, outside
    return best


@compiled()
def compute_leaving_changes(a: int, starts: Any, ends: Any, part: Any, count: Any, change: Any) -> None:
    """Compute the change of `remote[a]` if a vertex leaves part a; vertices outside a get a larger value than all."""
    for v in range(part.size):
        change[v] = part.size
        if part[v] == a:
            change[v] = count[a, v] > 0
            for e in range(starts[v], starts[v + 1]):
                u = ends[e]
                change[v] -= count[a, u] == 1 and part[u] != a


@compiled()
def compute_entering_changes(
    a: int, b: int, starts: Any, ends: Any, part: Any, count: Any, change: Any
) -> None:
    """Compute the change of `remote[a]` if a vertex of part b enters a; vertices outside b get a larger value."""
    for v in range(part.size):
        change[v] = part.size + starts[-1]
        if part[v] == b:
            change[v] = -(count[a, v] > 0)
            for e in range(starts[v], starts[v + 1]):
                u = ends[e]
                change[v] += count[a, u] == 0 and part[u] != a
