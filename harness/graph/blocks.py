"""What training reads of a dataset, wherever it is kept: in memory or in a folder of blocks."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from harness.graph.model import LabelTask
from harness.graph.order import Permutation
from harness.kernels.csr import Csr, row_of, take

AT_ONCE = 1 << 24
"""Nonzeros read at a time, if every row has as many."""


class Kind(Protocol):
    """What decides which rectangles are the same."""

    @property
    def directed(self) -> bool: ...

    @property
    def permutation(self) -> Permutation: ...


class Blocks(Kind, Protocol):
    """Serves any rectangle of the graph, in any order of its vertices (`harness.graph.order`).

    Order 0 is A[p][:, q] and order 1 is A[q][:, p]. What is returned belongs to the caller.
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
    def bounds(self) -> tuple[int, ...] | None:
        """Where the parts of a partition begin, and the end; None without a partition."""

    @property
    def manifest_hash(self) -> str:
        """Stands for everything that is served: equal hashes, equal data."""

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """A rectangle, with indices that start at 0; values no coarser than the precision of the run."""

    def feature_block(self, rows: range, cols: range) -> Tensor:
        """A rectangle of the features, float32. Rows are the columns of order 0."""

    def labels(self, rows: range, order: int = 0) -> Tensor:
        """Labels of rows of this order, as `LabelTask` says."""

    def split(self, rows: range, order: int = 0) -> Tensor:
        """0 none, 1 train, 2 valid, 3 test, uint8, of rows of this order."""


class Rectangle(NamedTuple):
    """Where a rectangle is read: of A, in one order; turned, if it is its transpose that is wanted."""

    rows: range
    cols: range
    order: int
    turned: bool


def rectangle_of(graph: Kind, rows: range, cols: range, order: int, *, transposed: bool) -> Rectangle:
    """Where A[rows, cols] or A^T[rows, cols] of this order stands, the same for all that is the same.

    Orders differ only under a double permutation. Undirected, the transpose of one order is the other.
    """
    double = graph.permutation == "double"
    if transposed and graph.directed:
        return Rectangle(cols, rows, order % 2 if double else 0, True)
    return Rectangle(rows, cols, (order + transposed) % 2 if double else 0, False)


def stripes(blocks: Blocks, rows: range, order: int = 0) -> Iterator[tuple[range, Csr]]:
    """Whole rows of the graph, some at a time."""
    height = max(1, blocks.n * AT_ONCE // max(blocks.nnz, 1))
    for start in range(rows.start, rows.stop, height):
        some = range(start, min(start + height, rows.stop))
        yield some, blocks.adjacency(some, range(blocks.n), order)


def feature_rows(blocks: Blocks, vertices: Tensor, cols: range) -> Tensor:
    """The features of any vertices, in their order; read some stripes at a time, and only where there are any."""
    found = torch.empty(len(vertices), len(cols))
    height = max(1, AT_ONCE // max(len(cols), 1))
    for start in (vertices // height).unique() * height:
        some = range(int(start), min(int(start) + height, blocks.n))
        here = ((vertices >= some.start) & (vertices < some.stop)).nonzero()[:, 0]
        found[here] = blocks.feature_block(some, cols)[vertices[here] - some.start]
    return found


def assert_within(size: int, *parts: range) -> None:
    """A rectangle that leaves the matrix is a defect of the caller, and slices would hide it."""
    for part in parts:
        assert part.step == 1 and 0 <= part.start <= part.stop <= size, (part, size)


# A graph whose rows are means: A[i, j] is one over the number of neighbours of i, and nothing at i itself.
#
# What GraphSAGE multiplies by. The places of A stay as they are, the diagonal with zeros, so whatever is
# counted of a graph holds for its means; but A^T is another matrix, whether the graph is directed or not.
# Verifier (tests/store/test_averaged.py): scipy.


class Averaged:
    """`harness.graph.blocks.Blocks` over another."""

    directed = True

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """A rectangle; of shapes alone it is that of A."""
        A = self._blocks.adjacency(rows, cols, order)
        if A.val.is_meta:
            return A
        assert self._blocks.permutation != "double", "a diagonal that is not one"
        row = row_of(A)
        val = take(1 / self._neighbours(rows, order).clamp(min=1).to(A.val.dtype), row)
        val[A.col + cols.start == row + rows.start] = 0
        return A._replace(val=val)

    def _neighbours(self, rows: range, order: int) -> Tensor:
        """Of every row: all its entries but the loop, which every vertex has."""
        return self._blocks.adjacency(rows, range(self._blocks.n), order).rowptr.diff() - 1


def multiplied(blocks: Blocks, kind: str) -> Blocks:
    """The graph as a kind of model multiplies by it."""
    averaged: Any = Averaged(blocks)
    return averaged if kind == "sage" else blocks
