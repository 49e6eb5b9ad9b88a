"""Sparse times dense: one operator, its shape, its flops, its gradient. How it is multiplied is elsewhere.

No sparse tensor object crosses this interface, so it also runs on shapes alone (replay), where sparse tensors
do not exist. Legend: N rows of A, K columns of A, F features.
Verifier (tests/kernels/test_spmm.py): dense torch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.utils.flop_counter import register_flop_formula

from harness.kernels.csr import Csr
from harness.kernels.multiply import Way, multiply

OPERATORS = Library("harness", "DEF")
OPERATORS.define("spmm(Tensor rowptr, Tensor col, Tensor val, int cols, Tensor H) -> Tensor")
OPERATORS.define("spmm_add_(Tensor(a!) out, Tensor rowptr, Tensor col, Tensor val, int cols, Tensor H) -> ()")
PRODUCT, PRODUCT_ADD = torch.ops.harness.spmm.default, torch.ops.harness.spmm_add_.default


def spmm(A_NK: Csr, H_KF: Tensor, *, add_to: Tensor | None = None) -> Tensor:
    """A H; or add_to + A H, in add_to. Not differentiable: `aggregate` is."""
    assert A_NK.cols == H_KF.shape[0], f"{A_NK.shape} times {tuple(H_KF.shape)}"
    assert A_NK.val.dtype == H_KF.dtype, f"{A_NK.val.dtype} times {H_KF.dtype}"
    assert not (H_KF.requires_grad and torch.is_grad_enabled()), "a gradient would be lost: use aggregate"
    if add_to is None:
        Z_NF: Tensor = PRODUCT(*A_NK, H_KF)
        return Z_NF
    assert add_to.shape == (A_NK.rows, H_KF.shape[1]), f"the sum has shape {tuple(add_to.shape)}"
    assert add_to.dtype == H_KF.dtype
    PRODUCT_ADD(add_to, *A_NK, H_KF)
    return add_to


def aggregate(A_NK: Csr, A_T_KN: Csr, H_KF: Tensor) -> Tensor:
    """A H, differentiable in H. The transpose comes from the caller, who has it, or it is the same matrix."""
    Z_NF: Tensor = Aggregate.apply(H_KF, A_NK, A_T_KN)  # type: ignore[no-untyped-call]
    return Z_NF


class Aggregate(torch.autograd.Function):
    """Z = A H, dH = A^T dZ."""

    @staticmethod
    def forward(ctx: Any, H_KF: Tensor, A_NK: Csr, A_T_KN: Csr) -> Tensor:
        ctx.A_T_KN = A_T_KN
        return spmm(A_NK, H_KF)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (dZ_NF,) = gradients
        return spmm(ctx.A_T_KN, dZ_NF) if ctx.needs_input_grad[0] else None, None, None


def _implement(device: str, way: Way) -> None:
    def product(rowptr: Tensor, col: Tensor, val: Tensor, cols: int, H_KF: Tensor) -> Tensor:
        return way(Csr(rowptr, col, val, cols), H_KF, None)

    def product_add(out: Tensor, rowptr: Tensor, col: Tensor, val: Tensor, cols: int, H_KF: Tensor) -> None:
        way(Csr(rowptr, col, val, cols), H_KF, out)

    OPERATORS.impl("spmm", product, device)
    OPERATORS.impl("spmm_add_", product_add, device)


def _shape(A_NK: Csr, H_KF: Tensor, add_to: Tensor | None) -> Tensor:
    return H_KF.new_empty((A_NK.rows, H_KF.shape[1])) if add_to is None else add_to


_implement("Meta", _shape)
_implement("CPU", multiply)
_implement("CUDA", multiply)


@register_flop_formula([PRODUCT.overloadpacket, PRODUCT_ADD.overloadpacket], get_raw=True)
def spmm_flops(*operands: Any, **_options: Any) -> int:
    """A multiplication and an addition for each nonzero and feature."""
    *_, val, _cols, H = operands
    return 2 * int(val.numel()) * int(H.shape[1])
