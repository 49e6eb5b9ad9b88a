"""The operator `aggregate`: values and gradients equal dense torch; shapes, flops and refusals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

import harness.kernels.flops  # noqa: F401  registers the counts of operators
from harness.kernels.csr import Csr, from_coo, transpose
from harness.kernels.spmm import CACHED_PRODUCTS, aggregate, cache_for_products, multiply_library, spmm
from tests.dense import to_dense

DIRECTED = from_coo(
    torch.tensor([0, 0, 2, 3, 3]),
    torch.tensor([1, 4, 2, 0, 1]),
    torch.tensor([1.0, -2.0, 3.0, 0.5, 4.0], dtype=torch.float64),
    (4, 5),
)
"""Rectangular and with an empty row, so that using A instead of A^T would be detected."""


@given(st.from_type(Csr), st.integers(0, 4))
def test_products_equal_dense(A, features):
    H = torch.arange(A.cols * features, dtype=torch.float64).reshape(A.cols, features) - 7
    Z = torch.ones(A.rows, features, dtype=torch.float64)
    assert torch.equal(spmm(A, H), to_dense(A) @ H)
    assert spmm(A, H, add_to=Z) is Z
    assert torch.equal(Z, to_dense(A) @ H + 1)


@given(st.from_type(Csr), st.integers(0, 4))
def test_gradient_equals_dense(A, features):
    H = torch.ones(A.cols, features, dtype=torch.float64, requires_grad=True)
    dZ = torch.arange(A.rows * features, dtype=torch.float64).reshape(A.rows, features) - 7
    aggregate(A, transpose(A), H).backward(dZ)
    assert torch.equal(H.grad, to_dense(A).T @ dZ)


def test_gradient_passes_gradcheck():
    H = torch.randn(5, 3, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    assert gradcheck(lambda H: aggregate(DIRECTED, transpose(DIRECTED), H), (H,))


def test_backward_accepts_expanded_gradients():
    H = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    aggregate(DIRECTED, transpose(DIRECTED), H).sum().backward()
    assert torch.equal(H.grad, to_dense(DIRECTED).T @ torch.ones(4, 3, dtype=torch.float64))


def test_transpose_is_not_needed_without_input_gradient():
    no_transpose = None
    H = torch.ones(5, 3, dtype=torch.float64)
    Z = aggregate(DIRECTED, no_transpose, H)
    assert not Z.requires_grad
    weight = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    (Z @ weight).sum().backward()
    assert weight.grad is not None


def test_spmm_refuses_operands_that_require_gradients():
    H = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(AssertionError, match="use aggregate"):
        spmm(DIRECTED, H)
    with torch.no_grad():
        spmm(DIRECTED, H)


@pytest.mark.parametrize(
    ("H", "into"),
    [
        (torch.ones(4, 3, dtype=torch.float64), None),
        (torch.ones(5, 3, dtype=torch.float32), None),
        (torch.ones(5, 3, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64)),
        (torch.ones(5, 3, dtype=torch.float64), torch.ones(4, 3)),
    ],
    ids=["rows of H", "type of H", "shape of the sum", "type of the sum"],
)
def test_mismatched_operands_are_refused(H, into):
    with pytest.raises(AssertionError):
        spmm(DIRECTED, H, add_to=into)


@pytest.mark.parametrize("features", [0, 1, 3])
def test_operator_agrees_with_its_schema_and_shape_function(features):
    """Checks the schema, and the shape function against the values."""
    H = torch.ones(5, features, dtype=torch.float64)
    tests = ("test_schema", "test_faketensor")
    opcheck(torch.ops.harness.spmm.default, (*DIRECTED, H), test_utils=tests)
    Z = torch.ones(4, features, dtype=torch.float64)
    opcheck(torch.ops.harness.spmm_add_.default, (Z, *DIRECTED, H), test_utils=tests)


def test_forward_and_backward_run_on_meta_tensors():
    with FakeTensorMode():
        A = Csr(
            torch.empty(10**6 + 1, dtype=torch.int64), torch.empty(10**9).int(), torch.empty(10**9), 10**5
        )
        A_T = Csr(
            torch.empty(10**5 + 1, dtype=torch.int64), torch.empty(10**9).int(), torch.empty(10**9), 10**6
        )
        H = torch.empty(10**5, 64, requires_grad=True)
        Z = aggregate(A, A_T, H)
        Z.sum().backward()
        assert Z.shape == (10**6, 64)
        assert H.grad.shape == H.shape


def test_flops_are_counted_forward_backward_and_with_add_to():
    H = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        aggregate(DIRECTED, transpose(DIRECTED), H).sum().backward()
    assert counted.get_total_flops() == 2 * (2 * DIRECTED.nnz * 3)
    with FlopCounterMode(display=False) as counted:
        spmm(DIRECTED, H.detach(), add_to=torch.ones(4, 3, dtype=torch.float64))
    assert counted.get_total_flops() == 2 * DIRECTED.nnz * 3


def test_cached_matrix_with_pointers_of_the_right_dtype_is_freed_too() -> None:
    """The library's tensor would keep the row pointers, by which the matrix is cached."""
    entries = len(CACHED_PRODUCTS)
    index = torch.tensor([0, 1, 2], dtype=torch.int32)
    A = cache_for_products(Csr(index, index[:2].clone(), torch.ones(2), 2))
    assert multiply_library(A, torch.ones(2, 3), None).shape == (2, 3)
    assert len(CACHED_PRODUCTS) == entries + 1
    del A, index
    assert len(CACHED_PRODUCTS) == entries


def test_cached_library_tensor_is_built_once_and_freed_with_the_matrix() -> None:
    """It follows in-place changes of values; matrices with other values on the same columns share the row pointers."""
    entries, H = len(CACHED_PRODUCTS), torch.ones(5, 2, dtype=torch.float64)
    A = cache_for_products(Csr(*(part.clone() for part in DIRECTED[:3]), DIRECTED.cols))
    whole = multiply_library(A, H, None)
    kept, tensor = CACHED_PRODUCTS[A.rowptr], CACHED_PRODUCTS[A.rowptr].tensor
    assert multiply_library(A, H, None).equal(whole)
    A.val.mul_(2)
    assert multiply_library(A, H, None).equal(2 * whole)
    assert multiply_library(A._replace(val=A.val * 3), H, None).equal(6 * whole)
    fewer = A._replace(rowptr=torch.tensor([0, 0, 2, 3, 5]))
    assert multiply_library(fewer, H, None).equal(to_dense(fewer) @ H)
    turned = A._replace(col=4 - A.col)
    assert multiply_library(turned, H, None).equal(to_dense(turned) @ H)
    assert CACHED_PRODUCTS[A.rowptr] is kept
    assert kept.tensor is tensor
    assert len(CACHED_PRODUCTS) == entries + 1
    del A, turned
    assert len(CACHED_PRODUCTS) == entries
