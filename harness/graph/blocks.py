"""The interface through which training reads a dataset, in memory or in a folder of blocks."""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from harness.graph.model import LabelTask, Weighting
from harness.graph.order import Permutation
from harness.kernels.csr import Csr, row_indices, take
from harness.kernels.parts import extract_block

AT_ONCE = 1 << 24
"""Nonzeros read at a time, if all rows are equally long."""


class GraphTraits(Protocol):
    """The traits of a graph that decide which rectangles are equal."""

    @property
    def directed(self) -> bool: ...

    @property
    def permutation(self) -> Permutation: ...


class Blocks(GraphTraits, Protocol):
    """Serves any rectangle of the graph, in either order of its vertices (`harness.graph.order`).

    Order 0 is A[p][:, q] and order 1 is A[q][:, p]. The caller owns the tensors that are returned.
    """

    @property
    def n(self) -> int: ...

    @property
    def features(self) -> int:
        """The width of the features."""

    @property
    def task(self) -> LabelTask: ...

    @property
    def classes(self) -> int: ...

    @property
    def nnz(self) -> int:
        """Nonzeros of the adjacency, loops included."""

    @property
    def weights(self) -> Weighting | None:
        """The values of a weighted A; None if edges carry no weights."""

    @property
    def bounds(self) -> tuple[int, ...] | None:
        """The starts of the parts of a partition, and the end; None without a partition."""

    @property
    def manifest_hash(self) -> str:
        """Identifies the data: equal hashes, equal data."""

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """A rectangle of A, with indices from 0, and values at least as precise as the run."""

    def feature_block(self, rows: range, cols: range) -> Tensor:
        """A rectangle of the features, float32. Rows are in the order of the columns of order 0."""

    def labels(self, rows: range, order: int = 0) -> Tensor:
        """The labels of rows of this order, in the form of `LabelTask`."""

    def edge_parts(self, rows: range) -> Tensor | None:
        """The part of every entry of whole rows, row by row, if the partition is a vertex cut."""

    def split(self, rows: range, order: int = 0) -> Tensor:
        """The split of rows of this order, uint8: 0 none, 1 train, 2 valid, 3 test."""


class Rectangle(NamedTuple):
    """The rectangle of A to read, in one order; `turned` if the caller wants its transpose."""

    rows: range
    cols: range
    order: int
    turned: bool


def rectangle_of(graph: GraphTraits, rows: range, cols: range, order: int, *, transposed: bool) -> Rectangle:
    """The rectangle to read for A[rows, cols] or A^T[rows, cols] of this order; equal matrices have one rectangle.

    The orders differ only under a double permutation. In an undirected graph, the transpose of one order is the other.
    """
    double = graph.permutation == "double"
    if transposed and graph.directed:
        return Rectangle(cols, rows, order % 2 if double else 0, True)
    return Rectangle(rows, cols, (order + transposed) % 2 if double else 0, False)


