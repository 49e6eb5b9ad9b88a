"""Attention along the entries of a sparse matrix: each row is a mean over the row's columns, weighed by scores.

    l_ij = leaky(d_i + s_j),  a_ij = exp l_ij / sum_k exp l_ik,  Z_i = sum_j a_ij T_j           (GAT, equations 1 to 4)

for every head by itself. The gradient is computed along rows and then along columns, all columns or some:

    dl_ij = a_ij (G_i T_j - sum_k a_ik G_i T_k) leaky'(d_i + s_j),  dd_i = sum_j dl_ij
    dT_j = sum_i a_ij G_i,  ds_j = sum_i dl_ij

Legend: N rows of A, K columns, E entries in order, Q heads, F features of a head; G = dL/dZ.
Verifier (tests/kernels/test_attention.py): dense torch and its autograd.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch.utils.flop_counter import register_flop_formula

from harness.kernels.csr import Csr, row_of, take, transpose
from harness.kernels.spmm import OPERATORS, inner_products, multiply

SLOPE = 0.2
"""The slope of the leaky ReLU below zero."""

Pair = tuple[Tensor, Tensor]

OPERATORS.define("attend(Tensor rowptr, Tensor col, Tensor d, Tensor s, Tensor T) -> (Tensor, Tensor)")
OPERATORS.define(
    "attend_rows_back(Tensor rowptr, Tensor col, Tensor d, Tensor s, Tensor T, Tensor a, Tensor G)"
    " -> (Tensor, Tensor)"
)
OPERATORS.define(
    "attend_columns_back(Tensor colptr, Tensor row, Tensor entry, Tensor a, Tensor dl, Tensor G)"
    " -> (Tensor, Tensor)"
)
WEIGH = torch.ops.harness.attend.default
ROWS_BACK = torch.ops.harness.attend_rows_back.default
COLUMNS_BACK = torch.ops.harness.attend_columns_back.default


def turned(A_NK: Csr) -> Csr:
    """A^T, whose values are the positions of its entries in A."""
    return transpose(A_NK._replace(val=torch.arange(A_NK.nnz, device=A_NK.val.device)))


def weigh(A_NK: Csr, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor) -> Pair:
    """a (Q, E) and Z (Q, N, F); not differentiable."""
    outputs: Pair = WEIGH(A_NK.rowptr, A_NK.col, d_QN, s_QK, T_QKF)
    return outputs


def rows_back(A_NK: Csr, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor, a_QE: Tensor, G_QNF: Tensor) -> Pair:
    """dl (Q, E) and dd (Q, N)."""
    gradients: Pair = ROWS_BACK(A_NK.rowptr, A_NK.col, d_QN, s_QK, T_QKF, a_QE, G_QNF)
    return gradients


def columns_back(A_KN: Csr, a_QE: Tensor, dl_QE: Tensor, G_QNF: Tensor) -> Pair:
    """dT (Q, K, F) and ds (Q, K) of the columns that are rows of A_KN, a `turned` matrix."""
    gradients: Pair = COLUMNS_BACK(A_KN.rowptr, A_KN.col, A_KN.val, a_QE, dl_QE, G_QNF)
    return gradients


# The operators compute one head after the other.


def _weigh(rowptr: Tensor, col: Tensor, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor) -> Pair:
    A_NK = Csr(rowptr, col, col, T_QKF.shape[1])
    outputs = _weighed(rowptr, col, d_QN, s_QK, T_QKF)
    return _filled(outputs, (_weigh_head(A_NK, *each) for each in zip(d_QN, s_QK, T_QKF, strict=True)))


def _rows_back(
    rowptr: Tensor, col: Tensor, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor, a_QE: Tensor, G_QNF: Tensor
) -> Pair:
    A_NK = Csr(rowptr, col, col, T_QKF.shape[1])
    heads = zip(d_QN, s_QK, T_QKF, a_QE, G_QNF, strict=True)
    return _filled(_row_gradients(rowptr, col, d_QN), (_rows_back_head(A_NK, *each) for each in heads))


def _columns_back(
    colptr: Tensor, row: Tensor, entry: Tensor, a_QE: Tensor, dl_QE: Tensor, G_QNF: Tensor
) -> Pair:
    A_KN = Csr(colptr, row, entry, G_QNF.shape[1])
    outputs = _column_gradients(colptr, row, entry, a_QE, dl_QE, G_QNF)
    return _filled(
        outputs, (_columns_back_head(A_KN, *each) for each in zip(a_QE, dl_QE, G_QNF, strict=True))
    )


def _filled(outputs: Pair, heads: Iterator[Pair]) -> Pair:
    for number, values in enumerate(heads):
        for output, value in zip(outputs, values, strict=True):
            output[number] = value
    return outputs


# One head. Values of A do not count, except in `_columns_back_head`: there they are the positions of its entries.


def _weigh_head(A_NK: Csr, d_N: Tensor, s_K: Tensor, T_KF: Tensor) -> Pair:
    """a = softmax of the scores, row by row; Z = a T."""
    row_E = row_of(A_NK)
    l_E = leaky_relu(take(d_N, row_E) + take(s_K, A_NK.col), SLOPE)
    exp_E = (l_E - take(_reduced(l_E, A_NK.rowptr, "max"), row_E)).exp()
    a_E = exp_E / take(_reduced(exp_E, A_NK.rowptr, "sum"), row_E)
    return a_E, multiply(A_NK._replace(val=a_E), T_KF, None)


def _rows_back_head(A_NK: Csr, d_N: Tensor, s_K: Tensor, T_KF: Tensor, a_E: Tensor, G_NF: Tensor) -> Pair:
    """dl = a (da - sum of a da) leaky', where da = G T; and dd, the sums of dl."""
    row_E = row_of(A_NK)
    da_E = inner_products(A_NK, G_NF, T_KF)
    mean_N = _reduced(a_E * da_E, A_NK.rowptr, "sum")
    dl_E = a_E * (da_E - take(mean_N, row_E))
    dl_E = torch.where(take(d_N, row_E) + take(s_K, A_NK.col) > 0, dl_E, SLOPE * dl_E)
    return dl_E, _reduced(dl_E, A_NK.rowptr, "sum")


