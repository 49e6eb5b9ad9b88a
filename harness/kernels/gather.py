"""The gradient of gathered rows as a sparse product: the rows are summed target by target, in order.

Adding into rows by index would be ten times slower on a CPU and in no fixed order on a GPU. Code that gathers by
one index many times makes the scatter matrix once.
Verifier (tests/kernels/test_gather.py): dense torch's own indexing and its gradient.
"""

import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype


def scatter_matrix(index_M: Tensor, rows: int, dtype: torch.dtype) -> Csr:
    """The matrix that adds gathered rows back to their origins: a one at (index[m], m)."""
    sorted_M, order_M = torch.sort(index_M, stable=True)
    rowptr = torch.searchsorted(sorted_M, torch.arange(rows + 1, device=index_M.device))
    ones_M = torch.ones(index_M.shape, dtype=dtype, device=index_M.device)
    return Csr(rowptr, order_M.to(index_dtype(len(index_M))), ones_M, len(index_M))
