"""Counts of a dataset that plans need before they cut it. Exact, and read from the blocks themselves."""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.store.blocks import Blocks

STRIPE = 1 << 18
"""Rows read at a time."""


def nonzeros(blocks: Blocks, rows: Sequence[range], cols: Sequence[range], order: int = 0) -> Tensor:
    """The nonzeros of every block of an arrangement, (len(rows), len(cols)) int64.

    The column ranges follow one another from 0 to n; the row ranges are free, and empty ranges hold nothing.
    """
    assert [c.start for c in cols] == [0, *(c.stop for c in cols[:-1])]
    assert cols[-1].stop == blocks.n
    ends = torch.tensor([c.stop for c in cols])
    counts = torch.zeros(len(rows), len(cols), dtype=torch.int64)
    for i, part in enumerate(rows):
        for start in range(part.start, part.stop, STRIPE):
            stripe = blocks.adjacency(range(start, min(start + STRIPE, part.stop)), range(blocks.n), order)
            holder = torch.searchsorted(ends, stripe.col.long(), right=True)
            counts[i] += torch.bincount(holder, minlength=len(cols))
    return counts
