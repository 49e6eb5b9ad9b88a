"""Counts of a dataset that plans need before they cut it. Exact, and read from the blocks themselves."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from harness.kernels.csr import Csr
from harness.store.blocks import Blocks

AT_ONCE = 1 << 24
"""Nonzeros read at a time, if every row has as many."""


def stripes(blocks: Blocks, rows: range, order: int = 0) -> Iterator[tuple[range, Csr]]:
    """Whole rows of the graph, some at a time."""
    height = max(1, blocks.n * AT_ONCE // max(blocks.nnz, 1))
    for start in range(rows.start, rows.stop, height):
        some = range(start, min(start + height, rows.stop))
        yield some, blocks.adjacency(some, range(blocks.n), order)


def nonzeros(blocks: Blocks, rows: Sequence[range], cols: Sequence[range], order: int = 0) -> Tensor:
    """The nonzeros of every block of an arrangement, (len(rows), len(cols)) int64.

    The column ranges follow one another from 0 to n; the row ranges are free, and empty ranges hold nothing.
    """
    assert [c.start for c in cols] == [0, *(c.stop for c in cols[:-1])]
    assert cols[-1].stop == blocks.n
    ends = torch.tensor([c.stop for c in cols])
    counts = torch.zeros(len(rows), len(cols), dtype=torch.int64)
    for i, part in enumerate(rows):
        for _, stripe in stripes(blocks, part, order):
            holder = torch.searchsorted(ends, stripe.col.long(), right=True)
            counts[i] += torch.bincount(holder, minlength=len(cols))
    return counts
