"""Plain torch kernels that say on a ledger what they did, forward and backward. They compute nothing else."""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.spmm import aggregate, spmm
from harness.ledger import Ledger, Op, TensorName, follow


class Kernels:
    """The local operations of one rank. `makes` names the result on the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def run(
        self, op: Op, makes: TensorName | None, function: Callable[..., Tensor], *tensors: Tensor
    ) -> Tensor:
        """Any differentiable function of tensors, as one op."""
        with self.ledger.op(op, tensor=makes):
            result = function(*tensors)
        return follow(self.ledger, result, tensors, op=op, tensor=makes)

    def gemm(
        self, X: Tensor, Y: Tensor, makes: TensorName | None = None, add_to: Tensor | None = None
    ) -> Tensor:
        """X Y, dense; or add_to += X Y in place, inside an autograd function."""
        if add_to is None:
            return self.run(Op.GEMM, makes, torch.mm, X, Y)
        with self.ledger.op(Op.GEMM, tensor=makes):
            return add_to.addmm_(X, Y)

    def aggregate(self, A: Csr, A_T: Csr, H: Tensor, makes: TensorName | None = None) -> Tensor:
        """A H, differentiable in H: its backward multiplies by the given transpose."""
        return self.run(Op.SPMM, makes, lambda H: aggregate(A, A_T, H), H)

    def spmm(
        self, A: Csr, H: Tensor, makes: TensorName | None = None, add_to: Tensor | None = None
    ) -> Tensor:
        """A H, or add_to += A H in place; for use inside an autograd function."""
        with self.ledger.op(Op.SPMM, tensor=makes):
            return spmm(A, H, add_to=add_to)

    def elementwise(
        self, function: Callable[..., Tensor], *tensors: Tensor, makes: TensorName | None = None
    ) -> Tensor:
        """Anything whose cost is the reading and writing of its elements."""
        return self.run(Op.ELEMENTWISE, makes, function, *tensors)