def _columns_back_head(A_KN: Csr, a_E: Tensor, dl_E: Tensor, G_NF: Tensor) -> Pair:
    """dT = a^T G, and ds, the sums of dl."""
    dT_KF = multiply(A_KN._replace(val=take(a_E, A_KN.val)), G_NF, None)
    return dT_KF, _reduced(take(dl_E, A_KN.val), A_KN.rowptr, "sum")


def _reduced(x_E: Tensor, rowptr: Tensor, how: str) -> Tensor:
    return torch.segment_reduce(x_E, how, offsets=rowptr, unsafe=True)


# The shapes of the operators' results.


def _weighed(_rowptr: Tensor, col: Tensor, d_QN: Tensor, _s_QK: Tensor, T_QKF: Tensor) -> Pair:
    return d_QN.new_empty((len(d_QN), len(col))), T_QKF.new_empty((*d_QN.shape, T_QKF.shape[2]))


def _row_gradients(_rowptr: Tensor, col: Tensor, d_QN: Tensor, *_rest: Tensor) -> Pair:
    return d_QN.new_empty((len(d_QN), len(col))), d_QN.new_empty(d_QN.shape)


def _column_gradients(
    colptr: Tensor, _row: Tensor, _entry: Tensor, a_QE: Tensor, _dl_QE: Tensor, G_QNF: Tensor
) -> Pair:
    heads, _, features = G_QNF.shape
    cols = len(colptr) - 1
    return G_QNF.new_empty((heads, cols, features)), a_QE.new_empty((heads, cols))


for _name, _compute, _shape in (
    ("attend", _weigh, _weighed),
    ("attend_rows_back", _rows_back, _row_gradients),
    ("attend_columns_back", _columns_back, _column_gradients),
):
    OPERATORS.impl(_name, _shape, "Meta")
    OPERATORS.impl(_name, _compute, "CPU")
    OPERATORS.impl(_name, _compute, "CUDA")


@register_flop_formula([each.overloadpacket for each in (WEIGH, ROWS_BACK, COLUMNS_BACK)], get_raw=True)
def attention_flops(*operands: Any, **_options: Any) -> int:
    """A multiplication and an addition for each entry and feature of each head, in all three."""
    _pointers, index, *_rest, x_QXF = operands
    return 2 * int(index.numel()) * int(x_QXF.shape[0] * x_QXF.shape[2])
