"""Sparse attention: values and gradients equal dense torch, and shapes and flops are right."""

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

import harness.kernels.flops  # noqa: F401  registers the counts of operators
from harness.kernels.attention import (
    ATTEND,
    ATTEND_COLUMNS_BACKWARD,
    ATTEND_ROWS_BACKWARD,
    attend,
    attend_columns_backward,
    attend_rows_backward,
    reorder_entries_numba,
    reorder_entries_torch,
    softmax_backward_numba,
    softmax_backward_torch,
    softmax_numba,
    softmax_torch,
    transpose_with_positions,
)
from harness.kernels.csr import Csr, from_coo, row_indices
from harness.kernels.parts import extract_block
from harness.kernels.random import Purpose, integers, uniform_rectangle

HEADS = 3


def matrix(rows: int, cols: int, entries: int) -> Csr:
    """Return a matrix with distinct random entries, whose values attention does not use."""
    places = integers(1, Purpose.TEST, range(entries), high=max(rows * cols, 1)).unique()
    val = torch.full(places.shape, float("nan"), dtype=torch.float64)
    return from_coo(places // max(cols, 1), places % max(cols, 1), val, (rows, cols))


def operands(A: Csr, width: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return d (Q, N), s (Q, K) and T (Q, K, F), so large that unshifted exponentials would overflow."""
    d_QN, s_QK, T_QK_F = (
        1000 * (uniform_rectangle(seed, Purpose.TEST, range(rows), range(cols), cols) - 0.5)
        for seed, (rows, cols) in enumerate([(HEADS, A.rows), (HEADS, A.cols), (HEADS * A.cols, width)])
    )
    return d_QN, s_QK, T_QK_F.view(HEADS, A.cols, width)


def densely(A: Csr, d_QN: Tensor, s_QK: Tensor, T_QKF: Tensor) -> Tensor:
    """Compute attention with torch's softmax over dense rows; a row without entries is zero."""
    here = torch.zeros(A.shape, dtype=torch.bool)
    here[row_indices(A), A.col.long()] = True
    l_QNK = torch.nn.functional.leaky_relu(d_QN[:, :, None] + s_QK[:, None, :], 0.2)
    a_QNK = torch.softmax(l_QNK.masked_fill(~here, float("-inf")), dim=2).nan_to_num(0)
    return a_QNK @ T_QKF


@pytest.mark.parametrize(
    "shape", [(7, 5, 20), (5, 7, 4), (1, 1, 1), (40, 30, 600), (3, 4, 0), (0, 4, 0), (3, 0, 0)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_and_gradients_equal_dense_attention(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    A = matrix(*shape)
    mine = [each.to(dtype) for each in operands(A)]
    theirs = [each.detach().double().requires_grad_() for each in mine]
    dense_QNF = densely(A, *theirs)
    G_NFQ = uniform_rectangle(9, Purpose.TEST, range(A.rows), range(12), 12).view(-1, 4, 3) - 0.5
    G_QNF = G_NFQ.permute(2, 0, 1)
    filled = A.rowptr.diff() > 0
    dense_QNF[:, filled].backward(G_QNF[:, filled])
    a_QE, Z_QNF = attend(A, *mine)
    dl_QE, dd_QN = attend_rows_backward(A, *mine, a_QE, G_QNF.to(dtype))
    dT_QKF, ds_QK = attend_columns_backward(transpose_with_positions(A), a_QE, dl_QE, G_QNF.to(dtype))
    tolerance = 1e-12 if dtype is torch.float64 else 2e-4
    pairs = [(Z_QNF, dense_QNF), *zip((dd_QN, ds_QK, dT_QKF), (each.grad for each in theirs), strict=True)]
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=1000 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_compiled_loops_equal_tensor_operations_on_any_number_of_threads(dtype: torch.dtype) -> None:
    A = matrix(40, 30, 600)
    d_QN, s_QK, _ = (each.to(dtype) for each in operands(A))
    a_E = softmax_torch(A, d_QN[0], s_QK[0])
    da_E = a_E.flip(0) - 0.1
    dl_E, dd_N = softmax_backward_torch(A, d_QN[0], s_QK[0], a_E, da_E)
    expected = [a_E, dl_E, dd_N, *reorder_entries_torch(transpose_with_positions(A), a_E, dl_E)]
    assert torch.get_num_threads() == 1
    outputs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        a = softmax_numba(A, d_QN[0], s_QK[0])
        dl, dd = softmax_backward_numba(A, d_QN[0], s_QK[0], a, da_E.clone())
        outputs.append([a, dl, dd, *reorder_entries_numba(transpose_with_positions(A), a, dl)])
    torch.set_num_threads(1)
    torch.testing.assert_close(outputs[0], expected, rtol=1e-5, atol=1e-6)
    assert all(map(torch.equal, *outputs)), "the bits depend on the number of threads"


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_bits_do_not_depend_on_the_heads_of_a_group(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    A = matrix(40, 30, 600)
    A_T, given = transpose_with_positions(A), [each.float() for each in operands(A)]

    def compute() -> list[Tensor]:
        a_QE, Z_QNF = attend(A, *given)
        dl_QE, dd_QN = attend_rows_backward(A, *given, a_QE, Z_QNF)
        return [a_QE, Z_QNF, dl_QE, dd_QN, *attend_columns_backward(A_T, a_QE, dl_QE, Z_QNF)]

    together = compute()
    monkeypatch.setattr("harness.kernels.attention.GROUPED_ON_CPU", heads * A.nnz)
    assert all(map(torch.equal, compute(), together))


def test_operators_agree_with_their_schema_and_shape_functions() -> None:
    """The shape functions agree with the values, and inputs are neither changed nor aliased."""
    A = matrix(7, 5, 20)
    A_T, given = transpose_with_positions(A), operands(A)
    a_QE, Z_QNF = attend(A, *given)
    for operator, arguments in (
        (ATTEND, (A.rowptr, A.col, *given)),
        (ATTEND_ROWS_BACKWARD, (A.rowptr, A.col, *given, a_QE, Z_QNF)),
        (ATTEND_COLUMNS_BACKWARD, (A_T.rowptr, A_T.col, A_T.val, a_QE, a_QE, Z_QNF)),
    ):
        opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_flops_equal_the_formula() -> None:
    """A multiply and an add per entry and feature, for Z, for the gradients of entries and for the gradient of T."""
    A = matrix(7, 5, 20)
    given = operands(A)
    with FlopCounterMode(display=False) as counter:
        a_QE, Z_QNF = attend(A, *given)
        dl_QE, _ = attend_rows_backward(A, *given, a_QE, Z_QNF)
        attend_columns_backward(transpose_with_positions(A), a_QE, dl_QE, Z_QNF)
    assert counter.get_total_flops() == 3 * 2 * A.nnz * 12


def test_gradients_of_some_columns_equal_the_columns_of_the_full_gradient() -> None:
    A = matrix(40, 30, 600)
    given = operands(A)
    a_QE, Z_QNF = attend(A, *given)
    A_T, cols = transpose_with_positions(A), range(11, 23)
    whole = attend_columns_backward(A_T, a_QE, -a_QE, Z_QNF)
    some = attend_columns_backward(extract_block(A_T, cols, range(A_T.cols)), a_QE, -a_QE, Z_QNF)
    assert torch.equal(some[0], whole[0][:, cols.start : cols.stop])
    assert torch.equal(some[1], whole[1][:, cols.start : cols.stop])
