"""Counts of a graph's structure, for the formulas of words and bytes and for the sizes of messages."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.graph.averaged import average
from harness.graph.blocks import Blocks, Rectangle, resolve_rectangle
from harness.graph.model import SPLITS, TRAIN, LabelTask, has_label
from harness.kernels import Csr
from harness.kernels.parts import expected_distinct, nonempty_columns, nonempty_rows
from harness.spec.spec import Protocol as ProtocolChoice


class Piece(NamedTuple):
    """A rectangle of a matrix: the rows and columns that one rank holds."""

    rows: range
    cols: range


# Bytes of the tensors that a rank holds between steps, for formulas of memory.

WORD = {"float32": 4, "float64": 8}
"""The bytes of an element, by the precision of the run."""

INDEX, LONG = 4, 8
"""The bytes of a column index of a sparse matrix, and of a row pointer, a position or a label."""

NARROW = 2**31 - 1
"""The largest row pointer that a packed matrix stores in INDEX bytes."""


LABELS = 1 + len(SPLITS)
"""The number of label tensors on a rank: the training labels, and the labels of each split."""


def label_bytes(output: Piece, task: LabelTask) -> int:
    """Return the bytes of the labels of a rank's vertices: one class per vertex, or one flag per vertex and class."""
    return LABELS * len(output.rows) * (LONG if task == "single-label" else len(output.cols))


def transposed_index_bytes(rows: int, nonzeros: int) -> int:
    """Return the bytes of a transpose whose values are positions of entries in the original matrix."""
    return LONG * (rows + 1) + (INDEX + LONG) * nonzeros


def csr_bytes(rows: int, nonzeros: int, precision: str) -> int:
    """Return the bytes of a sparse matrix: row pointers, columns and values."""
    return LONG * (rows + 1) + (INDEX + WORD[precision]) * nonzeros


def packed_bytes(rows: int, nonzeros: int, precision: str) -> int:
    """Return the bytes of a packed sparse matrix (`harness.kernels.csr`), with row pointers as narrow as possible."""
    pointer = INDEX if nonzeros <= NARROW else LONG
    return pointer * (rows + 1) + (INDEX + WORD[precision]) * nonzeros


class Counts(Protocol):
    """Counts of rectangles of A, either exact or expected from the facts of a graph."""

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        """Return the number of nonzeros of A[rows, cols], or of A^T[rows, cols], in an order of the vertices."""

    def nonempty_columns(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        """Return the number of columns of A[rows, cols], or of A^T[rows, cols], that have a nonzero."""

    def adjacency(self) -> Csr:
        """Return A, for the formulas of strategies that sample."""

    def edge_parts(self) -> Tensor | None:
        """Return the part of every entry of A, row by row, if the partition is a vertex cut; otherwise None."""

    def targets(self, protocol: ProtocolChoice) -> Tensor:
        """Return the vertices that the loss counts, in ascending order."""


class BlockCounts:
    """Counts in the blocks of a graph; with shapes only, the expected numbers."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._expect_nonzeros: Callable[[range, range], int] | None = getattr(blocks, "expect_nonzeros", None)
        """Returns the expected number of nonzeros of a rectangle, if the blocks have shapes only."""
        self._nonzeros: dict[Rectangle, int] = {}
        self._filled: dict[Rectangle, int] = {}

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        """Return the number of nonzeros. Counts are cached, because receivers and formulas ask in every layer."""
        where = resolve_rectangle(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._nonzeros:
            self._nonzeros[where] = self._count_nonzeros(where)
        return self._nonzeros[where]

    def nonempty_columns(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        where = resolve_rectangle(self._blocks, rows, cols, 0, transposed=transposed)
        if where not in self._filled:
            self._filled[where] = self._count_nonempty_columns(where)
        return self._filled[where]

    def adjacency(self) -> Csr:
        return self._blocks.adjacency(range(self._blocks.n), range(self._blocks.n))

    def edge_parts(self) -> Tensor | None:
        return self._blocks.edge_parts(range(self._blocks.n))

    def targets(self, protocol: ProtocolChoice) -> Tensor:
        return find_targets(self._blocks, protocol)

    def _count_nonzeros(self, where: Rectangle) -> int:
        if self._expect_nonzeros:
            return self._expect_nonzeros(where.rows, where.cols)
        return self._read(where).nnz

    def _count_nonempty_columns(self, where: Rectangle) -> int:
        if self._expect_nonzeros:
            columns = len(where.rows if where.transposed else where.cols)
            return expected_distinct(columns, self._expect_nonzeros(where.rows, where.cols))
        return len((nonempty_rows if where.transposed else nonempty_columns)(self._read(where)))

    def _read(self, where: Rectangle) -> Csr:
        return self._blocks.adjacency(where.rows, where.cols, where.order)


def find_targets(blocks: Blocks, protocol: ProtocolChoice) -> Tensor:
    """Return the vertices that the loss counts, in ascending order; with shapes only, as many as there can be."""
    everyone = range(blocks.n)
    labels = blocks.labels(everyone)
    if labels.is_meta:
        return labels.new_empty(blocks.n, dtype=torch.int64)
    counts = has_label(labels)
    if protocol == "corrected":
        counts &= blocks.split(everyone) == TRAIN
    return counts.nonzero()[:, 0]


def select_values(A: Csr, kind: str) -> Csr:
    """Return the whole A with the values that a kind of model multiplies by: averages for SAGE."""
    return average(A) if kind == "sage" else A
