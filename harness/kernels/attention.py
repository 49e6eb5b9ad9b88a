"""Sparse graph attention: each output row is the mean of the row's neighbours, weighted by a softmax of edge scores.

    l_ij = leaky(d_i + s_j),  a_ij = exp l_ij / sum_k exp l_ik,  Z_i = sum_j a_ij T_j           (GAT, equations 1 to 4)

for each head independently. The backward pass has one kernel along rows and one along columns (all or some):

    dl_ij = a_ij (G_i T_j - sum_k a_ik G_i T_k) leaky'(d_i + s_j),  dd_i = sum_j dl_ij
    dT_j = sum_i a_ij G_i,  ds_j = sum_i dl_ij

Legend: N rows of A, K columns, E entries in order, Q heads, F features of a head; G = dL/dZ.
Verifier (tests/kernels/test_attention.py): dense torch and its autograd.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor
from torch.nn.functional import leaky_relu

from harness.base.device import GPU_KERNELS, is_on_gpu
from harness.kernels.csr import Csr, row_indices, take, transpose
from harness.kernels.jit import compiled, run_over_rows
from harness.kernels.spmm import OPERATORS, inner_products, multiply

SLOPE = 0.2
"""The negative slope of the leaky ReLU."""
U = np.uint64
ONE = U(1)

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
ATTEND = torch.ops.harness.attend.default
ATTEND_ROWS_BACKWARD = torch.ops.harness.attend_rows_back.default
ATTEND_COLUMNS_BACKWARD = torch.ops.harness.attend_columns_back.default


def transpose_with_positions(A_NK: Csr) -> Csr:
    """Return A^T with the position of each entry in A as its value."""
    return transpose(A_NK._replace(val=torch.arange(A_NK.nnz, device=A_NK.val.device)))


def attend(A_NK: Csr, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor) -> Pair:
    """Return a (Q, E) and Z (Q, N, F). Not differentiable."""
    outputs: Pair = ATTEND(A_NK.rowptr, A_NK.col, d_QN, s_QK, T_QKF)
    return outputs


def attend_rows_backward(
    A_NK: Csr, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor, a_QE: Tensor, G_QNF: Tensor
) -> Pair:
    """Return dl (Q, E) and dd (Q, N)."""
    gradients: Pair = ATTEND_ROWS_BACKWARD(A_NK.rowptr, A_NK.col, d_QN, s_QK, T_QKF, a_QE, G_QNF)
    return gradients


def attend_columns_backward(A_KN: Csr, a_QE: Tensor, dl_QE: Tensor, G_QNF: Tensor) -> Pair:
    """Return dT (Q, K, F) and ds (Q, K). `A_KN` is the result of `transpose_with_positions`, or some of its rows."""
    gradients: Pair = ATTEND_COLUMNS_BACKWARD(A_KN.rowptr, A_KN.col, A_KN.val, a_QE, dl_QE, G_QNF)
    return gradients


# The operators compute one group of heads after another. Several small heads are a group, which takes as many calls as
# one head: it is one head of a larger block-diagonal matrix, with one copy of A per head.

GROUPED_ON_GPU, GROUPED_ON_CPU = 1 << 22, 1 << 18
"""The maximum number of entries, of rows and of columns of a group of several heads, which take memory. On a CPU, the
calls of larger heads take less time than copies of A."""


def _attend(rowptr: Tensor, col: Tensor, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor) -> Pair:
    A_NK = Csr(rowptr, col, col, T_QKF.shape[1])
    outputs = _attend_meta(rowptr, col, d_QN, s_QK, T_QKF)
    return _compute_groups(_attend_head, A_NK, len(col), outputs, d_QN, s_QK, T_QKF)


def _attend_rows_backward(
    rowptr: Tensor, col: Tensor, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor, a_QE: Tensor, G_QNF: Tensor
) -> Pair:
    A_NK = Csr(rowptr, col, col, T_QKF.shape[1])
    outputs = _attend_rows_backward_meta(rowptr, col, d_QN)
    operands = d_QN, s_QK, T_QKF, a_QE, G_QNF
    return _compute_groups(_attend_rows_backward_head, A_NK, len(col), outputs, *operands)


def _attend_columns_backward(
    colptr: Tensor, row: Tensor, entry: Tensor, a_QE: Tensor, dl_QE: Tensor, G_QNF: Tensor
) -> Pair:
    A_KN = Csr(colptr, row, entry, G_QNF.shape[1])
    outputs = _attend_columns_backward_meta(colptr, row, entry, a_QE, dl_QE, G_QNF)
    return _compute_groups(_attend_columns_backward_head, A_KN, a_QE.shape[1], outputs, a_QE, dl_QE, G_QNF)


def _compute_groups(
    compute: Callable[..., Pair], A: Csr, entries: int, outputs: Pair, *operands: Tensor
) -> Pair:
    """Fill the outputs with `compute(A, *operands)` of every head. Outputs and operands have one row for each head.

    `entries` is the number of entries of a head, which values of A number.
    """
    heads, largest = len(operands[0]), GROUPED_ON_GPU if is_on_gpu(A.col) else GROUPED_ON_CPU
    size = max(1, largest // max(A.rows, A.cols, entries, 1))
    for first in range(0, heads, size):
        group = slice(first, min(first + size, heads))
        blocks = _repeat_on_diagonal(A, group.stop - group.start, entries)
        values = compute(blocks, *(x[group].flatten(0, 1) for x in operands))
        for output, value in zip(outputs, values, strict=True):
            output[group] = value.view(output[group].shape)
    return outputs


def _repeat_on_diagonal(A: Csr, times: int, entries: int) -> Csr:
    """Return the matrix with A as each of its diagonal blocks. Values are numbers of a block's `entries`."""
    if times == 1:
        return A

    def repeat(x: Tensor, distance: int) -> Tensor:
        shifts = torch.arange(times, device=x.device, dtype=x.dtype) * distance
        return (x + shifts[:, None]).flatten()

    end = A.rowptr.new_full((1,), times * A.nnz)
    rowptr = torch.cat([repeat(A.rowptr[:-1], A.nnz), end])
    return Csr(rowptr, repeat(A.col, A.cols), repeat(A.val, entries), times * A.cols)


