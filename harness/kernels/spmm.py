"""Sparse-dense matrix products on every device, as one operator with a meta kernel and a gradient.

Operands are plain tensors rather than torch's sparse tensors, so that the operator also runs on meta tensors (replay).
Legend: N rows of A, K columns of A, F features.
Verifier (tests/kernels/test_spmm.py): dense torch.
"""

import warnings
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.utils.weak import WeakIdKeyDictionary

from harness.base.device import GPU_KERNELS, NO_FIXED_ORDER, can_run_triton, is_on_gpu
from harness.kernels.csr import Csr
from harness.kernels.row_schedule import RowSchedule, schedule_rows

# There is one implementation for CPUs, and several for GPUs. Verifier (tests/kernels/test_multiply.py): scipy.


def multiply(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """Return A H, or add A H to `add_to` in place, for any strides and sizes."""
    if A.nnz * H.shape[1] == 0:
        return H.new_zeros((A.rows, H.shape[1])) if add_to is None else add_to
    if add_to is not None and not add_to.is_contiguous():
        return add_to.add_(multiply(A, H, None))
    if not is_on_gpu(H):
        return multiply_tiled(A, H.contiguous(), add_to)
    return _select_gpu_kernel(A, H)(A, H.contiguous(), add_to)


def multiply_library(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """Multiply with torch's library: cuSPARSE or MKL.

    In bfloat16, it makes float32 copies of the values, of H and of the result, because cuSPARSE adds the parts of a
    long row in the dtype of the result. A sum in bfloat16 stops growing at 256 times its terms.
    """
    matrix, wide = _get_wide_sparse_tensor(A), sum_dtype(H)
    if add_to is None:
        return (matrix @ H.to(wide)).to(H.dtype)
    return _add_product(add_to, matrix, H.to(wide))


def multiply_library_blocked(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """Multiply with torch's library, one block of columns at a time, so that the rows of H in use may fit in cache."""
    matrix, wide = _get_wide_sparse_tensor(A), sum_dtype(H)
    Z = H.new_empty((A.rows, H.shape[1])) if add_to is None else add_to
    for start in range(0, H.shape[1], BLOCK):
        some = slice(start, start + BLOCK)
        _add_product(Z[:, some], matrix, H[:, some].to(wide), beta=int(add_to is not None))
    return Z


def _add_product(Z: Tensor, matrix: Tensor, H: Tensor, beta: int = 1) -> Tensor:
    """Set Z to beta Z + `matrix` H in place, computed in the dtype of H and rounded once. Returns Z."""
    total = Z.to(H.dtype)
    torch.addmm(total, matrix, H, beta=beta, out=total)
    return Z if total is Z else Z.copy_(total)


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which products of this tensor are summed: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def multiply_triton(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """Multiply with the deterministic Triton kernels of `harness.kernels.triton_spmm`."""
    from harness.kernels.triton_spmm import multiply_into

    Z = H.new_empty((A.rows, H.shape[1])) if add_to is None else add_to
    multiply_into(A, H.contiguous(), Z, _get_schedule(A), add=add_to is not None)
    return Z


BLOCK = 64
"""The number of columns in a block."""
ProductKernel = Callable[[Csr, Tensor, Tensor | None], Tensor]
ChooseKernel = Callable[[str, Mapping[str, Callable[[], object]]], str]
"""Returns the name of the fastest candidate, and caches the answer under the description that is given first."""
LIBRARY, TRITON = "library", "triton"
PRODUCT_KERNELS: dict[str, ProductKernel] = {
    LIBRARY: multiply_library,
    f"library, {BLOCK} columns at a time": multiply_library_blocked,
    TRITON: multiply_triton,
}
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 2**-8 + 1e-4}
"""The largest accepted difference from the library's sums by dtype, relative to the largest element.

In bfloat16, it is the error of one rounding plus the difference between two sums in float32.
"""


def _select_gpu_kernel(A: Csr, H: Tensor) -> ProductKernel:
    """Return the kernel that was measured to be fastest for a cached matrix and this width; else the library's.

    If torch's deterministic algorithms are enabled, return the kernel with a fixed order of additions where it works.
    """
    cached, deterministic = CACHED_PRODUCTS.get(A.rowptr), torch.are_deterministic_algorithms_enabled()
    if not deterministic and (cached is None or cached.choose is None):
        return multiply_library
    chosen = cached.kernels if cached else {}
    product = H.shape[1], deterministic
    if product not in chosen:
        chosen[product] = _choose_kernel(A, H, None if deterministic or not cached else cached.choose)
    return PRODUCT_KERNELS[chosen[product]]


def _choose_kernel(A: Csr, H: Tensor, choose: ChooseKernel | None) -> str:
    """Return the name of the fastest usable kernel for A H; without `choose`, the name of the deterministic kernel."""
    H = H.contiguous()
    kernels = _find_usable_kernels(A, H)
    if choose is None:
        if TRITON not in kernels:
            warnings.warn(f"The library's sparse product {NO_FIXED_ORDER}.", stacklevel=2)
        return TRITON if TRITON in kernels else LIBRARY
    if len(kernels) == 1:
        return LIBRARY
    what = f"product of {A.rows} x {A.cols} with {A.nnz} entries by {H.shape[1]} columns"
    name = choose(what, {name: partial(kernel, A, H, None) for name, kernel in kernels.items()})
    return name if name in kernels else LIBRARY  # the cached choice of an earlier run may not work here


def _find_usable_kernels(A: Csr, H: Tensor) -> dict[str, ProductKernel]:
    """Return the library's kernel, and the others that run on this device and agree with it on this product."""
    kernels: dict[str, ProductKernel] = {LIBRARY: multiply_library}
    for name, kernel in PRODUCT_KERNELS.items():
        is_same = name == LIBRARY or (kernel is multiply_library_blocked and H.shape[1] <= BLOCK)
        if is_same or (kernel is multiply_triton and not can_run_triton()):
            continue
        if fault := _check_kernel(kernel, A, H):
            warnings.warn(f"The sparse kernel {name!r} is disabled on this GPU: {fault}", stacklevel=2)
        else:
            kernels[name] = kernel
    return kernels


def _check_kernel(kernel: ProductKernel, A: Csr, H: Tensor) -> str | None:
    """Compare A H by this kernel with the library's sums; return what is wrong, or None.

    Holds one result at a time; in bfloat16 also float32 copies of the operands.
    """
    wide = sum_dtype(H)
    try:
        Z = kernel(A, H, None).to(wide)
        largest = torch.linalg.vector_norm(Z, torch.inf)
        difference = torch.linalg.vector_norm(
            _add_product(Z, _get_wide_sparse_tensor(A), H.to(wide), beta=-1), torch.inf
        )
        result_norm, error_norm = torch.stack((largest, difference)).tolist()
    except Exception as error:  # a compiler, a driver and an allocator have errors of many types
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if result_norm < torch.inf and error_norm <= TOLERANCES.get(H.dtype, 0.0) * result_norm:
        return None
    return f"it differs from the library by {error_norm:.1e} in numbers up to {result_norm:.1e}"


def multiply_tiled(A: Csr, H: Tensor, add_to: Tensor | None) -> Tensor:
    """Multiply on a CPU with the compiled loops of `harness.kernels.tiles`."""
    from harness.kernels.tiles import multiply_into

    Z = H.new_empty((A.rows, H.shape[1])) if add_to is None else add_to
    multiply_into(A, H, Z, add=add_to is not None)
    return Z


def inner_products(A: Csr, X: Tensor, Y: Tensor) -> Tensor:
    """Return x_i y_j for every entry (i, j) of A (SDDMM). The values of A are ignored.

    In bfloat16, a GPU makes float32 copies of X and Y.
    """
    if is_on_gpu(X):
        wide = sum_dtype(X)
        places = _get_sparse_tensor(A._replace(val=X.new_zeros(A.col.shape, dtype=wide)))
        X_wide, Y_wide = X.to(wide), Y.to(wide).contiguous()
        products: Tensor = torch.sparse.sampled_addmm(places, X_wide, Y_wide.T, beta=0).values()
        return products.to(X.dtype)
    from harness.kernels.tiles import inner_products_into

    if A.nnz * X.shape[1] == 0:
        return X.new_zeros(A.nnz)
    products = X.new_empty(A.nnz)
    inner_products_into(A, X.contiguous(), Y.contiguous(), products)
    return products


def _get_sparse_tensor(A: Csr) -> Tensor:
    """Return A as a torch sparse CSR tensor, cached for matrices that were passed to `cache_for_products`."""
    cached = CACHED_PRODUCTS.get(A.rowptr)
    if cached is None or cached.col is not A.col:
        return _make_sparse_tensor(A, _convert_row_pointers(A))
    if cached.pointers is None:  # detached, because a value that holds its key would never be dropped
        cached.pointers = _convert_row_pointers(A).detach()
    if cached.val is not A.val:  # attention coefficients with the indices of a cached matrix
        return _make_sparse_tensor(A, cached.pointers)
    if cached.tensor is None:
        cached.tensor = _make_sparse_tensor(A, cached.pointers)
    return cached.tensor


def _get_wide_sparse_tensor(A: Csr) -> Tensor:
    """Return A as a torch sparse CSR tensor in the dtype of sums. It is cached unless it has other values than A."""
    wide = sum_dtype(A.val)
    return _get_sparse_tensor(A if wide == A.val.dtype else A._replace(val=A.val.to(wide)))


def _get_schedule(A: Csr) -> RowSchedule:
    """Return the row schedule of A, cached for matrices that were passed to `cache_for_products`."""
    cached = CACHED_PRODUCTS.get(A.rowptr)
    if cached is None:
        return schedule_rows(A.rowptr)
    if cached.schedule is None:
        cached.schedule = schedule_rows(A.rowptr)
    return cached.schedule


def _convert_row_pointers(A: Csr) -> Tensor:
    """Return the row pointers in the dtype of the column indices: the library requires one index dtype."""
    return A.rowptr.to(_convert_column_indices(A).dtype)


def _convert_column_indices(A: Csr) -> Tensor:
    return A.col if A.nnz <= torch.iinfo(A.col.dtype).max else A.col.long()


def _make_sparse_tensor(A: Csr, pointers: Tensor) -> Tensor:
    """Make a sparse tensor that shares the memory of A, without checking its invariants again."""
    _silence_beta_warning()
    col = _convert_column_indices(A)
    return torch.sparse_csr_tensor(pointers, col, A.val, A.shape, check_invariants=False)


@dataclass
class CachedProduct:
    """What is derived from a matrix that is multiplied in every step."""

    col: Tensor
    val: Tensor
    choose: ChooseKernel | None = None
    pointers: Tensor | None = None
    tensor: Tensor | None = None
    schedule: RowSchedule | None = None
    kernels: dict[tuple[int, bool], str] = field(default_factory=dict)
    """The name of the GPU kernel, by (width of the product, deterministic)."""


CACHED_PRODUCTS: MutableMapping[Tensor, CachedProduct] = WeakIdKeyDictionary()
"""Keyed by the row pointers of a matrix; an entry is dropped when they are freed."""


def cache_for_products(A: Csr, choose: ChooseKernel | None = None) -> Csr:
    """Cache what products with A need, because A will be multiplied many times. Returns A.

    `choose` selects the GPU kernel in the first product of each width.
    """
    CACHED_PRODUCTS[A.rowptr] = CachedProduct(A.col, A.val, choose)
    return A


def list_cached_tensors() -> list[Tensor]:
    """Return the row pointers and the row schedules that products on a GPU keep in addition to the matrices."""
    found: list[Tensor] = []
    for cached in CACHED_PRODUCTS.values():
        found += [] if cached.pointers is None else [cached.pointers]
        found += cached.schedule.tensors if cached.schedule else []
    return found


@cache
def _silence_beta_warning() -> None:
    """Silence torch's warning that sparse CSR support is in beta, once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0], [], [], (0, 0), check_invariants=False)


OPERATORS = Library("harness", "DEF")
OPERATORS.define("spmm(Tensor rowptr, Tensor col, Tensor val, int cols, Tensor H) -> Tensor")
OPERATORS.define("spmm_add_(Tensor(a!) out, Tensor rowptr, Tensor col, Tensor val, int cols, Tensor H) -> ()")
PRODUCT, PRODUCT_ADD = torch.ops.harness.spmm.default, torch.ops.harness.spmm_add_.default


def spmm(A_NK: Csr, H_KF: Tensor, *, add_to: Tensor | None = None) -> Tensor:
    """Return A H, or add A H to `add_to` in place. Not differentiable, unlike `aggregate`."""
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


def aggregate(A_NK: Csr, A_T_KN: Csr | None, H_KF: Tensor) -> Tensor:
    """Return A H, differentiable in H. The caller passes the transpose, which is A itself if A is symmetric.

    It may be None if H needs no gradient.
    """
    Z_NF: Tensor = SparseProduct.apply(H_KF, A_NK, A_T_KN)  # type: ignore[no-untyped-call]
    return Z_NF


class SparseProduct(torch.autograd.Function):
    """Z = A H, dH = A^T dZ."""

    @staticmethod
    def forward(ctx: Any, H_KF: Tensor, A_NK: Csr, A_T_KN: Csr | None) -> Tensor:
        ctx.A_T_KN = A_T_KN
        return spmm(A_NK, H_KF)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (dZ_NF,) = gradients
        return spmm(ctx.A_T_KN, dZ_NF) if ctx.needs_input_grad[0] else None, None, None


def _implement(device: str, kernel: ProductKernel) -> None:
    """Register a kernel as both operators of a device."""

    def product(rowptr: Tensor, col: Tensor, val: Tensor, cols: int, H_KF: Tensor) -> Tensor:
        return kernel(Csr(rowptr, col, val, cols), H_KF, None)

    def product_add(out: Tensor, rowptr: Tensor, col: Tensor, val: Tensor, cols: int, H_KF: Tensor) -> None:
        kernel(Csr(rowptr, col, val, cols), H_KF, out)

    OPERATORS.impl("spmm", product, device)
    OPERATORS.impl("spmm_add_", product_add, device)


def _multiply_meta(A_NK: Csr, H_KF: Tensor, add_to: Tensor | None) -> Tensor:
    return H_KF.new_empty((A_NK.rows, H_KF.shape[1])) if add_to is None else add_to


_implement("Meta", _multiply_meta)
_implement("CPU", multiply)
_implement(GPU_KERNELS, multiply)
