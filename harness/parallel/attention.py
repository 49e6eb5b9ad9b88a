"""Attention of a rank's vertices over all those whose rows it has; autograd writes the backward.

Legend: N this rank's vertices, V those that they may take of, Q heads, F features of a head, H those of all; T = H W.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from harness.kernels import Csr
from harness.kernels.attention import attend, turned
from harness.ledger import Op, TensorName
from harness.models.gat import by_head, merged, scores
from harness.parallel.layers import LayerOperators


class Edges(NamedTuple):
    """Who takes of whom."""

    A_NV: Csr
    A_VN: Csr
    """`turned`."""


def edges_of(A_NV: Csr, keep: Callable[[Csr], Csr]) -> Edges:
    """Where a matrix on the host has entries; `keep` brings it to where it is used."""
    return Edges(keep(A_NV), keep(turned(A_NV)))


def attention(ops: LayerOperators, layer: int, edges: Edges, T_VH: Tensor, a_2H: Tensor) -> Tensor:
    """Z of this rank's vertices, which are the first of V; the mean of the heads where it is the model's output."""
    run, model, own = ops.kernels.run, ops.model, edges.A_NV.rows
    mean = layer + 1 == model.layers and not model.projection
    T_QVF = run(Op.COPY, TensorName.T, lambda T_VH: by_head(T_VH, model.heads), T_VH)
    d_QN = run(Op.GEMM, TensorName.SCORES, lambda T, a: scores(T[:, :own], a[0]), T_QVF, a_2H)
    s_QV = run(Op.GEMM, TensorName.SCORES, lambda T, a: scores(T, a[1]), T_QVF, a_2H)
    Z_QNF = run(Op.SPMM, TensorName.Z, lambda *given: attend(*edges, *given), d_QN, s_QV, T_QVF)
    return run(Op.ELEMENTWISE, TensorName.Z, lambda Z_QNF: merged(Z_QNF, mean=mean), Z_QNF)
