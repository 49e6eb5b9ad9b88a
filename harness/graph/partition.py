"""Partitions of the vertices: who owns which rows where a strategy splits the graph by rows.

An engine answers with the part of every vertex. As an order of the vertices that is: those of part 0 first, then
those of part 1, and within a part as they stood before; the bounds say where the parts begin. A partition is a
function of the matrix, the number of parts and the seed. It knows nothing of files and caches.
Verifier (tests/graph/test_partition.py): scipy's P A P^T, and communities that an engine must find.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from harness.graph.order import Orders
from harness.graph.partition_balanced import balanced_parts
from harness.graph.partition_hypergraph import hypergraph_parts
from harness.graph.partition_metis import metis_parts
from harness.graph.partition_swap import Swapped, g3_parts
from harness.kernels.csr import Csr
from harness.kernels.random import Purpose, shuffled
from harness.ranges import between

Method = Literal["random", "metis", "metis-balanced", "g3-literal", "g3-guarded", "hypergraph"]

VERSION = 1
"""Changes with every change here, or in an engine's model, that gives another partition for the same graph."""


@dataclass(frozen=True)
class Partition:
    """The vertices in the order of their parts."""

    order: Tensor
    """Which original vertex stands at each new position, (n,) int64."""
    bounds: tuple[int, ...]
    """Where the parts begin, and the end. Parts may be empty."""

    @property
    def orders(self) -> Orders:
        """As the maps of a dataset: rows and columns move alike."""
        return Orders(self.order, self.order)

    @property
    def ranges(self) -> list[range]:
        """The new positions of each part."""
        return between(self.bounds)


def in_order(part: Tensor, parts: int) -> Partition:
    """The partition that gives vertex v to part[v]."""
    assert not len(part) or 0 <= int(part.min()) <= int(part.max()) < parts
    sizes = torch.bincount(part.long(), minlength=parts)
    return Partition(torch.argsort(part, stable=True), (0, *sizes.cumsum(0).tolist()))


def parts_of(A: Csr, method: Method, parts: int, seed: int) -> Tensor:
    """The part of every vertex, (n,) int64, all below `parts`."""
    return parts_and_report(A, method, parts, seed)[0]


def parts_and_report(A: Csr, method: Method, parts: int, seed: int) -> tuple[Tensor, dict[str, Any]]:
    """The same, and what there is to say of how they were found."""
    assert 1 <= parts <= A.rows == A.cols, (parts, A.shape)
    if parts == 1:
        return torch.zeros(A.rows, dtype=torch.int64), {}
    found = ENGINES[method](A, parts, seed)
    return (found, {}) if isinstance(found, Tensor) else (found.part, found.report)


def random_parts(A: Csr, parts: int, seed: int) -> Tensor:
    """A shuffle of the vertices cut into blocks of ceil(n / parts), as unpartitioned vertices are."""
    part = torch.empty(A.rows, dtype=torch.int64)
    part[shuffled(seed, Purpose.PARTITION, range(A.rows))] = torch.arange(A.rows) // -(-A.rows // parts)
    return part


ENGINES: dict[Method, Callable[[Csr, int, int], Tensor | Swapped]] = {
    "random": random_parts,
    "metis": metis_parts,
    "metis-balanced": balanced_parts,
    "g3-literal": partial(g3_parts, guarded=False),
    "g3-guarded": partial(g3_parts, guarded=True),
    "hypergraph": hypergraph_parts,
}
