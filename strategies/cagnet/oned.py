"""CAGNET 1D: block rows (Reducing Communication in Graph Neural Network Training, SC'20, section IV-A).

A, H and G are split by rows over the axis p, W is whole on every rank.

Legend: N this rank's vertices, K the vertices of one block, F features in, H features out, C classes.
Our A is the paper's A^T: Z = A H W. G = dL/dZ. S = A^T G, dH = S W^T, Y = dL/dW = H^T S.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.autograd import Function

from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, Phase, TensorName, apply
from harness.parallel.rows import RowOperators, RowStrategy
from harness.strategy import Context, Coordinates, Promise, Words, widths

P = AxisName.P


class Convolve(Function):
    """Z = A H W by Algorithm 1, its backward by the same loop over A^T."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W_FH: Tensor, ops: "BlockRows") -> Tensor:
        saved.ops = ops
        saved.save_for_backward(H_NF, W_FH)
        if ops.combine_first:
            return ops.aggregate(ops.A_NK, ops.kernels.gemm(H_NF, W_FH, TensorName.T), TensorName.T)
        return ops.kernels.gemm(ops.aggregate(ops.A_NK, H_NF, TensorName.H), W_FH, TensorName.Z)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None]:
        ops, (H_NF, W_FH) = saved.ops, saved.saved_tensors
        S_NH = ops.aggregate(ops.A_T_NK, G_NH, TensorName.G)
        Y_FH = ops.axis.all_reduce(ops.kernels.gemm(H_NF.T, S_NH, TensorName.DW), tensor=TensorName.DW)
        dH_NF = ops.kernels.gemm(S_NH, W_FH.T, TensorName.DH) if saved.needs_input_grad[0] else None
        return dH_NF, Y_FH, None


class BlockRows(RowOperators):
    """One rank's block row of A and of A^T, cut into blocks at the vertices of the other ranks."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.A_NK = [ctx.adjacency(self.rows, block) for block in self.blocks]
        self.A_T_NK = [ctx.transposed(self.rows, block) for block in self.blocks]
        self.combine_first = ctx.spec.model.order == "combine_first"

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            return apply(self.ledger, Convolve, H_NF, W_FH, self)

    def aggregate(self, A_NK: Sequence[Csr], H_NF: Tensor, moves: TensorName) -> Tensor:
        """A H: every block of H is broadcast in turn and multiplied where it arrives (Algorithm 1)."""
        T_NF = None
        for j, block in enumerate(self.blocks):
            H_KF = self.axis.broadcast(H_NF, root=j, shape=(len(block), H_NF.shape[1]), tensor=moves)
            T_NF = self.kernels.spmm(A_NK[j], H_KF, TensorName.T, add_to=T_NF)
        assert T_NF is not None
        return T_NF


class OneD(RowStrategy):
    """CAGNET's 1D algorithm, for any number of ranks up to the number of vertices."""

    name = "cagnet-1d"
    promise = Promise.EXACT

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        return [{P: ranks}]

    def operators(self, ctx: Context) -> BlockRows:
        return BlockRows(ctx)

    def words(self, at: Coordinates) -> Words:
        """Section IV-A: n f_(l-1) forward, n f_l and f_(l-1) f_l backward; and one word for the loss."""
        words, n = Words(self.spec.grid), self.facts.vertices
        forward, backward = Direction.FORWARD, Direction.BACKWARD
        sizes = widths(self.spec.model, self.facts)
        for layer, (f_in, f_out) in enumerate(pairwise(sizes)):
            if self.spec.model.order == "combine_first":
                words.put(forward, layer, Op.BROADCAST, P, TensorName.T, n * f_out)
            else:
                words.put(forward, layer, Op.BROADCAST, P, TensorName.H, n * f_in)
            words.put(backward, layer, Op.BROADCAST, P, TensorName.G, n * f_out)
            words.put(backward, layer, Op.ALL_REDUCE, P, TensorName.DW, f_in * f_out)
        words.put(forward, -1, Op.ALL_REDUCE, P, TensorName.LOSS, 1)
        return words
