"""So many neighbours of each vertex, without replacement, every set of them as likely as any other.

What is drawn of a row is a function of the seed, of the number of its vertex and of how many entries the row has:
whoever has the row draws the same, whichever other rows stand beside it. Floyd's algorithm, so the work of a row is
that of what is drawn and not of its length. On a CPU only.
Verifier (tests/kernels/test_sample.py): the definition in Python, and the frequency of every set on tiny rows.
"""

import torch
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.random import Purpose, Seed, key_of

MOST = 1 << 12
"""Neighbours that can be drawn of a row: its part of the counters."""


def neighbours(
    A: Csr, rows: Tensor, vertices: Tensor, fanout: int, seed: Seed, *, loops: bool = False
) -> Csr:
    """Some of the entries of A[rows], rescaled so that a product with it has the mean of one with A[rows].

    `vertices` are the numbers of the rows' vertices. With `loops`, an entry in the column of its own row's vertex is
    always there, as it is, and the draw is among the others. Rows of no more than `fanout` entries stay whole.
    """
    assert 0 < fanout < MOST, fanout
    if A.val.is_meta:
        return _shape(A, len(rows), fanout + loops)
    import numpy as np

    from harness.kernels.sample_compiled import draw_rows

    longest = A.rowptr.index_select(0, rows + 1) - A.rowptr.index_select(0, rows)
    most = int(longest.clamp(max=fanout + loops).sum())
    drawn = Csr(
        torch.zeros(len(rows) + 1, dtype=torch.int64), A.col.new_empty(most), A.val.new_empty(most), A.cols
    )
    first, second = (np.uint64(word) for word in key_of(seed, Purpose.SAMPLE))
    kept = draw_rows(
        (A.rowptr.numpy(), A.col.numpy(), A.val.numpy()),
        (rows.numpy(), vertices.numpy()),
        (fanout, loops, first, second),
        (drawn.rowptr.numpy(), drawn.col.numpy(), drawn.val.numpy()),
    )
    return drawn._replace(col=drawn.col[:kept], val=drawn.val[:kept])


def _shape(A: Csr, rows: int, most: int) -> Csr:
    """Where all rows are of equal length."""
    nnz = rows * min(most, -(-A.nnz // max(A.rows, 1)))
    return Csr(A.rowptr.new_empty(rows + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)
