"""Partitions of the vertices: the owner of every row where a strategy splits the graph by rows.

An engine returns the part of every vertex. A partition is also an order of the vertices: the vertices of part 0 come
first, then those of part 1, in the original order within each part; the bounds are the starts of the parts. A partition
is a function of the matrix, the number of parts and the seed, independent of files and caches.
Verifier (tests/graph/test_partition.py): scipy's P A P^T, and communities that an engine must find.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from harness.graph import partition_swap
from harness.graph.order import Orders
from harness.graph.partition_swap import Swapped, g3_parts
from harness.graph.partitioners import (
    HYPERGRAPH_BYTES_PER_ENTRY,
    LIBRA_BYTES_PER_ENTRY,
    METIS_BYTES_PER_ENTRY,
    VertexCut,
    balanced_parts,
    hypergraph_parts,
    libra_parts,
    metis_parts,
)
from harness.kernels.csr import Csr, index_dtype
from harness.kernels.parts import extract_block, nonempty_columns
from harness.kernels.random import Purpose
from harness.kernels.shuffle import random_permutation
from harness.ranges import ranges_between

AT_ONCE = 1 << 22
"""Vertices put in order at a time."""
Method = Literal["random", "metis", "metis-balanced", "g3-literal", "g3-guarded", "hypergraph", "libra"]

VERSION = 2
"""The version of this code and of the engines' models, raised whenever the same graph gets another partition."""


@dataclass(frozen=True)
class Partition:
    """An order of the vertices by part, and the bounds of the parts."""

    order: Tensor
    """The original vertex at each new position, (n,); of 32 bits if n fits in 32 bits."""
    bounds: tuple[int, ...]
    """The starts of the parts, and the end. Parts may be empty."""
    edges: Tensor | None = None
    """Of a vertex cut, whose parts have the masters of their vertices: the part of every nonzero, in A's own order."""
    copies: tuple[int, ...] | None = None
    """Of a vertex cut: the vertices that each part has a copy of."""

    @property
    def orders(self) -> Orders[Tensor]:
        """The partition as maps of a dataset: rows and columns have the same map."""
        order = self.order.long()
        return Orders(order, order)

    @property
    def ranges(self) -> list[range]:
        """The new positions of each part."""
        return ranges_between(self.bounds)


def in_order(part: Tensor, parts: int) -> Partition:
    """The partition that gives vertex v to part[v]; sorted in chunks, which saves several times the memory."""
    assert not len(part) or 0 <= int(part.min()) <= int(part.max()) < parts
    sizes = torch.bincount(part, minlength=parts)
    bounds = (0, *sizes.cumsum(0).tolist())
    order, free = torch.empty(len(part), dtype=index_dtype(len(part))), torch.tensor(bounds[:-1])
    for start in range(0, len(part), AT_ONCE):
        chunk = part[start : start + AT_ONCE].long()
        by_part, count = torch.argsort(chunk, stable=True), torch.bincount(chunk, minlength=parts)
        first = free - count.cumsum(0) + count  # the first free place of a part, less its start in `by_part`
        places = torch.repeat_interleave(first, count) + torch.arange(len(chunk))
        order[places] = (by_part + start).to(order.dtype)
        free += count
    return Partition(order, bounds)


def partitioned(A: Csr, method: Method, parts: int, seed: int) -> Partition:
    """The partition of a graph."""
    made, _ = parts_and_report(A, method, parts, seed)
    if isinstance(made, VertexCut):
        return replace(in_order(made.part, parts), edges=made.edges, copies=made.copies)
    return in_order(made, parts)


def parts_of(A: Csr, method: Method, parts: int, seed: int) -> Tensor:
    """The part of every vertex, (n,), all below `parts`."""
    made, _ = parts_and_report(A, method, parts, seed)
    return made.part if isinstance(made, VertexCut) else made


def parts_and_report(
    A: Csr, method: Method, parts: int, seed: int
) -> tuple[Tensor | VertexCut, dict[str, Any]]:
    """The part of every vertex, or a vertex cut; and the engine's report on the partition."""
    assert 1 <= parts <= A.rows == A.cols, (parts, A.shape)
    if method == "libra":
        cut = libra_parts(A, parts, seed)
        return cut, cut.report
    if parts == 1:
        return torch.zeros(A.rows, dtype=torch.int32), {}
    if method == "random":
        return random_parts(A.rows, parts, seed), {}
    result = ENGINES[method](A, parts, seed)
    return (result, {}) if isinstance(result, Tensor) else (result.part, result.report)


def random_parts(n: int, parts: int, seed: int) -> Tensor:
    """A shuffle of n vertices cut into blocks of ceil(n / parts), as unpartitioned vertices are."""
    drawn, part = random_permutation(seed, Purpose.PARTITION, n), torch.empty(n, dtype=torch.int32)
    for start in range(0, n, AT_ONCE):
        chunk = range(start, min(start + AT_ONCE, n))
        part[chunk.start : chunk.stop] = drawn.positions_of(chunk) // -(-n // parts)
    return part


ENGINES: dict[Method, Callable[[Csr, int, int], Tensor | Swapped]] = {
    "metis": metis_parts,
    "metis-balanced": balanced_parts,
    "g3-literal": partial(g3_parts, guarded=False),
    "g3-guarded": partial(g3_parts, guarded=True),
    "hypergraph": hypergraph_parts,
}
"""The engines that need the graph."""


def memory_of(method: Method, n: int, nonzeros: int, parts: int, *, directed: bool) -> int:
    """A rough upper bound on the bytes that an engine takes in all (benchmarks/partition_memory.py)."""
    if method == "hypergraph":
        return HYPERGRAPH_BYTES_PER_ENTRY * nonzeros
    if method == "libra":
        return LIBRA_BYTES_PER_ENTRY * nonzeros + (8 * -(-parts // 64) + 24) * n
    neighbours = nonzeros * (2 if directed else 1)
    swapped = partition_swap.BYTES_PER_COUNT * n * parts if method.startswith("g3") else 0
    return METIS_BYTES_PER_ENTRY * neighbours + swapped


# The communication volume of a partition under sparsity-aware exchange: the rows of H that a part needs of others.
#
# An aggregation sends each of these rows once, so the volume times the width of H is its number of words. Algorithms
# that ignore sparsity send whole blocks, which costs each part all rows but its own, whatever the partition. Verifier
# (tests/graph/test_volume.py): distinct columns counted by scipy.


def volumes(A: Csr, bounds: tuple[int, ...]) -> list[int]:
    """The number of rows of other parts that each part needs; A is in the order of the partition."""
    assert bounds[0] == 0 and bounds[-1] == A.rows == A.cols, (bounds, A.shape)
    return [needed(extract_block(A, rows, range(A.cols)), rows) for rows in ranges_between(bounds)]


def needed(A: Csr, own: range) -> int:
    """The number of columns outside `own` in which these rows have a nonzero."""
    filled = nonempty_columns(A)
    return int(((filled < own.start) | (filled >= own.stop)).sum())
