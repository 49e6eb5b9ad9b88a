"""A graph whose rows are means: A[i, j] is one over the number of neighbours of i, and nothing at i itself.

What GraphSAGE multiplies by. The places of A stay as they are, the diagonal with zeros, so whatever is counted of a
graph holds for its means; but A^T is another matrix, whether the graph is directed or not.
Verifier (tests/store/test_averaged.py): scipy.
"""

from typing import Any

from torch import Tensor

from harness.kernels.csr import Csr, row_of, take
from harness.store.blocks import Blocks


class Averaged:
    """`harness.store.blocks.Blocks` over another."""

    directed = True

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """A rectangle; of shapes alone it is that of A."""
        A = self._blocks.adjacency(rows, cols, order)
        if A.val.is_meta:
            return A
        assert self._blocks.permutation != "double", "a diagonal that is not one"
        row = row_of(A)
        val = take(1 / self._neighbours(rows, order).clamp(min=1).to(A.val.dtype), row)
        val[A.col + cols.start == row + rows.start] = 0
        return A._replace(val=val)

    def _neighbours(self, rows: range, order: int) -> Tensor:
        """Of every row: all its entries but the loop, which every vertex has."""
        return self._blocks.adjacency(rows, range(self._blocks.n), order).rowptr.diff() - 1


def multiplied(blocks: Blocks, kind: str) -> Blocks:
    """The graph as a kind of model multiplies by it."""
    averaged: Any = Averaged(blocks)
    return averaged if kind == "sage" else blocks
