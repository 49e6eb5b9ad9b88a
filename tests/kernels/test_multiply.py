"""Products and inner products equal scipy's, add in the documented order, and stay within their operands."""

import ctypes
import mmap
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels import tiles
from harness.kernels.csr import Csr, cast, from_coo, row_indices, to_scipy
from harness.kernels.jit import balance_rows
from harness.kernels.random import Purpose, integers, uniform
from harness.kernels.spmm import (
    BLOCK,
    inner_products,
    multiply,
    multiply_library,
    multiply_library_blocked,
    multiply_tiled,
)
from tests.python_path import CHECKOUT, with_python_path

DTYPES = (torch.float32, torch.float64)
FULL = tiles.VECTOR_BYTES // 4 * tiles.MOST_VECTORS
"""The number of float32 columns in the widest tile."""
N = 30
SOME_WIDTHS = (1, 3, 5, 8, 16, 41, 100, 256, FULL + 1, 2 * FULL + 9)


def whole_numbers(rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(rows * cols).reshape(rows, cols) * 7 % 11 - 5).to(dtype)


def short_numbers(seed: int, *shape: int) -> torch.Tensor:
    """Return numbers whose products are exact in float32, so that a fused multiply-add equals a separate addition."""
    size = int(np.prod(shape))
    return ((integers(seed, Purpose.TEST, range(size), 8192) - 4096) / 4096).reshape(shape)


def power_law(n: int, nnz: int) -> Csr:
    """Return a matrix with some long rows and many empty rows."""
    draw = (uniform(0, Purpose.EDGES, range(nnz)) ** 4 * n).long()
    return from_coo(draw, integers(1, Purpose.EDGES, range(nnz), n), torch.ones(nnz), (n, n))


def one_chain(A: Csr, H: torch.Tensor, Z: torch.Tensor | None) -> torch.Tensor:
    """Return A H, each element as one chain of additions in the order of the entries."""
    sums = H.new_zeros(A.rows, H.shape[1]) if Z is None else Z.clone()
    for row, col, val in zip(row_indices(A), A.col.long(), A.val, strict=True):
        sums[row] = sums[row] + val * H[col]
    return sums


