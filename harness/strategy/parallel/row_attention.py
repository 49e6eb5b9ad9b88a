"""Differentiable attention of a rank's vertices over all rows that the rank holds.

Legend: N this rank's vertices, V the vertices that N may attend to, Q heads, F features of a head, H features of all
heads; T = H W.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.kernels import Csr
from harness.kernels.attention import (
    attend,
    attend_columns_backward,
    attend_rows_backward,
    transpose_with_positions,
)
from harness.ledger import Ledger, Op, TensorName, apply
from harness.strategy.models.gat import compute_scores, compute_scores_backward, merge_heads, split_heads
from harness.strategy.parallel.row_strategy import LayerOperators


class Edges(NamedTuple):
    """The edges of attention: row v of A_NV lists the vertices to which v attends."""

    A_NV: Csr
    A_VN: Csr
    """`transpose_with_positions(A_NV)`."""


def build_edges(A_NV: Csr, keep: Callable[[Csr], Csr]) -> Edges:
    """Build the edges of a matrix on the host. `keep` copies each matrix to the device of the run."""
    return Edges(keep(A_NV), keep(transpose_with_positions(A_NV)))


def attend_rows(ops: LayerOperators, layer: int, edges: Edges, T_VH: Tensor, a_2H: Tensor) -> Tensor:
    """Return Z of this rank's vertices, which are the first of V. The output layer averages the heads."""

    def attend_all(T_QVF: Tensor) -> Tensor:
        Z_QNF: Tensor = apply(ops.ledger, Attend, T_QVF, a_2H, edges, ops.ledger)
        return Z_QNF

    return apply_per_head(ops, layer, attend_all, T_VH)


def apply_per_head(
    ops: LayerOperators, layer: int, attend: Callable[[Tensor], Tensor], T_VH: Tensor
) -> Tensor:
    """Return Z of this rank's vertices, given a function from T to Z on separate heads."""
    run, model = ops.kernels.run, ops.model
    mean = layer + 1 == model.layers and not model.projection
    T_QVF = run(Op.COPY, TensorName.T, lambda T_VH: split_heads(T_VH, model.heads), T_VH)
    return run(Op.ELEMENTWISE, TensorName.Z, lambda Z_QNF: merge_heads(Z_QNF, mean=mean), attend(T_QVF))


class Attend(Function):
    """Computes edge scores and Z; the backward pass returns dT and da for both endpoints."""

    @staticmethod
    def forward(saved: Any, T_QVF: Tensor, a_2H: Tensor, edges: Edges, ledger: Ledger) -> Tensor:
        saved.edges, saved.ledger = edges, ledger
        with ledger.op(Op.GEMM, tensor=TensorName.SCORES):
            d_QN, s_QV = compute_scores(T_QVF[:, : edges.A_NV.rows], a_2H[0]), compute_scores(T_QVF, a_2H[1])
        with ledger.op(Op.SPMM, tensor=TensorName.Z):
            a_QE, Z_QNF = attend(edges.A_NV, d_QN, s_QV, T_QVF)
        saved.save_for_backward(T_QVF, a_2H, d_QN, s_QV, a_QE)
        return Z_QNF

    @staticmethod
    def backward(saved: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (G_QNF,), (A_NV, A_VN), ledger = gradients, saved.edges, saved.ledger
        T_QVF, a_2H, d_QN, s_QV, a_QE = saved.saved_tensors
        with ledger.op(Op.SPMM, tensor=TensorName.SCORES):
            dl_QE, dd_QN = attend_rows_backward(A_NV, d_QN, s_QV, T_QVF, a_QE, G_QNF)
        with ledger.op(Op.SPMM, tensor=TensorName.DT):
            dT_QVF, ds_QV = attend_columns_backward(A_VN, a_QE, dl_QE, G_QNF)
        da = []
        with ledger.op(Op.GEMM, tensor=TensorName.SCORES):
            for end, dscores_QX in enumerate((dd_QN, ds_QV)):
                rows = slice(dscores_QX.shape[1])
                dT_QXF, da_H = compute_scores_backward(dscores_QX, T_QVF[:, rows], a_2H[end])
                dT_QVF[:, rows] += dT_QXF
                da.append(da_H)
        return dT_QVF, torch.stack(da), None, None
