"""Torch kernels that record themselves on a ledger, forward and backward."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from harness.base.device import synchronize
from harness.kernels.csr import Csr
from harness.kernels.spmm import aggregate, spmm
from harness.ledger import Ledger, Op, TensorName, charge_backward

WARMUP_CALLS, TIMED_CALLS = 2, 7
"""The numbers of warm-up and timed calls per candidate."""
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
FEW_COLUMNS = 16
"""The number of columns below which MKL is slow."""
MANY_ELEMENTS = 1 << 15
"""The number of elements from which oneDNN, whose calls take longer, is faster than MKL."""


def autotune(candidates: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """Return the name of the fastest of several equivalent functions, timed on the tensors of the run.

    The candidates take turns, and the lowest median time wins. For meta tensors the first candidate is chosen.
    """
    if device.type == "meta" or len(candidates) == 1:
        return next(iter(candidates))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(-WARMUP_CALLS, TIMED_CALLS):
        for name, candidate in candidates.items():
            start = perf_counter()
            candidate()
            synchronize(device)
            if turn >= 0:
                seconds[name].append(perf_counter() - start)
    return min(candidates, key=lambda name: median(seconds[name]))


def matmul(X: Tensor, Y: Tensor) -> Tensor:
    """Return the dense product X Y.

    MKL runs at a quarter of its speed for few columns (benchmarks/bench.py). So T^T G of tall matrices is computed as
    (G^T T)^T if the result has more rows than columns, and oneDNN computes products with few columns. oneDNN takes a
    hundred times as long for a part of a matrix, so Y is made contiguous, and X must be.
    """
    if _is_tall_product(X, Y):
        return torch.mm(Y.T, X.T).T.contiguous()
    if _is_narrow_product(X, Y):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(X, Y.T.contiguous(), None, "none", [], "")
        return product
    return torch.mm(X, Y)


def _is_tall_product(X: Tensor, Y: Tensor) -> bool:
    """Return True for X = T^T of a tall T, if X Y has more rows than columns."""
    is_transposed = X.stride(0) == 1 and X.shape[1] > X.shape[0]
    return is_transposed and X.shape[0] > Y.shape[1]


def _is_narrow_product(X: Tensor, Y: Tensor) -> bool:
    """Return True if oneDNN computes X Y: a tall X and few columns, in single precision, on a CPU, without autograd."""
    is_recorded = torch.is_grad_enabled() and (X.requires_grad or Y.requires_grad)
    is_tall = X.shape[0] > X.shape[1] and X.is_contiguous() and X.numel() >= MANY_ELEMENTS
    is_narrow = is_tall and Y.shape[1] < FEW_COLUMNS
    return HAS_ONEDNN and is_narrow and X.dtype == torch.float32 and X.is_cpu and not is_recorded


class Kernels:
    """The local operations of one rank. `makes` is the name of the result on the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def run(
        self, op: Op, makes: TensorName | None, function: Callable[..., Tensor], *tensors: Tensor
    ) -> Tensor:
        """Call a differentiable function of tensors and record it as one op."""
        with self.ledger.op(op, tensor=makes):
            result = function(*tensors)
        return charge_backward(self.ledger, result, tensors, op=op, tensor=makes)

    def gemm(
        self, X: Tensor, Y: Tensor, makes: TensorName | None = None, add_to: Tensor | None = None
    ) -> Tensor:
        """Return the dense product X Y; or compute add_to += X Y in place, inside an autograd function."""
        if add_to is None:
            return self.run(Op.GEMM, makes, matmul, X, Y)
        with self.ledger.op(Op.GEMM, tensor=makes):
            is_slow = _is_tall_product(X, Y) or _is_narrow_product(X, Y)
            return add_to.add_(matmul(X, Y)) if is_slow else add_to.addmm_(X, Y)

    def aggregate(self, A: Csr, A_T: Csr | None, H: Tensor, makes: TensorName | None = None) -> Tensor:
        """Return A H, differentiable in H. The backward pass multiplies by `A_T`, None if H needs no gradient."""
        return self.run(Op.SPMM, makes, lambda H: aggregate(A, A_T, H), H)

    def spmm(
        self, A: Csr, H: Tensor, makes: TensorName | None = None, add_to: Tensor | None = None
    ) -> Tensor:
        """Return A H, or compute add_to += A H in place. For use inside an autograd function."""
        with self.ledger.op(Op.SPMM, tensor=makes):
            return spmm(A, H, add_to=add_to)

    def elementwise(
        self, function: Callable[..., Tensor], *tensors: Tensor, makes: TensorName | None = None
    ) -> Tensor:
        """Call a memory-bound elementwise function and record it as one op."""
        return self.run(Op.ELEMENTWISE, makes, function, *tensors)
