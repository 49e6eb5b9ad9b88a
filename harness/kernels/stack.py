"""Batches of vertices one below the other: the rows of matrices that are made for many batches at once.

Stacked matrices have a row for every vertex of every batch. Before extraction their columns are vertices of the graph,
after it the places in their own batch's list of vertices.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr, block


class Stack(NamedTuple):
    """vertices int64, batch after batch; starts int64 (batches + 1), where each begins, and the end."""

    vertices: Tensor
    starts: Tensor

    @property
    def batches(self) -> int:
        return self.starts.numel() - 1

    def span(self, batch: int) -> range:
        """The rows of a batch."""
        return range(int(self.starts[batch]), int(self.starts[batch + 1]))

    def of(self, batch: int) -> Tensor:
        """The vertices of a batch."""
        here = self.span(batch)
        return self.vertices[here.start : here.stop]


def stacked(batches: Sequence[Tensor]) -> Stack:
    """Some batches, one below the other."""
    lengths = torch.tensor([len(batch) for batch in batches], dtype=torch.int64)
    nothing = torch.empty(0, dtype=torch.int64)
    return Stack(torch.cat([nothing, *batches]), pad(lengths.cumsum(0), (1, 0)))


def one_batch(vertices: range) -> Stack:
    """A batch of a range of vertices, alone."""
    return Stack(torch.arange(vertices.start, vertices.stop), torch.tensor([0, len(vertices)]))


def one_of(A: Csr, rows: Stack, cols: Stack, batch: int) -> Csr:
    """The matrix of one batch, cut out of a stacked one whose columns are places."""
    return block(A, rows.span(batch), range(A.cols))._replace(cols=len(cols.span(batch)))
