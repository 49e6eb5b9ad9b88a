"""The interface through which training reads a dataset, in memory or in a folder of blocks."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.graph.model import LabelTask, Permutation, Weighting
from harness.kernels.csr import Csr

STRIPE_NONZEROS = 1 << 24
"""Nonzeros, or feature values, read at a time; an average, as rows differ in length."""


class GraphTraits(Protocol):
    """The properties of a graph that decide which of its rectangles are equal."""

    @property
    def directed(self) -> bool: ...

    @property
    def permutation(self) -> Permutation: ...


class Blocks(GraphTraits, Protocol):
    """Reads any rectangle of a graph, in either order of its vertices (`harness.graph.order`).

    Order 0 is A[p][:, q] and order 1 is A[q][:, p]. Returned tensors belong to the caller.
    """

    @property
    def n(self) -> int:
        """The number of vertices."""

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
        """How A uses edge weights; None for edges without weights."""

    @property
    def bounds(self) -> tuple[int, ...] | None:
        """The first vertex of each part of a partition, and the end; None without a partition."""

    @property
    def manifest_hash(self) -> str:
        """A hash that identifies the data."""

    @property
    def graph_hash(self) -> str:
        """A hash that identifies the graph, whatever the order of its vertices; empty if it is unknown."""

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """Return a rectangle of A, with column indices from 0 and values at least as precise as the run."""

    def feature_block(self, rows: range, cols: range) -> Tensor:
        """Return a rectangle of the features, float32. Rows are in the column order of order 0."""

    def labels(self, rows: range, order: int = 0) -> Tensor:
        """Return the labels of some rows of an order, in the form that `LabelTask` describes."""

    def edge_parts(self, rows: range) -> Tensor | None:
        """Return the part of every entry of some rows, row by row; None unless the partition is a vertex cut."""

    def split(self, rows: range, order: int = 0) -> Tensor:
        """Return the split of some rows of an order, uint8: 0 none, 1 train, 2 valid, 3 test."""


class Rectangle(NamedTuple):
    """A rectangle of A to read in one order, and whether the caller wants its transpose."""

    rows: range
    cols: range
    order: int
    transposed: bool


def resolve_rectangle(
    graph: GraphTraits, rows: range, cols: range, order: int, *, transposed: bool
) -> Rectangle:
    """Return the rectangle to read for A[rows, cols] or A^T[rows, cols] of an order.

    Equal matrices resolve to the same rectangle. The orders differ only under a double permutation; in an undirected
    graph, each is the transpose of the other.
    """
    double = graph.permutation == "double"
    if transposed and graph.directed:
        return Rectangle(cols, rows, order % 2 if double else 0, True)
    return Rectangle(rows, cols, (order + transposed) % 2 if double else 0, False)


def read_row_stripes(blocks: Blocks, rows: range, order: int = 0) -> Iterator[tuple[range, Csr]]:
    """Yield full rows of the graph, in stripes of bounded size."""
    height = max(1, blocks.n * STRIPE_NONZEROS // max(blocks.nnz, 1))
    for start in range(rows.start, rows.stop, height):
        stripe = range(start, min(start + height, rows.stop))
        yield stripe, blocks.adjacency(stripe, range(blocks.n), order)


def gather_features(blocks: Blocks, vertices: Tensor, cols: range) -> Tensor:
    """Return the features of any vertices, in their order. Reads only stripes that contain some of them."""
    X = torch.empty(len(vertices), len(cols))
    height = max(1, STRIPE_NONZEROS // max(len(cols), 1))
    for start in (vertices // height).unique() * height:
        stripe = range(int(start), min(int(start) + height, blocks.n))
        inside = ((vertices >= stripe.start) & (vertices < stripe.stop)).nonzero()[:, 0]
        X[inside] = blocks.feature_block(stripe, cols)[vertices[inside] - stripe.start]
    return X


def assert_within(size: int, *parts: range) -> None:
    """Assert that a rectangle lies within the matrix; slicing would hide the error of the caller."""
    for part in parts:
        assert part.step == 1 and 0 <= part.start <= part.stop <= size, (part, size)
