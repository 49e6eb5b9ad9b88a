"""Bytes of what a rank holds all the time, for formulas of memory."""

from harness.graph.model import SPLITS, LabelTask
from harness.strategy.piece import Piece

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
    """Of a sparse matrix that travels (`harness.kernels.packed`): its row pointers are as narrow as they can be."""
    pointer = INDEX if nonzeros <= NARROW else LONG
    return pointer * (rows + 1) + (INDEX + WORD[precision]) * nonzeros
