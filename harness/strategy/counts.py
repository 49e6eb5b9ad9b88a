"""Counts of a graph's structure, for formulas of words and bytes and for the sizes of messages."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.graph.blocks import Blocks, Rectangle, rectangle_of
from harness.graph.model import SPLITS, TRAIN, LabelTask, labelled
from harness.kernels import Csr
from harness.kernels.parts import nonempty_columns, nonempty_rows
from harness.spec.spec import Protocol as ProtocolChoice


class Piece(NamedTuple):
    """A rectangle of a matrix: the rows and columns that one rank holds."""

    rows: range
    cols: range


# Bytes of tensors that a rank holds all the time, for formulas of memory.

WORD = {"float32": 4, "float64": 8}
"""The bytes of a number, by the precision of the run."""

INDEX, LONG = 4, 8
"""The bytes of a column of a sparse matrix; and of a row pointer, a position or a label."""

NARROW = 2**31 - 1
"""The largest number that a row pointer of a packed matrix counts in INDEX bytes."""


LABELS = 1 + len(SPLITS)
"""The label tensors of a rank: the training labels, and those of each split."""


def label_bytes(output: Piece, task: LabelTask) -> int:
    """The bytes of the labels of a rank's vertices: one class a vertex, or yes or no for each class."""
    return LABELS * len(output.rows) * (LONG if task == "single-label" else len(output.cols))


def turned_bytes(rows: int, nonzeros: int) -> int:
    """The bytes of a transpose whose values are positions of entries: row pointers, columns and positions."""
    return LONG * (rows + 1) + (INDEX + LONG) * nonzeros


def csr_bytes(rows: int, nonzeros: int, precision: str) -> int:
    """The bytes of a sparse matrix: row pointers, columns and values."""
    return LONG * (rows + 1) + (INDEX + WORD[precision]) * nonzeros


def packed_bytes(rows: int, nonzeros: int, precision: str) -> int:
    """The bytes of a packed sparse matrix (`harness.kernels.csr`), whose row pointers are as narrow as possible."""
    pointer = INDEX if nonzeros <= NARROW else LONG
    return pointer * (rows + 1) + (INDEX + WORD[precision]) * nonzeros


class Counts(Protocol):
    """Counts by rectangle, exact or as expected from the facts of a graph."""

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        """Nonzeros of A[rows, cols], or of A^T[rows, cols], in this order of the vertices."""

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        """Columns of A[rows, cols], or of A^T[rows, cols], that have a nonzero."""

    def whole(self) -> Csr:
        """A itself, for formulas of samples."""

    def edge_parts(self) -> Tensor | None:
        """The part of every entry of A, row by row, if the partition is a vertex cut."""

    def targets(self, protocol: ProtocolChoice) -> Tensor:
        """The vertices that the loss counts, ascending."""


class BlockCounts:
    """Counts in the blocks themselves; of shapes alone, the expected numbers."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._nonzeros: dict[Rectangle, int] = {}
        self._filled: dict[Rectangle, int] = {}

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        """A block is read once for this, although receivers and formulas ask layer by layer."""
        where = rectangle_of(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._nonzeros:
            self._nonzeros[where] = self._read(where).nnz
        return self._nonzeros[where]

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        where = rectangle_of(self._blocks, rows, cols, 0, transposed=transposed)
        if where not in self._filled:
            self._filled[where] = len(
                (nonempty_rows if where.turned else nonempty_columns)(self._read(where))
            )
        return self._filled[where]

    def whole(self) -> Csr:
        return self._blocks.adjacency(range(self._blocks.n), range(self._blocks.n))

    def edge_parts(self) -> Tensor | None:
        return self._blocks.edge_parts(range(self._blocks.n))

    def targets(self, protocol: ProtocolChoice) -> Tensor:
        return targets_of(self._blocks, protocol)

    def _read(self, where: Rectangle) -> Csr:
        return self._blocks.adjacency(where.rows, where.cols, where.order)


def targets_of(blocks: Blocks, protocol: ProtocolChoice) -> Tensor:
    """The vertices that the loss counts, ascending; of shapes alone, the largest possible number."""
    everyone = range(blocks.n)
    labels = blocks.labels(everyone)
    if labels.is_meta:
        return labels.new_empty(blocks.n, dtype=torch.int64)
    counts = labelled(labels)
    if protocol == "corrected":
        counts &= blocks.split(everyone) == TRAIN
    return counts.nonzero()[:, 0]
