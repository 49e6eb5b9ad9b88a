"""Counts of a graph by scipy, on the whole matrix at once: what a strategy's formulas are held to."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.graph.model import TRAIN
from harness.kernels.csr import Csr, from_scipy, to_scipy
from harness.spec.spec import Protocol
from harness.store.blocks import Blocks


class ScipyCounts:
    """`harness.strategy.Counts`."""

    def __init__(self, blocks: Blocks) -> None:
        everyone = range(blocks.n)
        self._labels = blocks.labels(everyone).numpy()
        self._trains = blocks.split(everyone).numpy() == TRAIN
        self._A = [to_scipy(blocks.adjacency(everyone, everyone, order)).tocoo() for order in (0, 1)]

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        return len(self._columns(rows, cols, transposed, order))

    def filled(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return len(np.unique(self._columns(rows, cols, transposed, 0)))

    def whole(self) -> Csr:
        return from_scipy(self._A[0])

    def targets(self, protocol: Protocol) -> Tensor:
        """One label a vertex, or a class for each; -1 where there is none."""
        known = self._labels.reshape(len(self._labels), -1).max(axis=1) >= 0
        return torch.from_numpy(np.flatnonzero(known & (self._trains if protocol == "corrected" else True)))

    def _columns(self, rows: range, cols: range, transposed: bool, order: int) -> Any:
        """The column of every nonzero inside."""
        A = self._A[order]
        i, j = (A.col, A.row) if transposed else (A.row, A.col)
        return j[(i >= rows.start) & (i < rows.stop) & (j >= cols.start) & (j < cols.stop)]