@pytest.mark.parametrize("add", [False, True], ids=["", "added"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_are_bitwise_equal_to_chains_of_additions(dtype, add):
    A = power_law(N, 90)
    A = A._replace(val=short_numbers(1, A.nnz).to(dtype))
    assert not A.rowptr.diff().all()
    for width in {*SOME_WIDTHS, *range(1, 71)} if dtype == torch.float32 else SOME_WIDTHS:
        H, Z = short_numbers(2, N, width).to(dtype), short_numbers(3, N, width).to(dtype)
        expected = one_chain(A, H, Z if add else None)
        result = multiply(A, H, Z if add else None)
        assert torch.equal(result, expected), width
        assert result is Z or not add


@pytest.mark.parametrize("way", [multiply_tiled, multiply_library, multiply_library_blocked])
@given(A=st.from_type(Csr), features=st.integers(1, 9), add=st.booleans(), wide=st.booleans())
def test_products_equal_scipy(way, A, features, add, wide):
    if A.nnz == 0:  # `multiply` answers itself
        return
    features *= 1 if way is not multiply_library_blocked else 16  # up to three blocks
    A = A._replace(col=A.col.long() if wide else A.col)
    H, Z = (whole_numbers(size, features, torch.float64) for size in (A.cols, A.rows))
    expected = to_scipy(A) @ H.numpy() + (Z.numpy() if add else 0)
    assert np.array_equal(way(A, H, Z if add else None).numpy(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("features", [1, 16, 41, FULL + 1])
def test_prefetching_does_not_change_products(dtype, features, monkeypatch):
    A = cast(power_law(300, 2_000), dtype)
    H = short_numbers(2, 300, features).to(dtype)
    near = multiply_tiled(A, H, None)
    monkeypatch.setattr(tiles, "FAR_BYTES", 0)
    assert torch.equal(multiply_tiled(A, H, None), near)


@pytest.mark.parametrize(("dtype", "features"), [(torch.float32, FULL + 1), (torch.float64, 16)], ids=str)
@pytest.mark.parametrize("add", [False, True], ids=["", "added"])
def test_products_do_not_depend_on_the_number_of_threads(dtype, features, add, two_threads):
    A = power_law(997, 9_000)
    A = A._replace(val=uniform(0, Purpose.TEST, range(A.nnz)).to(dtype))
    H = uniform(1, Purpose.TEST, range(997 * features)).reshape(997, features).to(dtype)
    Z = H.clone()
    by_two = multiply(A, H, Z.clone() if add else None)
    torch.set_num_threads(1)
    assert torch.equal(multiply(A, H, Z if add else None), by_two)


@pytest.mark.parametrize("features", [1, 16, 64])
def test_product_with_one_very_long_row_equals_scipy(features, two_threads):
    """One row has nearly all entries."""
    hub = torch.cat((torch.full((200_000,), 3), torch.arange(9)))
    A = from_coo(hub, integers(1, Purpose.TEST, range(len(hub)), 50), torch.ones(len(hub)), (9, 50))
    A = A._replace(val=uniform(0, Purpose.TEST, range(A.nnz)))
    H = uniform(1, Purpose.TEST, range(50 * features)).reshape(50, features)
    assert np.allclose(multiply(A, H, None), to_scipy(A) @ H.numpy(), rtol=1e-12)


def at_the_end(x: torch.Tensor) -> torch.Tensor:
    """Return a copy that ends at the end of a page, and make the next page unreadable."""
    size = -(-x.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + mmap.PAGESIZE)
    barred = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + size
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(barred), mmap.PAGESIZE, 0) == 0
    copy = torch.frombuffer(pages, dtype=x.dtype, count=x.numel(), offset=size - x.nbytes).view(x.shape)
    return copy.copy_(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_do_not_access_memory_beyond_their_operands(dtype):
    """The kernels run in a child process, which an invalid access would kill."""
    A = cast(power_law(N, 90), dtype)
    A = Csr(*map(at_the_end, (A.rowptr, A.col, A.val)), A.cols)
    child = os.fork()
    if not child:
        for width in SOME_WIDTHS:
            H, Z = (at_the_end(whole_numbers(N, width, dtype)) for _ in range(2))
            multiply(A, H, Z)
            inner_products(A, H, Z)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("features", "vectors"), [(FULL // 2 - 3, tiles.MOST_VECTORS // 2), (FULL, tiles.MOST_VECTORS)]
)
def test_compiled_product_uses_one_fused_multiply_add_per_vector(features, vectors):
    """Per entry, in the compiled function, which contains the loop over entries once."""
    A, H, Z = power_law(N, 90), torch.ones(N, features), torch.ones(N, features)
    loop = numba.njit(tiles.multiply_rows.py_func)
    tiles._run(loop, loop, A, (A.val, H, Z))
    (assembly,) = loop.inspect_asm().values()
    operations = [line.split()[0] for line in assembly.splitlines() if line.startswith("\t")]
    fused = sum(operation.startswith(("vfmadd", "fmla")) for operation in operations)
    assert fused == vectors
    assert not any(operation.startswith(("vmul", "vadd", "fmul", "fadd")) for operation in operations)


@given(st.from_type(Csr), st.integers(1, 9))
def test_row_ranges_cover_all_rows_once_and_are_balanced(A, shares):
    bounds = balance_rows(A.rowptr.numpy(), shares)
    assert bounds.tolist() == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, A.rows)
    work = np.diff(A.rowptr.numpy()[bounds] + bounds)
    longest = int(A.rowptr.diff().max()) + 1 if A.rows else 0
    assert work.max() <= (A.rows + A.nnz) / shares + longest


@given(st.from_type(Csr), st.integers(0, 5), st.sampled_from(DTYPES))
def test_products_with_any_strides_equal_contiguous_ones(A, features, dtype):
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


KERNELS = multiply_library, multiply_library_blocked


@pytest.mark.parametrize("kernel", KERNELS)
def test_bf16_products_accumulate_in_float32(kernel):
    """A row of 20,000 ones: a sum in bf16 would stop at 256."""
    n, width = 20_000, BLOCK + 1
    A = from_coo(torch.zeros(n).long(), torch.arange(n), torch.ones(n).bfloat16(), (1, n))
    H, expected = torch.ones(n, width).bfloat16(), torch.full((1, width), float(n)).bfloat16()
    assert torch.equal(kernel(A, H, None), expected)
    total = torch.full((1, width), 512.0).bfloat16()
    assert kernel(A, H, total) is total
    assert torch.equal(total, torch.full((1, width), n + 512.0).bfloat16())


@pytest.mark.parametrize("kernel", KERNELS)
def test_bf16_sums_are_rounded_once(kernel):
    """The product is slightly more than half a unit of 1, to which it is added; rounded before, it would be half."""
    half = 2**-8
    A = from_coo(torch.zeros(2).long(), torch.arange(2), torch.tensor([half, half * half]).bfloat16(), (1, 2))
    total = torch.ones(1, BLOCK + 1).bfloat16()
    kernel(A, torch.ones(2, BLOCK + 1).bfloat16(), total)
    assert total.unique().tolist() == [1 + 2 * half]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_inner_products_equal_dense(dtype, threads, two_threads):
    torch.set_num_threads(threads)
    A = cast(power_law(N, 90), dtype)
    for width in SOME_WIDTHS if threads == 1 else (FULL + 1,):
        X, Y = (
            uniform(seed, Purpose.TEST, range(N * width)).reshape(width, N).T.to(dtype) for seed in (1, 2)
        )
        Y[3, 0] = float("inf")
        expected = (X.double()[row_indices(A)] * Y.double()[A.col.long()]).sum(1)
        torch.testing.assert_close(inner_products(A, X, Y), expected.to(dtype))


def test_inner_products_of_empty_operands():
    A = power_law(N, 90)
    assert inner_products(A, torch.ones(N, 0), torch.ones(N, 0)).tolist() == [0] * A.nnz
    empty = from_coo(torch.zeros(0).long(), torch.zeros(0).long(), torch.zeros(0), (3, 3))
    assert inner_products(empty, torch.ones(3, 2), torch.ones(3, 2)).shape == (0,)


def test_mismatched_operands_are_refused():
    A, H = power_law(N, 90), torch.ones(N, 4)
    for X in (H[1:], H.double()):
        with pytest.raises(AssertionError):
            multiply(A, X, None)
    with pytest.raises(AssertionError):
        inner_products(A, H, H[1:])
    with pytest.raises(AssertionError):
        multiply(A._replace(val=torch.ones(1).expand(A.nnz)), H, None)


def test_imports_and_small_draws_compile_no_kernel_and_warn_not():
    """Run in a new process."""
    program = """
import torch
import harness.kernels.random as draws, harness.kernels.tiles as products
from harness.kernels import from_coo, transpose
from harness.kernels.random import Purpose, uniform
from harness.kernels.spmm import aggregate
A = from_coo(torch.arange(3), torch.arange(3), torch.ones(3), (3, 3))
H = uniform(0, Purpose.TEST, range(12), torch.float32).reshape(3, 4).requires_grad_()
loops = [each for module in (draws, products) for each in vars(module).values() if hasattr(each, "signatures")]
assert len(loops) > 4 and not any(loop.signatures for loop in loops)
aggregate(A, transpose(A), H).sum().backward()
assert products.multiply_rows.signatures
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=with_python_path(CHECKOUT),
    )
    assert (done.returncode, done.stderr) == (0, "")
