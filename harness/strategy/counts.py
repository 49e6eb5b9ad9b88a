"""Counts of a graph's structure, for formulas and for the sizes of messages: what no formula knows by itself."""

from typing import Protocol

from harness.kernels.compact import filled_columns, filled_rows
from harness.store.blocks import Blocks


class Counts(Protocol):
    """Answers by rectangle, exactly or as the facts of a graph let expect."""

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        """Nonzeros of A[rows, cols], or of A^T[rows, cols]."""

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        """Columns of A[rows, cols], or of A^T[rows, cols], in which there is a nonzero."""


class BlockCounts:
    """Counted in the blocks themselves; of shapes alone, as many as they have."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._nonzeros: dict[tuple[range, range], int] = {}

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        """A block is read once for this: who receives it asks, and so do the formulas, layer by layer."""
        place = (cols, rows) if self._turned(transposed) else (rows, cols)
        if place not in self._nonzeros:
            self._nonzeros[place] = self._blocks.adjacency(*place).nnz
        return self._nonzeros[place]

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        if self._turned(transposed):
            return len(filled_rows(self._blocks.adjacency(cols, rows)))
        return len(filled_columns(self._blocks.adjacency(rows, cols)))

    def _turned(self, transposed: bool) -> bool:
        """Undirected, A^T is A."""
        return transposed and self._blocks.directed
