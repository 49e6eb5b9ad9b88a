"""A road-like graph: a grid with missing edges and a few diagonals. Low degrees, long paths, banded order.

Vertex i * width + j may have an edge to the right and one down (with probability `keep` each), and one down to the
right (`diagonal`). Two further steps towards a road map need the whole graph: `subdivide_edges` turns edges into
chains, and `keep_largest_component` drops islands, so the number of vertices is not known in advance.

Statistics for 1000 x 1000 with default probabilities, largest component: 89 % of the vertices, mean degree 2.37,
largest degree 6, degrees 1 to 4 in the fractions .18 .39 .33 .11. europe_osm has a mean degree of 2.12, as has
`inner` = 1.73.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from harness.graph.generators.shapes import SLOTS
from harness.graph.model import Ints, RawGraph
from harness.kernels.random import Purpose, uniform


@dataclass(frozen=True)
class Lattice:
    """The generator: draw 3 v + s decides whether slot s of vertex v has an edge."""

    height: int
    width: int
    seed: int
    keep: float = 0.55
    diagonal: float = 0.01

    chunk: ClassVar[int] = 1 << 16

    @property
    def n(self) -> int:
        return self.height * self.width

    @property
    def draws(self) -> int:
        return SLOTS * self.n

    def edges(self, draws: range) -> tuple[Tensor, Tensor]:
        """Return source and target of the edges that exist among these draws."""
        number = torch.arange(draws.start, draws.stop)
        vertex, slot = number // SLOTS, number % SLOTS
        chance = torch.tensor([self.keep, self.keep, self.diagonal], dtype=torch.float64)
        step = torch.tensor([1, self.width, self.width + 1])
        exists = uniform(self.seed, Purpose.EDGES, draws) < chance[slot]
        exists &= (vertex % self.width < self.width - 1) | (slot == 1)
        exists &= (vertex // self.width < self.height - 1) | (slot == 0)
        return vertex[exists], (vertex + step[slot])[exists]


def subdivide_edges(raw: RawGraph, inner: float, seed: int, number: int) -> RawGraph:
    """Insert new vertices into edges, `inner` per edge on average. n and the number of edges grow equally.

    The new vertices of an edge come right after its source, so a banded order stays banded. Edges must be sorted by
    source. `number` is the first unused random number.
    """
    edges = len(raw.source)
    extra = (inner + uniform(seed, Purpose.EDGES, range(number, number + edges))).long().numpy()
    per_vertex = np.bincount(raw.source, weights=extra, minlength=raw.n).astype(np.int64)
    new_id = np.arange(raw.n) + np.cumsum(per_vertex) - per_vertex
    first = new_id[raw.source] + 1 + _sum_before(extra) - _sum_before(per_vertex)[raw.source]
    chain = np.repeat(first, extra) + np.arange(extra.sum()) - np.repeat(_sum_before(extra), extra)
    begins = np.concatenate([new_id[raw.source], chain])
    nexts = np.concatenate([np.where(extra > 0, first, new_id[raw.target]), chain + 1])
    nexts[edges:][(np.cumsum(extra) - 1)[extra > 0]] = new_id[raw.target][extra > 0]
    return RawGraph(raw.n + int(extra.sum()), begins, nexts)


def keep_largest_component(raw: RawGraph) -> RawGraph:
    """Return the largest component, renumbered in the same order."""
    from scipy import sparse

    ones = np.ones(len(raw.source), dtype=np.int8)
    matrix = sparse.coo_array((ones, (raw.source, raw.target)), shape=(raw.n, raw.n))
    _, component = sparse.csgraph.connected_components(matrix, directed=False)
    is_kept = component == np.argmax(np.bincount(component))
    new_id = np.cumsum(is_kept) - 1
    kept = is_kept[raw.source]
    return RawGraph(int(is_kept.sum()), new_id[raw.source[kept]], new_id[raw.target[kept]])


def _sum_before(counts: Ints) -> Ints:
    """Return the exclusive prefix sum of the counts."""
    return np.cumsum(counts) - counts
