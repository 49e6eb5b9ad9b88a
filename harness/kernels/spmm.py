"""Sparse times dense: several ways to multiply, and one operator with its shape, flops and gradient.

No sparse tensor object crosses this interface, so the operator also runs on shapes alone (replay), for which sparse
tensors do not exist. Legend: N rows of A, K columns of A, F features.
Verifier (tests/kernels/test_spmm.py): dense torch.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import torch
from torch import Tensor
from torch.library import Library
from torch.utils.flop_counter import register_flop_formula

from harness.kernels.csr import Csr
from harness.kernels.jit import compiled, prefetch

# The ways to multiply a sparse matrix by a dense one, and the choice among them.
#
# The thresholds of `choose` come from benchmarks/spmm.py; its table is benchmarks/results/spmm.md.
# Verifier (tests/kernels/test_multiply.py): scipy, for every way, chosen or not.

Way = Callable[[Csr, Tensor, Tensor | None], Tensor]
"""A H for contiguous operands, or add_to + A H in add_to."""

WORTH_COMPILING = 1 << 18
"""Products (nonzeros times features) from which the compiled loop saves more than its call costs."""

NEAR_BYTES = 8 << 20
"""An H of this size stays in cache."""

WIDE_NEAR, WIDE_FAR = 256, 64
"""Bytes of a row of H from which the loop wins, with H in cache and with H in memory: the library keeps narrower rows
in registers, an advantage in cache; the loop prefetches rows, an advantage in memory."""


def multiply(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """A H, or add_to + A H in add_to, for any strides and sizes."""
    if A.nnz * H.shape[1] == 0:
        return H.new_zeros((A.rows, H.shape[1])) if add_to is None else add_to
    if add_to is not None and not add_to.is_contiguous():
        return add_to.add_(multiply(A, H, None))
    return choose(A, H)(A, H.contiguous(), add_to)


def choose(A: Csr, H: Tensor) -> Way:
    """The fastest way on this device for this type; more threads help all ways alike."""
    if H.is_cuda:
        return by_matmul
    if H.dtype not in (torch.float32, torch.float64):
        return by_reduction
    features = H.shape[1]
    wide = features * H.dtype.itemsize >= (WIDE_FAR if _is_far(H) else WIDE_NEAR)
    return by_loop if wide and A.nnz * features >= WORTH_COMPILING else by_matmul


def by_matmul(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """The library behind torch: MKL or cuSPARSE."""
    return _sparse(A) @ H if add_to is None else torch.addmm(add_to, _sparse(A), H, out=add_to)


def by_reduction(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """torch's own loop, for any floating type: sums in float32 or wider, then rounds."""
    Z = torch.sparse.mm(_sparse(A), H, "sum")
    return Z if add_to is None else add_to.add_(Z)


