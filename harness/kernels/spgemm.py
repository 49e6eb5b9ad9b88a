"""Sparse times sparse. A selection of rows needs no multiplication; the general product is for the CPU.

Verifier (tests/kernels/test_spgemm.py): dense torch.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr, from_scipy, take, to_scipy


def select_rows(A: Csr, rows: Tensor) -> Csr:
    """A[rows] = Q A, where Q has one 1 a row. Rows may repeat and come in any order."""
    first, last = take(A.rowptr, rows), take(A.rowptr, rows + 1)
    counts = last - first
    rowptr = pad(counts.cumsum(0), (1, 0))
    shift = torch.repeat_interleave(first - rowptr[:-1], counts)
    entry = torch.arange(len(shift), device=shift.device) + shift
    return Csr(rowptr, take(A.col, entry), take(A.val, entry), A.cols)


def product(A: Csr, B: Csr) -> Csr:
    """A B. A sum that happens to be zero stays an entry."""
    assert A.cols == B.rows, f"{A.shape} times {B.shape}"
    assert A.val.dtype == B.val.dtype
    return from_scipy(to_scipy(A) @ to_scipy(B), A.val.dtype)
