"""Every way to multiply gives scipy's values, whether or not it would be chosen."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.csr import Csr, cast, from_coo, to_scipy
from harness.kernels.random import Purpose, integers, uniform
from harness.kernels.spmm import (
    WORTH_COMPILING,
    by_loop,
    by_matmul,
    by_reduction,
    choose,
    first_row,
    multiply,
    multiply_rows,
)

WAYS = [
    pytest.param(way, dtype, id=f"{way.__name__}-{str(dtype)[6:]}")
    for way, dtypes in (
        (by_loop, (torch.float32, torch.float64)),
        (by_matmul, (torch.float32, torch.float64)),
        (by_reduction, (torch.float32, torch.float64, torch.bfloat16)),
    )
    for dtype in dtypes
]


def whole_numbers(rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(rows * cols).reshape(rows, cols) * 7 % 11 - 5).to(dtype)


def power_law(n: int, nnz: int) -> Csr:
    """Some rows are long, most are empty."""
    draw = (uniform(0, Purpose.EDGES, range(nnz)) ** 4 * n).long()
    return from_coo(draw, integers(1, Purpose.EDGES, range(nnz), n), torch.ones(nnz), (n, n))


@pytest.mark.parametrize(("way", "dtype"), WAYS)
@given(A=st.from_type(Csr), features=st.integers(1, 40), add=st.booleans(), wide=st.booleans())
def test_every_way(way, dtype, A, features, add, wide):
    if A.nnz == 0:  # is nobody's work: `multiply` answers itself
        return
    A = cast(A, dtype)._replace(col=A.col.long() if wide else A.col)
    H, Z = whole_numbers(A.cols, features, dtype), whole_numbers(A.rows, features, dtype)
    expected = to_scipy(A) @ H.float().numpy() + (Z.float().numpy() if add else 0)
    result = way(A, H, Z if add else None)
    assert result.dtype == dtype
    assert np.array_equal(result.float().numpy(), expected)
    assert result is Z or not add


@given(st.from_type(Csr), st.integers(0, 3), st.booleans())
def test_asking_ahead_changes_nothing(A, features, add):
    H, Z = whole_numbers(A.cols, features, torch.float64), whole_numbers(A.rows, features, torch.float64)
    expected = to_scipy(A) @ H.numpy() + (Z.numpy() if add else 0)
    arrays = (A.rowptr.numpy(), A.col.numpy(), A.val.numpy())
    multiply_rows(arrays, H.numpy(), Z.numpy(), add, True, 0, A.rows)
    assert np.array_equal(Z.numpy(), expected)


@pytest.mark.parametrize("way", [by_loop, by_matmul, by_reduction])
def test_more_threads_than_one_give_the_same_bits(way, two_threads):
    A = power_law(997, 9_000)
    A = A._replace(val=uniform(0, Purpose.TEST, range(A.nnz)))
    H = uniform(1, Purpose.TEST, range(997 * 33)).reshape(997, 33)
    by_two = way(A, H, None)
    torch.set_num_threads(1)
    assert torch.equal(way(A, H, None), by_two)
    assert np.allclose(by_two, to_scipy(A) @ H.numpy(), rtol=1e-13)


@given(st.from_type(Csr), st.integers(1, 9))
def test_shares_are_all_rows_once_and_balanced(A, shares):
    bounds = [first_row(A.rowptr.numpy(), share, shares) for share in range(shares + 1)]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, A.rows)
    work = np.diff(A.rowptr.numpy()[bounds] + np.array(bounds))
    longest = int(A.rowptr.diff().max()) + 1 if A.rows else 0
    assert work.max() <= (A.rows + A.nnz) / shares + longest


@given(st.from_type(Csr), st.integers(0, 5), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_any_strides(A, features, dtype):
    A = cast(A, dtype)
    H = whole_numbers(A.cols, features, dtype)
    wide = torch.zeros(A.cols, 2 * features, dtype=dtype)
    wide[:, ::2] = H
    one_row = whole_numbers(1, features, dtype).expand(A.cols, features)
    for operand in (H, H.T.contiguous().T, wide[:, ::2], one_row):
        expected = to_scipy(A) @ operand.float().numpy()
        assert np.array_equal(multiply(A, operand, None).float().numpy(), expected)
        into = torch.ones(features, A.rows, dtype=dtype).T
        multiply(A, operand, into)
        assert np.array_equal(into.float().numpy(), expected + 1)


def test_any_strides_when_the_loop_is_chosen():
    A = power_law(300, WORTH_COMPILING // 64)
    H, Z = whole_numbers(300, 128, torch.float32)[:, ::2], torch.ones(64, 300).T
    assert choose(A, H) is by_loop
    expected = to_scipy(A) @ H.numpy()
    assert np.array_equal(multiply(A, H, None).numpy(), expected)
    assert multiply(A, H, Z) is Z
    assert np.array_equal(Z.numpy(), expected + 1)


def test_bf16_sums_in_float32():
    """A thousand ones: a sum kept in bf16 would stop at 256."""
    A = from_coo(torch.zeros(1000).long(), torch.arange(1000), torch.ones(1000).bfloat16(), (1, 1000))
    assert multiply(A, torch.ones(1000, 3).bfloat16(), None).tolist() == [[1000.0] * 3]


@pytest.mark.parametrize(
    ("rows", "nnz", "features", "dtype", "way"),
    [
        (1000, 10**4, 64, torch.float32, by_loop),
        (1000, 10**4, 32, torch.float64, by_loop),
        (1000, 10**4, 32, torch.float32, by_matmul),  # narrow and near
        (10**6, 10**7, 16, torch.float32, by_loop),  # narrow and far
        (10**6, 10**7, 1, torch.float32, by_matmul),
        (1000, 1000, 64, torch.float32, by_matmul),  # small
        (10**6, 10**7, 64, torch.bfloat16, by_reduction),
    ],
)
def test_the_choice(rows, nnz, features, dtype, way):
    A = Csr(torch.empty(0), torch.empty(0), torch.empty(nnz, device="meta"), rows)
    assert choose(A, torch.empty(rows, features, dtype=dtype, device="meta")) is way


def test_small_products_warn_of_nothing_and_leave_the_compiler_alone():
    """In a fresh process: neither importing, nor a small product or draw, compiles a loop or says a word."""
    program = """
import torch
import harness.kernels.random as draws, harness.kernels.spmm as products
from harness.kernels import from_coo, transpose
from harness.kernels.random import Purpose, uniform
from harness.kernels.spmm import aggregate
A = from_coo(torch.arange(3), torch.arange(3), torch.ones(3), (3, 3))
H = uniform(0, Purpose.TEST, range(12), torch.float32).reshape(3, 4).requires_grad_()
aggregate(A, transpose(A), H).sum().backward()
loops = [each for module in (draws, products) for each in vars(module).values() if hasattr(each, "signatures")]
assert len(loops) > 4 and not any(loop.signatures for loop in loops)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    assert (done.returncode, done.stderr) == (0, "")