def by_loop(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """The compiled loop of this module."""
    Z = H.new_empty((A.rows, H.shape[1])) if add_to is None else add_to
    rowptr, col, val, *dense = (tensor.detach().numpy() for tensor in (A.rowptr, A.col, A.val, H, Z))
    threads = torch.get_num_threads()
    multiply_arrays((rowptr, col, val), *dense, add=add_to is not None, far=_is_far(H), threads=threads)
    return Z


def inner_products(A: Csr, X: Tensor, Y: Tensor) -> Tensor:
    """x_i y_j for every entry (i, j) of A; the entry's value does not count."""
    places = _sparse(A._replace(val=X.new_zeros(A.col.shape)))
    products: Tensor = torch.sparse.sampled_addmm(places, X, Y.contiguous().T, beta=0).values()
    return products


def _is_far(H: Tensor) -> bool:
    return H.nbytes > NEAR_BYTES


def _sparse(A: Csr) -> Tensor:
    """A as torch's sparse CSR tensor, which has both indices of one type; nothing is left to check."""
    _silence_beta_warning()
    col = A.col if A.nnz <= torch.iinfo(A.col.dtype).max else A.col.long()
    rowptr = A.rowptr.to(col.dtype)
    return torch.sparse_csr_tensor(rowptr, col, A.val, (A.rows, A.cols), check_invariants=False)


@cache
def _silence_beta_warning() -> None:
    """Silences torch's warning, once a process, that its CSR is in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0], [], [], (0, 0), check_invariants=False)


# Sparse times dense as a compiled loop over rows.
#
# Four entries of a row are added at a time, so that a row of the result is read and written once for four
# rows of H; the next rows of H are prefetched. One thread sums a row from left to right, so the bits do not
# depend on the number of threads. Verifier: scipy.

LINE = 64  # bytes
AHEAD = 8  # entries from the prefetch of a row of H to its use

Arrays = tuple[Any, Any, Any]
"""The arrays rowptr, col and val of a matrix."""


def multiply_arrays(A: Arrays, H: Any, Z: Any, *, add: bool, far: bool, threads: int) -> None:
    """Z = A H, or Z += A H; all arrays contiguous. `far`: H is not in cache, so its rows are prefetched."""
    threads = min(threads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if threads == 1:
        multiply_rows(A, H, Z, add, far, 0, Z.shape[0])
    else:
        numba.set_num_threads(threads)
        multiply_shares(A, H, Z, add, far, threads)


@compiled(parallel=True)
def multiply_shares(A: Arrays, H: Any, Z: Any, add: bool, far: bool, shares: int) -> None:
    """`multiply_rows` by threads, each with a share of the rows; shares have equal work, not equal numbers of rows."""
    for share in numba.prange(shares):
        first, last = first_row(A[0], share, shares), first_row(A[0], share + 1, shares)
        multiply_rows(A, H, Z, add, far, first, last)


@compiled(fastmath={"contract"})
def multiply_rows(A: Arrays, H: Any, Z: Any, add: bool, far: bool, first: int, last: int) -> None:
    """Rows first .. last - 1 of the product."""
    rowptr, col, val = A
    for i in range(first, last):
        row = Z[i]
        if not add:
            row[:] = 0
        e, end = rowptr[i], rowptr[i + 1]
        while e + 4 <= end:
            if far:
                _prefetch_rows(H, col, e + AHEAD, e + AHEAD + 4)
            h0, h1, h2, h3 = H[col[e]], H[col[e + 1]], H[col[e + 2]], H[col[e + 3]]
            a0, a1, a2, a3 = val[e], val[e + 1], val[e + 2], val[e + 3]
            for k in range(row.size):
                row[k] = row[k] + a0 * h0[k] + a1 * h1[k] + a2 * h2[k] + a3 * h3[k]
            e += 4
        while e < end:
            if far:
                _prefetch_rows(H, col, e + AHEAD, e + AHEAD + 1)
            h0, a0 = H[col[e]], val[e]
            for k in range(row.size):
                row[k] += a0 * h0[k]
            e += 1


@compiled()
def first_row(rowptr: Any, share: int, shares: int) -> int:
    """The first row of a share, if shares have about equal sums of rows and entries."""
    rows = rowptr.size - 1
    target = (rows + rowptr[rows]) * share // shares
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        if middle + rowptr[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@compiled(forceinline=True)
def _prefetch_rows(H: Any, col: Any, first: int, last: int) -> None:
    width = H.shape[1] * H.itemsize
    if last <= col.size:
        for e in range(first, last):
            start = H.ctypes.data + col[e] * width
            for byte in range(0, width, LINE):
                prefetch(start + byte)


OPERATORS = Library("harness", "DEF")
OPERATORS.define("spmm(Tensor rowptr, Tensor col, Tensor val, int cols, Tensor H) -> Tensor")
OPERATORS.define("spmm_add_(Tensor(a!) out, Tensor rowptr, Tensor col, Tensor val, int cols, Tensor H) -> ()")
PRODUCT, PRODUCT_ADD = torch.ops.harness.spmm.default, torch.ops.harness.spmm_add_.default


def spmm(A_NK: Csr, H_KF: Tensor, *, add_to: Tensor | None = None) -> Tensor:
    """A H; or add_to + A H, in add_to. Not differentiable, unlike `aggregate`."""
    assert A_NK.cols == H_KF.shape[0], f"{A_NK.shape} times {tuple(H_KF.shape)}"
    assert A_NK.val.dtype == H_KF.dtype, f"{A_NK.val.dtype} times {H_KF.dtype}"
    assert not (H_KF.requires_grad and torch.is_grad_enabled()), "a gradient would be lost: use aggregate"
    if add_to is None:
        Z_NF: Tensor = PRODUCT(*A_NK, H_KF)
        return Z_NF
    assert add_to.shape == (A_NK.rows, H_KF.shape[1]), f"the sum has shape {tuple(add_to.shape)}"
    assert add_to.dtype == H_KF.dtype
    PRODUCT_ADD(add_to, *A_NK, H_KF)
    return add_to


def aggregate(A_NK: Csr, A_T_KN: Csr, H_KF: Tensor) -> Tensor:
    """A H, differentiable in H. The caller has the transpose, or A is symmetric."""
    Z_NF: Tensor = SparseProduct.apply(H_KF, A_NK, A_T_KN)  # type: ignore[no-untyped-call]
    return Z_NF


class SparseProduct(torch.autograd.Function):
    """Z = A H, dH = A^T dZ."""

    @staticmethod
    def forward(ctx: Any, H_KF: Tensor, A_NK: Csr, A_T_KN: Csr) -> Tensor:
        ctx.A_T_KN = A_T_KN
        return spmm(A_NK, H_KF)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (dZ_NF,) = gradients
        return spmm(ctx.A_T_KN, dZ_NF) if ctx.needs_input_grad[0] else None, None, None


def _implement(device: str, way: Way) -> None:
    def product(rowptr: Tensor, col: Tensor, val: Tensor, cols: int, H_KF: Tensor) -> Tensor:
        return way(Csr(rowptr, col, val, cols), H_KF, None)

    def product_add(out: Tensor, rowptr: Tensor, col: Tensor, val: Tensor, cols: int, H_KF: Tensor) -> None:
        way(Csr(rowptr, col, val, cols), H_KF, out)

    OPERATORS.impl("spmm", product, device)
    OPERATORS.impl("spmm_add_", product_add, device)


def _shape(A_NK: Csr, H_KF: Tensor, add_to: Tensor | None) -> Tensor:
    return H_KF.new_empty((A_NK.rows, H_KF.shape[1])) if add_to is None else add_to


_implement("Meta", _shape)
_implement("CPU", multiply)
_implement("CUDA", multiply)


@register_flop_formula([PRODUCT.overloadpacket, PRODUCT_ADD.overloadpacket], get_raw=True)
def spmm_flops(*operands: Any, **_options: Any) -> int:
    """A multiplication and an addition for each nonzero and feature."""
    *_, val, _cols, H = operands
    return 2 * int(val.numel()) * int(H.shape[1])
