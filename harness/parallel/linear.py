"""A product with trained weights on three axes, where the weights are whole along the one that splits the rows.

Z = H W, H split over rows and inner, W over inner and cols: partial products are added up over `inner`, the gradient
dH = G W^T over `cols`, the gradient dW = H^T G over `rows`. A convolution's combination, the projection and the head
are this product with other axes in the roles (ScaleGNN, equation 28).

Legend: N rows, F features in over inner, H features out over cols.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.comm.axis import Axis
from harness.kernels.recorded import Kernels
from harness.ledger import TensorName, apply
from harness.parallel.gradients import Gradients


class Split(NamedTuple):
    """Which axis splits what, and what things are called."""

    rows: Axis
    inner: Axis
    cols: Axis
    makes: TensorName
    gradient: TensorName
    """What the gradient of H is called."""


class Sending(NamedTuple):
    """How sums travel."""

    wire: torch.dtype | None
    """The type of partial products on the way, if not their own."""
    overlap: bool
    """The sum of dH is under way while dW is multiplied."""
    gradients: Gradients


def linear(kernels: Kernels, H_NF: Tensor, W_FH: Tensor, split: Split, sending: Sending) -> Tensor:
    """Z = H W."""
    Z_NH: Tensor = apply(kernels.ledger, Linear, H_NF, W_FH, kernels, split, sending)
    return Z_NH


class Linear(Function):
    """Z = H W, dH = G W^T, dW = H^T G."""

    @staticmethod
    def forward(
        saved: Any, H_NF: Tensor, W_FH: Tensor, kernels: Kernels, split: Split, sending: Sending
    ) -> Tensor:
        saved.kernels, saved.split, saved.sending, saved.W = kernels, split, sending, W_FH
        saved.save_for_backward(H_NF, W_FH)
        Z_NH = kernels.gemm(H_NF, W_FH, split.makes)
        return split.inner.all_reduce(Z_NH, tensor=split.makes, wire=sending.wire)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        kernels, split, (wire, overlap, gradients) = saved.kernels, saved.split, saved.sending
        H_NF, W_FH = saved.saved_tensors
        coming, dH_NF = None, None
        if saved.needs_input_grad[0]:
            send = split.cols.all_reduce.call(
                kernels.gemm(G_NH, W_FH.T, split.gradient), tensor=split.gradient, wire=wire
            )
            coming, dH_NF = (send.later(), None) if overlap else (None, send.now())
        dW_FH = kernels.gemm(H_NF.T, G_NH, TensorName.DW)
        if coming is not None:
            dH_NF = coming.wait()
        dW = gradients.sum(saved.W, dW_FH, split.rows, TensorName.DW, wire)
        return dH_NF, dW, None, None, None
