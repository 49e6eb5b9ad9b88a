"""A part of a matrix by lists of rows and columns, renumbered by their places in the lists.

Verifier (tests/kernels/test_subgraph.py): scipy's indexing.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr, from_coo, index_dtype, row_of
from harness.kernels.spgemm import select_rows


def induced(A: Csr, vertices: Tensor) -> Csr:
    """The subgraph on some vertices: A[vertices][:, vertices]."""
    return select_columns(select_rows(A, vertices), vertices)


def select_columns(A: Csr, cols: Tensor) -> Csr:
    """A[:, cols]. No column may be asked for twice; ascending columns save a sort."""
    width = len(cols)
    place = torch.full((A.cols,), -1, dtype=index_dtype(width), device=cols.device)
    place[cols] = torch.arange(width, dtype=place.dtype, device=cols.device)
    new_col = place[A.col]
    kept = new_col >= 0
    rowptr = pad(kept.cumsum(0), (1, 0))[A.rowptr]
    if bool((cols.diff() > 0).all()):
        return Csr(rowptr, new_col[kept], A.val[kept], width)
    assert bool((place[cols] == torch.arange(width, device=cols.device)).all()), "a column is there twice"
    return from_coo(row_of(A)[kept], new_col[kept], A.val[kept], (A.rows, width))
