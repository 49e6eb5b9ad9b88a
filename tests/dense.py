"""Sparse matrices in forms that tests compare."""

from itertools import pairwise

import torch

from harness.kernels.csr import Csr, to_scipy


def to_dense(A: Csr) -> torch.Tensor:
    """Return the dense matrix."""
    return torch.from_numpy(to_scipy(A).toarray())


def list_rows(A: Csr) -> list[dict[int, float]]:
    """Return the values of each row by their columns."""
    bounds = A.rowptr.tolist()
    return [dict(zip(A.col[a:b].tolist(), A.val[a:b].tolist(), strict=True)) for a, b in pairwise(bounds)]
