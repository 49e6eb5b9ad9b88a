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

from harness.graph import partition_swap
from harness.graph.order import Orders
from harness.graph.partition_swap import Swapped, g3_parts
from harness.graph.partitioners import (
    HYPERGRAPH_BYTES_PER_ENTRY,
    METIS_BYTES_PER_ENTRY,
    balanced_parts,
    hypergraph_parts,
    metis_parts,
)
from harness.kernels.csr import Csr, block, index_dtype
from harness.kernels.parts import filled_columns
from harness.kernels.random import Purpose
from harness.kernels.shuffle import shuffle
from harness.ranges import between

AT_ONCE = 1 << 22
"""Vertices that are put in order at a time."""
Method = Literal["random", "metis", "metis-balanced", "g3-literal", "g3-guarded", "hypergraph"]

VERSION = 2
"""Changes with every change here, or in an engine's model, that gives another partition for the same graph."""


@dataclass(frozen=True)
class Partition:
    """The vertices in the order of their parts."""

    order: Tensor
    """Which original vertex stands at each new position, (n,), of 32 bits where these hold it."""
    bounds: tuple[int, ...]
    """Where the parts begin, and the end. Parts may be empty."""

    @property
    def orders(self) -> Orders[Tensor]:
        """As the maps of a dataset: rows and columns move alike."""
        order = self.order.long()
        return Orders(order, order)

    @property
    def ranges(self) -> list[range]:
        """The new positions of each part."""
        return between(self.bounds)


def in_order(part: Tensor, parts: int) -> Partition:
    """The partition that gives vertex v to part[v]. Some vertices at a time: sorting all takes several times that."""
    assert not len(part) or 0 <= int(part.min()) <= int(part.max()) < parts
    sizes = torch.bincount(part, minlength=parts)
    bounds = (0, *sizes.cumsum(0).tolist())
    order, free = torch.empty(len(part), dtype=index_dtype(len(part))), torch.tensor(bounds[:-1])
    for start in range(0, len(part), AT_ONCE):
        some = part[start : start + AT_ONCE].long()
        by_part, count = torch.argsort(some, stable=True), torch.bincount(some, minlength=parts)
        first = free - count.cumsum(0) + count  # of a part, less those of parts before it in `by_part`
        places = torch.repeat_interleave(first, count) + torch.arange(len(some))
        order[places] = (by_part + start).to(order.dtype)
        free += count
    return Partition(order, bounds)


def parts_of(A: Csr, method: Method, parts: int, seed: int) -> Tensor:
    """The part of every vertex, (n,), all below `parts`."""
    return parts_and_report(A, method, parts, seed)[0]


def parts_and_report(A: Csr, method: Method, parts: int, seed: int) -> tuple[Tensor, dict[str, Any]]:
    """The same, and what there is to say of how they were found."""
    assert 1 <= parts <= A.rows == A.cols, (parts, A.shape)
    if parts == 1:
        return torch.zeros(A.rows, dtype=torch.int32), {}
    if method == "random":
        return random_parts(A.rows, parts, seed), {}
    found = ENGINES[method](A, parts, seed)
    return (found, {}) if isinstance(found, Tensor) else (found.part, found.report)


def random_parts(n: int, parts: int, seed: int) -> Tensor:
    """A shuffle of n vertices cut into blocks of ceil(n / parts), as unpartitioned vertices are."""
    drawn, part = shuffle(seed, Purpose.PARTITION, n), torch.empty(n, dtype=torch.int32)
    for start in range(0, n, AT_ONCE):
        some = range(start, min(start + AT_ONCE, n))
        part[some.start : some.stop] = drawn.places(some) // -(-n // parts)
    return part


ENGINES: dict[Method, Callable[[Csr, int, int], Tensor | Swapped]] = {
    "metis": metis_parts,
    "metis-balanced": balanced_parts,
    "g3-literal": partial(g3_parts, guarded=False),
    "g3-guarded": partial(g3_parts, guarded=True),
    "hypergraph": hypergraph_parts,
}
"""Those that have to see the graph."""


def memory_of(method: Method, n: int, nonzeros: int, parts: int, *, directed: bool) -> int:
    """Bytes that an engine takes in all, roughly and at most (benchmarks/partition_memory.py)."""
    if method == "hypergraph":
        return HYPERGRAPH_BYTES_PER_ENTRY * nonzeros
    neighbours = nonzeros * (2 if directed else 1)
    swapped = partition_swap.BYTES_A_COUNT * n * parts if method.startswith("g3") else 0
    return METIS_BYTES_PER_ENTRY * neighbours + swapped


# What a partition costs where rows are exchanged as they are needed: rows of H that a part must get from
# others.
#
# An aggregation sends each of them once, so times the width of H these are its words. Sending whole blocks,
# as the sparsity-oblivious algorithms do, costs each part all rows but its own, whatever the partition.
# Verifier (tests/graph/test_volume.py): distinct columns counted by scipy.


def volumes(A: Csr, bounds: tuple[int, ...]) -> list[int]:
    """For each part the rows of other parts it needs; A stands in the order of the partition."""
    assert bounds[0] == 0 and bounds[-1] == A.rows == A.cols, (bounds, A.shape)
    return [needed(block(A, rows, range(A.cols)), rows) for rows in between(bounds)]


def needed(A: Csr, own: range) -> int:
    """Columns outside `own` in which these rows have a nonzero."""
    filled = filled_columns(A)
    return int(((filled < own.start) | (filled >= own.stop)).sum())
