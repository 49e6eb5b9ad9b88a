"""Partitions of the vertices: which rank owns each row, where a strategy splits the graph by rows.

A method returns the part of every vertex. A partition is also an order of the vertices: part 0 comes first, then part
1, with vertices in their original order within each part; the bounds are the starts of the parts. A partition depends
only on the matrix, the number of parts and the seed, not on files or caches.
Verifier (tests/graph/test_partition.py): scipy's P A P^T, and communities that a method must find.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from harness.base.ranges import ranges_between
from harness.graph.order import Orders
from harness.graph.partitions import swap as partition_swap
from harness.graph.partitions.hypergraph import HYPERGRAPH_BYTES_PER_ENTRY, partition_with_hypergraph
from harness.graph.partitions.libra import LIBRA_BYTES_PER_ENTRY, VertexCut, partition_with_libra
from harness.graph.partitions.metis import (
    METIS_BYTES_PER_ENTRY,
    partition_with_balanced_metis,
    partition_with_metis,
)
from harness.graph.partitions.swap import SwapResult, partition_with_g3
from harness.kernels.csr import Csr, index_dtype
from harness.kernels.parts import extract_block, nonempty_columns
from harness.kernels.random import Purpose
from harness.kernels.shuffle import random_permutation

CHUNK_VERTICES = 1 << 22
"""Vertices that are sorted at a time."""
Method = Literal[
    "random", "metis", "metis-volume", "metis-balanced", "g3-literal", "g3-guarded", "hypergraph", "libra"
]


@dataclass(frozen=True)
class Partition:
    """An order of the vertices by part, and the bounds of the parts."""

    order: Tensor
    """The original vertex at each new position, (n,); int32 if n fits."""
    bounds: tuple[int, ...]
    """The first position of each part, and the end. Parts may be empty."""
    edges: Tensor | None = None
    """For a vertex cut: the part of every nonzero of A. `order` then follows the masters of the vertices."""
    copies: tuple[int, ...] | None = None
    """For a vertex cut: the number of vertices copied to each part."""

    @property
    def orders(self) -> Orders[Tensor]:
        """The vertex maps of a dataset in this order: rows and columns have the same map."""
        order = self.order.long()
        return Orders(order, order)

    @property
    def ranges(self) -> list[range]:
        """The positions of each part."""
        return ranges_between(self.bounds)


def order_by_part(part: Tensor, parts: int) -> Partition:
    """Return the partition that assigns vertex v to part[v]. Sorting in chunks needs several times less memory."""
    assert not len(part) or 0 <= int(part.min()) <= int(part.max()) < parts
    sizes = torch.bincount(part, minlength=parts)
    bounds = (0, *sizes.cumsum(0).tolist())
    order, free = torch.empty(len(part), dtype=index_dtype(len(part))), torch.tensor(bounds[:-1])
    for start in range(0, len(part), CHUNK_VERTICES):
        chunk = part[start : start + CHUNK_VERTICES].long()
        by_part, count = torch.argsort(chunk, stable=True), torch.bincount(chunk, minlength=parts)
        first = free - count.cumsum(0) + count  # the free position of a part, less its start in `by_part`
        positions = torch.repeat_interleave(first, count) + torch.arange(len(chunk))
        order[positions] = (by_part + start).to(order.dtype)
        free += count
    return Partition(order, bounds)


def partition_graph(A: Csr, method: Method, parts: int, seed: int) -> Partition:
    """Return the partition of a graph by a method."""
    result, _ = compute_parts_with_report(A, method, parts, seed)
    if isinstance(result, VertexCut):
        return replace(order_by_part(result.part, parts), edges=result.edges, copies=result.copies)
    return order_by_part(result, parts)


def compute_parts(A: Csr, method: Method, parts: int, seed: int) -> Tensor:
    """Return the part of every vertex, (n,)."""
    result, _ = compute_parts_with_report(A, method, parts, seed)
    return result.part if isinstance(result, VertexCut) else result


def compute_parts_with_report(
    A: Csr, method: Method, parts: int, seed: int
) -> tuple[Tensor | VertexCut, dict[str, Any]]:
    """Return the part of every vertex, or a vertex cut; and what the method reports."""
    assert 1 <= parts <= A.rows == A.cols, (parts, A.shape)
    if method == "libra":
        cut = partition_with_libra(A, parts, seed)
        return cut, cut.report
    if parts == 1:
        return torch.zeros(A.rows, dtype=torch.int32), {}
    if method == "random":
        return assign_random_parts(A.rows, parts, seed), {}
    result = METHODS[method](A, parts, seed)
    return (result, {}) if isinstance(result, Tensor) else (result.part, result.report)


def assign_random_parts(n: int, parts: int, seed: int) -> Tensor:
    """Shuffle n vertices and cut them into blocks of ceil(n / parts), as unpartitioned vertices are cut."""
    permutation, part = random_permutation(seed, Purpose.PARTITION, n), torch.empty(n, dtype=torch.int32)
    for start in range(0, n, CHUNK_VERTICES):
        chunk = range(start, min(start + CHUNK_VERTICES, n))
        part[chunk.start : chunk.stop] = permutation.positions_of(chunk) // -(-n // parts)
    return part


METHODS: dict[Method, Callable[[Csr, int, int], Tensor | SwapResult]] = {
    "metis": partition_with_metis,
    "metis-volume": partial(partition_with_metis, volume=True),
    "metis-balanced": partition_with_balanced_metis,
    "g3-literal": partial(partition_with_g3, guarded=False),
    "g3-guarded": partial(partition_with_g3, guarded=True),
    "hypergraph": partition_with_hypergraph,
}
"""The methods that assign vertices by the edges of the graph."""


def estimate_partition_memory(method: Method, n: int, nonzeros: int, parts: int, *, directed: bool) -> int:
    """Return a rough upper bound on the bytes that a method takes (benchmarks/graphs.py)."""
    if method == "hypergraph":
        return HYPERGRAPH_BYTES_PER_ENTRY * nonzeros
    if method == "libra":
        return LIBRA_BYTES_PER_ENTRY * nonzeros + (8 * -(-parts // 64) + 24) * n
    neighbours = nonzeros * (2 if directed else 1)
    counts = partition_swap.BYTES_PER_COUNT * n * parts if method.startswith("g3") else 0
    return METIS_BYTES_PER_ENTRY * neighbours + counts


# The communication volume of a partition under sparsity-aware exchange: the remote rows of H that a part needs.
#
# An aggregation sends each of these rows once, so the volume times the width of H is the number of elements sent.
# Algorithms that ignore sparsity send entire blocks: every part receives all remote rows, whatever the partition.
# Verifier (tests/graph/test_volume.py): distinct columns counted by scipy.


def count_needed_rows(A: Csr, bounds: tuple[int, ...]) -> list[int]:
    """Return the number of remote rows that each part needs. A is in the order of the partition."""
    assert bounds[0] == 0 and bounds[-1] == A.rows == A.cols, (bounds, A.shape)
    return [
        count_remote_columns(extract_block(A, rows, range(A.cols)), rows) for rows in ranges_between(bounds)
    ]


def count_remote_columns(A: Csr, own: range) -> int:
    """Return the number of columns outside `own` in which these rows have a nonzero."""
    filled = nonempty_columns(A)
    return int(((filled < own.start) | (filled >= own.stop)).sum())
