"""A part of a matrix by lists of rows and columns, renumbered by their places in the lists.

Verifier (tests/kernels/test_subgraph.py): scipy's indexing.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr, from_coo, index_dtype, row_of, take
from harness.kernels.spgemm import select_rows


def induced(A: Csr, vertices: Tensor) -> Csr:
    """The subgraph on some vertices: A[vertices][:, vertices]."""
    return select_columns(select_rows(A, vertices), vertices)


def select_columns(A: Csr, cols: Tensor) -> Csr:
    """A[:, cols]. No column may be asked for twice; ascending columns save a sort."""
    width = len(cols)
    place = torch.full((A.cols,), -1, dtype=index_dtype(width), device=cols.device)
    place[cols] = torch.arange(width, dtype=place.dtype, device=cols.device)
    col = take(place, A.col)
    inside = col >= 0
    kept = inside.nonzero()[:, 0]
    col, val = take(col, kept), take(A.val, kept)
    if bool((cols.diff() > 0).all()):
        return Csr(take(pad(inside.cumsum(0), (1, 0)), A.rowptr), col, val, width)
    assert bool((take(place, cols) == torch.arange(width, device=cols.device)).all()), (
        "a column is there twice"
    )
    return from_coo(take(row_of(A), kept), col, val, (A.rows, width))
