"""The adjacency of GraphSAGE, whose rows are means: A[i, j] is 1 over the number of neighbours of i, and A[i, i] is 0.

The matrix has the nonzero pattern of A, with zeros on the diagonal, so all counts of the graph hold for it too; but its
transpose is another matrix, whether or not the graph is directed.
Verifier (tests/store/test_averaged.py): scipy.
"""

from typing import Any

from torch import Tensor

from harness.graph.blocks import Blocks
from harness.kernels.csr import Csr, row_indices, take


class AveragedBlocks:
    """Wraps the `Blocks` of a graph: the same graph with an averaging adjacency."""

    directed = True

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """Return a rectangle of the averaging matrix. On the meta device, return the rectangle of A."""
        A = self._blocks.adjacency(rows, cols, order)
        if A.val.is_meta:
            return A
        assert self._blocks.permutation != "double", "a double permutation moves loops off the diagonal"
        lengths = self._blocks.adjacency(rows, range(self._blocks.n), order).rowptr.diff()
        return _average(A, lengths, rows.start - cols.start)


def average(A: Csr) -> Csr:
    """Return the averaging matrix with the entries of a whole A."""
    return A if A.val.is_meta else _average(A, A.rowptr.diff(), 0)


def _average(A: Csr, lengths: Tensor, diagonal: int) -> Csr:
    """Divide by the number of neighbours of every row: its entries except the loop, which every vertex has."""
    row = row_indices(A)
    val = take(1 / (lengths - 1).clamp(min=1).to(A.val.dtype), row)
    val[A.col == row + diagonal] = 0
    return A._replace(val=val)


def select_adjacency(blocks: Blocks, kind: str) -> Blocks:
    """Return the graph with the adjacency that a kind of model multiplies by: averaging for SAGE."""
    averaged: Any = AveragedBlocks(blocks)
    return averaged if kind == "sage" else blocks