def stripes(blocks: Blocks, rows: range, order: int = 0) -> Iterator[tuple[range, Csr]]:
    """Whole rows of the graph, in stripes of bounded size."""
    height = max(1, blocks.n * AT_ONCE // max(blocks.nnz, 1))
    for start in range(rows.start, rows.stop, height):
        stripe = range(start, min(start + height, rows.stop))
        yield stripe, blocks.adjacency(stripe, range(blocks.n), order)


def feature_rows(blocks: Blocks, vertices: Tensor, cols: range) -> Tensor:
    """The features of any vertices, in the order of the vertices; reads only stripes that contain some of them."""
    X = torch.empty(len(vertices), len(cols))
    height = max(1, AT_ONCE // max(len(cols), 1))
    for start in (vertices // height).unique() * height:
        stripe = range(int(start), min(int(start) + height, blocks.n))
        inside = ((vertices >= stripe.start) & (vertices < stripe.stop)).nonzero()[:, 0]
        X[inside] = blocks.feature_block(stripe, cols)[vertices[inside] - stripe.start]
    return X


def assert_within(size: int, *parts: range) -> None:
    """Asserts that a rectangle is within the matrix: otherwise the caller has a defect, which slices would hide."""
    for part in parts:
        assert part.step == 1 and 0 <= part.start <= part.stop <= size, (part, size)


# A graph whose rows are means: A[i, j] is one over the number of neighbours of i, and zero at i itself.
#
# GraphSAGE multiplies by this matrix. It has the nonzero pattern of A, with zeros on the diagonal, so all counts of
# the graph hold for it too; but its transpose is another matrix, whether the graph is directed or not.
# Verifier (tests/store/test_averaged.py): scipy.


class Averaged:
    """The blocks of the averaged graph, over the `Blocks` of the graph itself."""

    directed = True

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """A rectangle of the averaged matrix; for shapes alone, the rectangle of A."""
        A = self._blocks.adjacency(rows, cols, order)
        if A.val.is_meta:
            return A
        assert self._blocks.permutation != "double", "a double permutation moves loops off the diagonal"
        row = row_indices(A)
        val = take(1 / self._neighbours(rows, order).clamp(min=1).to(A.val.dtype), row)
        val[A.col + cols.start == row + rows.start] = 0
        return A._replace(val=val)

    def _neighbours(self, rows: range, order: int) -> Tensor:
        """The neighbours of every row: its entries without the loop, which every vertex has."""
        return self._blocks.adjacency(rows, range(self._blocks.n), order).rowptr.diff() - 1


def multiplied(blocks: Blocks, kind: str) -> Blocks:
    """The graph by which a kind of model multiplies: averaged for SAGE, as it is for all others."""
    averaged: Any = Averaged(blocks)
    return averaged if kind == "sage" else blocks


# A graph that many replays read in one process: A stays in memory, and so do results that all ranks compute alike.
#
# Each replay of a rank opens the graph anew, and each rank of a sampler works out the mini-batches of all other ranks.
# The second replay finds both here. What does not fit within `MOST_BYTES` is read, or computed, each time.
# Verifier (tests/replay/test_shared_blocks.py): the blocks themselves.

MOST_BYTES = 1 << 30
"""The most memory for A, and again for results."""
ENTRY_BYTES, ROW_BYTES = 16, 8
"""The most bytes of an entry of A, and of a row."""


class SharedBlocks:
    """`Blocks` over those of a graph, with A in memory if it fits, and results by key."""

    def __init__(self, blocks: Blocks, most_bytes: int = MOST_BYTES) -> None:
        self._blocks, self._most_bytes = blocks, most_bytes
        self._adjacency: dict[int, Csr] = {}
        self._results: dict[Hashable, Any] = {}
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """A rectangle of A, which the caller owns."""
        graph = self._blocks
        assert_within(graph.n, rows, cols)
        orders = 2 if graph.permutation == "double" else 1
        if orders * (ENTRY_BYTES * graph.nnz + ROW_BYTES * graph.n) > self._most_bytes:
            return graph.adjacency(rows, cols, order)
        order %= orders
        if order not in self._adjacency:
            self._adjacency[order] = graph.adjacency(range(graph.n), range(graph.n), order)
        A = extract_block(self._adjacency[order], rows, cols)
        return A if len(cols) < graph.n else Csr(A.rowptr, A.col.clone(), A.val.clone(), A.cols)

    def known(self, key: Hashable) -> Any | None:
        """The result under a key, or None. Results are shared: nobody may change them."""
        try:
            return self._results.get(key)
        except TypeError:  # the key has a sampler that keeps a state, so no two are alike
            return None

    def keep(self, key: Hashable, result: Any, size: int) -> None:
        """Keeps a result of so many bytes, if there is room."""
        if self._bytes + size <= self._most_bytes:
            try:
                self._results[key] = result
            except TypeError:
                return
            self._bytes += size


def shared(blocks: Blocks) -> SharedBlocks:
    """The blocks for several replays; blocks that are shared already stay as they are."""
    return blocks if isinstance(blocks, SharedBlocks) else SharedBlocks(blocks)
