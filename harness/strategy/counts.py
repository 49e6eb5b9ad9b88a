"""Counts of a graph's structure, for formulas and for the sizes of messages: what no formula knows by itself."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from harness.graph.blocks import Blocks, Rectangle, rectangle_of
from harness.graph.model import SPLITS, TRAIN, LabelTask, labelled
from harness.kernels import Csr
from harness.kernels.parts import filled_columns, filled_rows
from harness.spec.spec import Protocol as ProtocolChoice

# A rectangle of a matrix: the part that one rank holds.


class Piece(NamedTuple):
    """Which rows, and which columns."""

    rows: range
    cols: range


# Bytes of what a rank holds all the time, for formulas of memory.

WORD = {"float32": 4, "float64": 8}
"""Of a number, by the precision of the run."""

INDEX, LONG = 4, 8
"""Of a column of a sparse matrix; of a row pointer, a position or a label."""

NARROW = 2**31 - 1
"""The largest number that a row pointer of a packed matrix counts in INDEX bytes."""


LABELS = 1 + len(SPLITS)
"""Training's, and each split's."""


def label_bytes(output: Piece, task: LabelTask) -> int:
    """Of a rank's vertices: a class of each, or for each of its classes yes or no."""
    return LABELS * len(output.rows) * (LONG if task == "single-label" else len(output.cols))


def turned_bytes(rows: int, nonzeros: int) -> int:
    """Of a transpose that has, as values, the places of its entries: row pointers, columns and places."""
    return LONG * (rows + 1) + (INDEX + LONG) * nonzeros


def csr_bytes(rows: int, nonzeros: int, precision: str) -> int:
    """Of a sparse matrix: row pointers, columns and values."""
    return LONG * (rows + 1) + (INDEX + WORD[precision]) * nonzeros


def packed_bytes(rows: int, nonzeros: int, precision: str) -> int:
    """Of a sparse matrix that travels (`harness.kernels.csr`): its row pointers are as narrow as they can be."""
    pointer = INDEX if nonzeros <= NARROW else LONG
    return pointer * (rows + 1) + (INDEX + WORD[precision]) * nonzeros


class Counts(Protocol):
    """Answers by rectangle, exactly or as the facts of a graph let expect."""

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        """Nonzeros of A[rows, cols], or of A^T[rows, cols], in this order of the vertices."""

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        """Columns of A[rows, cols], or of A^T[rows, cols], in which there is a nonzero."""

    def whole(self) -> Csr:
        """A itself, for formulas of what is drawn from it."""

    def targets(self, protocol: ProtocolChoice) -> Tensor:
        """The vertices that the loss counts, ascending."""


class BlockCounts:
    """Counted in the blocks themselves; of shapes alone, as many as they have."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._nonzeros: dict[Rectangle, int] = {}
        self._filled: dict[Rectangle, int] = {}

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        """A block is read once for this: who receives it asks, and so do the formulas, layer by layer."""
        where = rectangle_of(self._blocks, rows, cols, order, transposed=transposed)
        if where not in self._nonzeros:
            self._nonzeros[where] = self._read(where).nnz
        return self._nonzeros[where]

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        where = rectangle_of(self._blocks, rows, cols, 0, transposed=transposed)
        if where not in self._filled:
            self._filled[where] = len((filled_rows if where.turned else filled_columns)(self._read(where)))
        return self._filled[where]

    def whole(self) -> Csr:
        return self._blocks.adjacency(range(self._blocks.n), range(self._blocks.n))

    def targets(self, protocol: ProtocolChoice) -> Tensor:
        return targets_of(self._blocks, protocol)

    def _read(self, where: Rectangle) -> Csr:
        return self._blocks.adjacency(where.rows, where.cols, where.order)


def targets_of(blocks: Blocks, protocol: ProtocolChoice) -> Tensor:
    """The vertices that the loss counts, ascending; of shapes alone, as many as there may be."""
    everyone = range(blocks.n)
    labels = blocks.labels(everyone)
    if labels.is_meta:
        return labels.new_empty(blocks.n, dtype=torch.int64)
    counts = labelled(labels)
    if protocol == "corrected":
        counts &= blocks.split(everyone) == TRAIN
    return counts.nonzero()[:, 0]
