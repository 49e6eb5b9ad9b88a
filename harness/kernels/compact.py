"""Sparse matrices without their empty columns: what is left of a block where most vertices have no neighbour.

Of shapes alone nobody knows which columns are empty: as many are filled as if every nonzero had been thrown at random.
Verifier (tests/kernels/test_compact.py): dense matrices.
"""

from math import expm1, log1p

import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype


def filled_columns(A: Csr) -> Tensor:
    """The columns that hold a nonzero, ascending, int64."""
    if A.col.is_meta:
        return A.col.new_empty(expected(A.cols, A.nnz), dtype=torch.int64)
    holds = torch.zeros(A.cols, dtype=torch.bool)
    holds[A.col.long()] = True
    return holds.nonzero()[:, 0]


def filled_rows(A: Csr) -> Tensor:
    """The rows that hold a nonzero, ascending, int64."""
    if A.rowptr.is_meta:
        return A.rowptr.new_empty(expected(A.rows, A.nnz))
    return A.rowptr.diff().nonzero()[:, 0]


def without_empty_columns(A: Csr) -> Csr:
    """The filled columns of A, numbered from 0 on."""
    filled = filled_columns(A)
    dtype = index_dtype(len(filled))
    if A.col.is_meta:
        return A._replace(col=A.col.new_empty(A.nnz, dtype=dtype), cols=len(filled))
    place = torch.empty(A.cols, dtype=dtype)
    place[filled] = torch.arange(len(filled), dtype=dtype)
    return A._replace(col=place[A.col.long()], cols=len(filled))


def expected(places: int, thrown: int) -> int:
    """How many places are hit at least once."""
    if places <= 1:
        return min(places, thrown)
    return min(round(-places * expm1(thrown * log1p(-1 / places))), thrown)
