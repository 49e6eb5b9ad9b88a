"""Counts of a graph by scipy, on the whole matrix at once: what a strategy's formulas are held to."""

from typing import Any

import numpy as np

from harness.kernels.csr import to_scipy
from harness.store.blocks import Blocks


class ScipyCounts:
    """`harness.strategy.Counts`."""

    def __init__(self, blocks: Blocks) -> None:
        everyone = range(blocks.n)
        self._A = to_scipy(blocks.adjacency(everyone, everyone)).tocoo()

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return len(self._columns(rows, cols, transposed))

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return len(np.unique(self._columns(rows, cols, transposed)))

    def _columns(self, rows: range, cols: range, transposed: bool) -> Any:
        """The column of every nonzero inside."""
        i, j = (self._A.col, self._A.row) if transposed else (self._A.row, self._A.col)
        return j[(i >= rows.start) & (i < rows.stop) & (j >= cols.start) & (j < cols.stop)]
