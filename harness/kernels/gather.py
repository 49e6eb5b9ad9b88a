"""Rows of a matrix by index. The gradient is a sparse product, summed row by row and in order.

Adding into rows by index would be ten times slower on a CPU and in no fixed order on a GPU. Code that gathers by
one index many times makes the scatter matrix once. Legend: N rows of X, M gathered rows, F features.
Verifier (tests/kernels/test_gather.py): dense torch's own indexing and its gradient.
"""

from typing import Any

import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype
from harness.kernels.spmm import spmm


def gather_rows(X_NF: Tensor, index_M: Tensor, scatter_NM: Csr | None = None) -> Tensor:
    """X[index], differentiable in X; `scatter` is `scatter_matrix` of the index."""
    gathered_MF: Tensor = GatherRows.apply(X_NF, index_M, scatter_NM)  # type: ignore[no-untyped-call]
    return gathered_MF


def scatter_matrix(index_M: Tensor, rows: int, dtype: torch.dtype) -> Csr:
    """The matrix that adds gathered rows back to their origins: a one at (index[m], m)."""
    sorted_M, order_M = torch.sort(index_M, stable=True)
    rowptr = torch.searchsorted(sorted_M, torch.arange(rows + 1, device=index_M.device))
    ones_M = torch.ones(index_M.shape, dtype=dtype, device=index_M.device)
    return Csr(rowptr, order_M.to(index_dtype(len(index_M))), ones_M, len(index_M))


class GatherRows(torch.autograd.Function):
    """Y = X[index], dX = S dY."""

    @staticmethod
    def forward(ctx: Any, X_NF: Tensor, index_M: Tensor, scatter_NM: Csr | None) -> Tensor:
        ctx.rows, ctx.index_M, ctx.scatter_NM = len(X_NF), index_M, scatter_NM
        return X_NF.index_select(0, index_M)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        (dY_MF,) = gradients
        scatter_NM = ctx.scatter_NM or scatter_matrix(ctx.index_M, ctx.rows, dY_MF.dtype)
        return spmm(scatter_NM, dY_MF), None, None
