"""The ways to multiply a sparse matrix by a dense one, and which is taken when; and two dense ones where one is sparse.

What `choose` knows comes from benchmarks/spmm.py; its table stands in benchmarks/results/spmm.md.
Verifier (tests/kernels/test_multiply.py): scipy, for every way whether it would be chosen or not.
"""

import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from harness.kernels.csr import Csr

Way = Callable[[Csr, Tensor, Tensor | None], Tensor]
"""A H for contiguous operands, or add_to + A H in add_to."""

WORTH_COMPILING = 1 << 18
"""Products (nonzeros times features) from which the compiled loop saves more than its call costs."""

NEAR_BYTES = 8 << 20
"""An H of this size stays in cache."""

WIDE_NEAR, WIDE_FAR = 256, 64
"""Bytes of a row of H from which the loop wins: the library keeps narrower ones in registers, which matters
while H is near; the loop asks for rows ahead, which matters when it is far."""


def multiply(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """A H, or add_to + A H in add_to, for any strides and sizes."""
    if A.nnz * H.shape[1] == 0:
        return H.new_zeros((A.rows, H.shape[1])) if add_to is None else add_to
    if add_to is not None and not add_to.is_contiguous():
        return add_to.add_(multiply(A, H, None))
    return choose(A, H)(A, H.contiguous(), add_to)


def choose(A: Csr, H: Tensor) -> Way:
    """The fastest way on this device that takes this type; more threads help all of them alike."""
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
    """torch's own loop: any floating type, sums in float32 at least, then rounds."""
    Z = torch.sparse.mm(_sparse(A), H, "sum")
    return Z if add_to is None else add_to.add_(Z)


def by_loop(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """Our compiled loop."""
    from harness.kernels.multiply_compiled import multiply_arrays

    Z = H.new_empty((A.rows, H.shape[1])) if add_to is None else add_to
    rowptr, col, val, *dense = (tensor.detach().numpy() for tensor in (A.rowptr, A.col, A.val, H, Z))
    threads = torch.get_num_threads()
    multiply_arrays((rowptr, col, val), *dense, add=add_to is not None, far=_is_far(H), threads=threads)
    return Z


def inner_products(A: Csr, X: Tensor, Y: Tensor) -> Tensor:
    """x_i y_j for every entry (i, j) of A, whatever its value."""
    places = _sparse(A._replace(val=X.new_zeros(A.col.shape)))
    found: Tensor = torch.sparse.sampled_addmm(places, X, Y.contiguous().T, beta=0).values()
    return found


def _is_far(H: Tensor) -> bool:
    return H.nbytes > NEAR_BYTES


def _sparse(A: Csr) -> Tensor:
    """torch wants both indices of one type, and need not check what we made."""
    _hear_beta_warning()
    col = A.col if A.nnz <= torch.iinfo(A.col.dtype).max else A.col.long()
    rowptr = A.rowptr.to(col.dtype)
    return torch.sparse_csr_tensor(rowptr, col, A.val, (A.rows, A.cols), check_invariants=False)


@cache
def _hear_beta_warning() -> None:
    """torch says once a process that its CSR is in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0], [], [], (0, 0), check_invariants=False)