# One group. The values of A are ignored, except in `_attend_columns_backward_head`, where they are entry positions.


def _attend_head(A_NK: Csr, d_N: Tensor, s_K: Tensor, T_KF: Tensor) -> Pair:
    """Compute a, the row-wise softmax of the scores, and Z = a T."""
    a_E = (softmax_numba if _use_numba(d_N) else softmax_torch)(A_NK, d_N, s_K)
    return a_E, multiply(A_NK._replace(val=a_E), T_KF, None)


def _attend_rows_backward_head(
    A_NK: Csr, d_N: Tensor, s_K: Tensor, T_KF: Tensor, a_E: Tensor, G_NF: Tensor
) -> Pair:
    """Compute dl = a (da - sum of a da) leaky', where da = G T, and dd, the row sums of dl."""
    da_E = inner_products(A_NK, G_NF, T_KF)
    return (softmax_backward_numba if _use_numba(d_N) else softmax_backward_torch)(A_NK, d_N, s_K, a_E, da_E)


def _attend_columns_backward_head(A_KN: Csr, a_E: Tensor, dl_E: Tensor, G_NF: Tensor) -> Pair:
    """Compute dT = a^T G and ds, the column sums of dl."""
    reorder_entries = reorder_entries_numba if _use_numba(a_E) else reorder_entries_torch
    a_reordered_E, ds_K = reorder_entries(A_KN, a_E, dl_E)
    return multiply(A_KN._replace(val=a_reordered_E), G_NF, None), ds_K


# Scores and their softmax as torch operations: a dozen passes over the entries.


def softmax_torch(A_NK: Csr, d_N: Tensor, s_K: Tensor) -> Tensor:
    """Return the softmax of the scores, row by row."""
    row_E = row_indices(A_NK)
    l_E = leaky_relu(take(d_N, row_E) + take(s_K, A_NK.col), SLOPE)
    exp_E = (l_E - take(_segment_reduce(l_E, A_NK.rowptr, "max"), row_E)).exp()
    return exp_E / take(_segment_reduce(exp_E, A_NK.rowptr, "sum"), row_E)


