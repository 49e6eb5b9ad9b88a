"""Attention of a rank's vertices over all those whose rows it has; autograd writes the backward.

Legend: N this rank's vertices, V those that they may take of, Q heads, F features in, H features of all heads; T = H W.
"""

from typing import NamedTuple

from torch import Tensor

from harness.kernels import Csr
from harness.kernels.attention import attend, turned
from harness.ledger import Op, TensorName
from harness.models.gat import merged, scores
from harness.parallel.layers import LayerOperators
from harness.spec.spec import ModelChoice
from harness.strategy import Context


class Edges(NamedTuple):
    """Who takes of whom."""

    A_NV: Csr
    A_VN: Csr
    """`turned`."""


def hold_edges(ctx: Context, A_NV: Csr) -> Edges:
    """Where a matrix has entries."""
    return Edges(ctx.hold_matrix(A_NV), ctx.hold_matrix(turned(A_NV)))


def gives_classes(model: ModelChoice, layer: int) -> bool:
    """Whether a layer is the model's last word: then it gives the mean of its heads."""
    return layer + 1 == model.layers and not model.projection


def attention(
    ops: LayerOperators, layer: int, edges: Edges, T_NH: Tensor, T_VH: Tensor, a_2H: Tensor
) -> Tensor:
    """Z of this rank's vertices."""
    kernels, heads = ops.kernels, ops.model.heads
    d_QN, s_QV = (
        kernels.run(Op.GEMM, TensorName.SCORES, lambda T_XH, a_H: scores(T_XH, a_H, heads), *each)
        for each in zip((T_NH, T_VH), a_2H, strict=True)
    )
    Z_NH = kernels.run(Op.SPMM, TensorName.Z, lambda *given: attend(*edges, *given), d_QN, s_QV, T_VH)
    mean = gives_classes(ops.model, layer)
    return (
        kernels.elementwise(lambda Z: merged(Z, heads, mean=mean), Z_NH, makes=TensorName.Z) if mean else Z_NH
    )
