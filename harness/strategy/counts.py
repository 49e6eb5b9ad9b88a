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
        self._known: dict[tuple[range, range, bool], tuple[int, int]] = {}

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return self._of(rows, cols, transposed)[0]

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return self._of(rows, cols, transposed)[1]

    def _of(self, rows: range, cols: range, transposed: bool) -> tuple[int, int]:
        """A block is read once: formulas ask for the same ones layer by layer. Undirected, A^T is A."""
        turned = transposed and self._blocks.directed
        key = rows, cols, turned
        if key not in self._known:
            A = self._blocks.adjacency(*((cols, rows) if turned else (rows, cols)))
            self._known[key] = A.nnz, len(filled_rows(A) if turned else filled_columns(A))
        return self._known[key]