def softmax_backward_torch(A_NK: Csr, d_N: Tensor, s_K: Tensor, a_E: Tensor, da_E: Tensor) -> Pair:
    """Return dl and dd."""
    row_E = row_indices(A_NK)
    mean_N = _segment_reduce(a_E * da_E, A_NK.rowptr, "sum")
    dl_E = a_E * (da_E - take(mean_N, row_E))
    dl_E = torch.where(take(d_N, row_E) + take(s_K, A_NK.col) > 0, dl_E, SLOPE * dl_E)
    return dl_E, _segment_reduce(dl_E, A_NK.rowptr, "sum")


def reorder_entries_torch(A_KN: Csr, a_E: Tensor, dl_E: Tensor) -> Pair:
    """Return a in the order of the transpose, and ds."""
    return take(a_E, A_KN.val), _segment_reduce(take(dl_E, A_KN.val), A_KN.rowptr, "sum")


def _segment_reduce(x_E: Tensor, rowptr: Tensor, how: str) -> Tensor:
    return torch.segment_reduce(x_E, how, offsets=rowptr, unsafe=True)


# The same as compiled loops for a CPU: two passes plus torch's vectorised exp forward, one pass backward. Each sum adds
# its terms in entry order, so results do not depend on the number of threads.


def _use_numba(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def softmax_numba(A_NK: Csr, d_N: Tensor, s_K: Tensor) -> Tensor:
    """Return the softmax of the scores, row by row."""
    a_E = d_N.new_empty(A_NK.nnz)
    rowptr, col, d, s, a = (x.numpy() for x in (A_NK.rowptr, A_NK.col, d_N, s_K, a_E))
    run_over_rows(score_rows, score_rows_parallel, A_NK.rowptr, rowptr, col, d, s, a)
    a_E.exp_()
    run_over_rows(normalise_rows, normalise_rows_parallel, A_NK.rowptr, rowptr, a)
    return a_E


def softmax_backward_numba(A_NK: Csr, d_N: Tensor, s_K: Tensor, a_E: Tensor, da_E: Tensor) -> Pair:
    """Return dl, stored in `da_E`, and dd."""
    dd_N, ends = torch.empty_like(d_N), (d_N.numpy(), s_K.numpy())
    rowptr, col, a, da, dd = (x.numpy() for x in (A_NK.rowptr, A_NK.col, a_E, da_E, dd_N))
    run_over_rows(
        softmax_backward_rows, softmax_backward_rows_parallel, A_NK.rowptr, rowptr, col, ends, a, da, dd
    )
    return da_E, dd_N


def reorder_entries_numba(A_KN: Csr, a_E: Tensor, dl_E: Tensor) -> Pair:
    """Return a in the order of the transpose, and ds."""
    reordered_E, ds_K = a_E.new_empty(A_KN.nnz), a_E.new_empty(A_KN.rows)
    arrays = (x.numpy() for x in (A_KN.rowptr, A_KN.val, a_E, dl_E, reordered_E, ds_K))
    run_over_rows(reorder_rows, reorder_rows_parallel, A_KN.rowptr, *arrays)
    return reordered_E, ds_K


@compiled(nogil=True)
def score_rows(rowptr: Any, col: Any, d: Any, s: Any, out: Any, rows: Any) -> None:
    """Write the score of every entry minus the maximum of its row."""
    for i in range(U(rows[0]), U(rows[1])):
        first, end, largest = U(rowptr[i]), U(rowptr[i + ONE]), d.dtype.type(-np.inf)
        for e in range(first, end):
            score = d[i] + s[U(col[e])]
            out[e] = score if score > 0 else d.dtype.type(SLOPE) * score
            largest = max(largest, out[e])
        for e in range(first, end):
            out[e] -= largest


@compiled(nogil=True)
def normalise_rows(rowptr: Any, a: Any, rows: Any) -> None:
    """Divide every entry by the sum of its row."""
    for i in range(U(rows[0]), U(rows[1])):
        first, end, total = U(rowptr[i]), U(rowptr[i + ONE]), a.dtype.type(0)
        for e in range(first, end):
            total += a[e]
        for e in range(first, end):
            a[e] /= total


@compiled(nogil=True)
def softmax_backward_rows(rowptr: Any, col: Any, ends: Any, a: Any, da: Any, dd: Any, rows: Any) -> None:
    """Overwrite da with dl, and write dd; `ends` is (d, s)."""
    d, s = ends
    for i in range(U(rows[0]), U(rows[1])):
        first, end, mean = U(rowptr[i]), U(rowptr[i + ONE]), d.dtype.type(0)
        for e in range(first, end):
            mean += a[e] * da[e]
        total = d.dtype.type(0)
        for e in range(first, end):
            slope = d.dtype.type(1) if d[i] + s[U(col[e])] > 0 else d.dtype.type(SLOPE)
            da[e] = slope * (a[e] * (da[e] - mean))
            total += da[e]
        dd[i] = total


@compiled(nogil=True)
def reorder_rows(rowptr: Any, entry: Any, a: Any, dl: Any, reordered: Any, ds: Any, rows: Any) -> None:
    """Write a in the order given by `entry`, and the row sums of dl in that order."""
    for i in range(U(rows[0]), U(rows[1])):
        total = a.dtype.type(0)
        for e in range(U(rowptr[i]), U(rowptr[i + ONE])):
            reordered[e] = a[U(entry[e])]
            total += dl[U(entry[e])]
        ds[i] = total


@compiled(parallel=True)
def score_rows_parallel(rowptr: Any, col: Any, d: Any, s: Any, out: Any, bounds: Any) -> None:
    """`score_rows` with the rows divided among threads."""
    for share in prange(bounds.size - 1):
        score_rows(rowptr, col, d, s, out, (bounds[share], bounds[share + 1]))


@compiled(parallel=True)
def normalise_rows_parallel(rowptr: Any, a: Any, bounds: Any) -> None:
    """`normalise_rows` with the rows divided among threads."""
    for share in prange(bounds.size - 1):
        normalise_rows(rowptr, a, (bounds[share], bounds[share + 1]))


@compiled(parallel=True)
def softmax_backward_rows_parallel(
    rowptr: Any, col: Any, ends: Any, a: Any, da: Any, dd: Any, bounds: Any
) -> None:
    """`softmax_backward_rows` with the rows divided among threads."""
    for share in prange(bounds.size - 1):
        softmax_backward_rows(rowptr, col, ends, a, da, dd, (bounds[share], bounds[share + 1]))


@compiled(parallel=True)
def reorder_rows_parallel(
    rowptr: Any, entry: Any, a: Any, dl: Any, reordered: Any, ds: Any, bounds: Any
) -> None:
    """`reorder_rows` with the rows divided among threads."""
    for share in prange(bounds.size - 1):
        reorder_rows(rowptr, entry, a, dl, reordered, ds, (bounds[share], bounds[share + 1]))


# Meta kernels: the shapes of the operators' results.


def _attend_meta(_rowptr: Tensor, col: Tensor, d_QN: Tensor, _s_QK: Tensor, T_QKF: Tensor) -> Pair:
    return d_QN.new_empty((len(d_QN), len(col))), T_QKF.new_empty((*d_QN.shape, T_QKF.shape[2]))


def _attend_rows_backward_meta(_rowptr: Tensor, col: Tensor, d_QN: Tensor, *_rest: Tensor) -> Pair:
    return d_QN.new_empty((len(d_QN), len(col))), d_QN.new_empty(d_QN.shape)


def _attend_columns_backward_meta(
    colptr: Tensor, _row: Tensor, _entry: Tensor, a_QE: Tensor, _dl_QE: Tensor, G_QNF: Tensor
) -> Pair:
    heads, _, features = G_QNF.shape
    cols = len(colptr) - 1
    return G_QNF.new_empty((heads, cols, features)), a_QE.new_empty((heads, cols))


for _name, _compute, _shape in (
    ("attend", _attend, _attend_meta),
    ("attend_rows_back", _attend_rows_backward, _attend_rows_backward_meta),
    ("attend_columns_back", _attend_columns_backward, _attend_columns_backward_meta),
):
    OPERATORS.impl(_name, _shape, "Meta")
    OPERATORS.impl(_name, _compute, "CPU")
    OPERATORS.impl(_name, _compute, GPU_KERNELS)
