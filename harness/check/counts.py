"""Counts of a graph by scipy, on the whole matrix at once: what a strategy's formulas are held to."""

from typing import Any

import numpy as np

from harness.kernels.csr import to_scipy
from harness.store.blocks import Blocks


class ScipyCounts:
    """`harness.strategy.Counts`."""

    def __init__(self, blocks: Blocks) -> None:
        everyone = range(blocks.n)
        self._A = [to_scipy(blocks.adjacency(everyone, everyone, order)).tocoo() for order in (0, 1)]

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        return len(self._columns(rows, cols, transposed, order))

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return len(np.unique(self._columns(rows, cols, transposed, 0)))

    def _columns(self, rows: range, cols: range, transposed: bool, order: int) -> Any:
        """The column of every nonzero inside."""
        A = self._A[order]
        i, j = (A.col, A.row) if transposed else (A.row, A.col)
        return j[(i >= rows.start) & (i < rows.stop) & (j >= cols.start) & (j < cols.stop)]
