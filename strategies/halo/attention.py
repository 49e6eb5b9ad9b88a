"""Attention over a part and the rows at its boundary, which arrive in one exchange (`harness.kernels.attention`).

Rows of H arrive and are projected here, or projected rows arrive where the projection comes first. Legend as in `rows`;
V are N and then K; T = H W, H features of all heads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.comm.call import Pending
from harness.kernels import Csr
from harness.kernels.gather import scatter_matrix
from harness.kernels.parts import beside
from harness.ledger import Op, Phase, TensorName, apply
from harness.parallel.halo import Halo, halo_of
from harness.parallel.row_attention import Edges, attention, edges_of
from strategies.halo.rows import P, PartRows


class Neighbours(NamedTuple):
    """Of whom one rank takes, and what it gives."""

    edges: Edges
    halo: Halo
    S_NM: Csr


class Arrive(Function):
    """H_K, which has been asked for. Backward: dH_K returns; dH = S dH_M."""

    @staticmethod
    def forward(
        saved: Any, _H_NF: Tensor, coming: Pending[Tensor], ops: "AttendingRows", layer: int
    ) -> Tensor:
        saved.ops, saved.layer = ops, layer
        return coming.wait()

    @staticmethod
    def backward(saved: Any, dH_KF: Tensor) -> tuple[Tensor, None, None, None]:
        ops, (_, halo, S_NM) = saved.ops, saved.ops.parts[saved.layer]
        coming = ops.give_back(halo, saved.layer, dH_KF)
        return ops.kernels.spmm(S_NM, coming.wait(), TensorName.DH), None, None, None


class AttendingRows(PartRows):
    """One rank's part."""

    parts: list[Neighbours]

    def cut(self) -> list[Neighbours]:
        ctx, blocks, rows = self.ctx, self.strategy.blocks(), self.rows
        halo, A_NK = halo_of(ctx, blocks, ctx.at[P], range(len(blocks)))
        self.A_NN_on_host = ctx.blocks.host_block(rows, rows)
        S_NM = ctx.memory.hold_matrix(scatter_matrix(halo.leaving, len(rows), ctx.dtype), TensorName.INDEX)
        return [Neighbours(self.edges(A_NK, ctx.memory.hold_matrix), halo, S_NM)] * self.model.layers

    def edges(self, A_NK: Csr, keep: Callable[[Csr], Csr]) -> Edges:
        return edges_of(beside([self.A_NN_on_host, A_NK]), keep)

    def attend(self, layer: int, H_NF: Tensor, W_FH: Tensor, a_2H: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.strategy.combine_first:
                T_NH = self.kernels.gemm(H_NF, W_FH, TensorName.T)
                T_KH = self.arrived(layer, T_NH, self.asked_for(layer, T_NH))
            else:
                coming = self.asked_for(layer, H_NF)
                T_NH = self.kernels.gemm(H_NF, W_FH, TensorName.T)
                T_KH = self.kernels.gemm(self.arrived(layer, H_NF, coming), W_FH, TensorName.T)
            T_VH = self.kernels.run(Op.COPY, TensorName.T, lambda *each: torch.cat(each), T_NH, T_KH)
            return attention(self, layer, self.parts[layer].edges, T_VH, a_2H)

    def asked_for(self, layer: int, H_NF: Tensor) -> Pending[Tensor]:
        return self.fetch(self.parts[layer].halo, layer, H_NF.detach())

    def arrived(self, layer: int, H_NF: Tensor, coming: Pending[Tensor]) -> Tensor:
        H_KF: Tensor = apply(self.ledger, Arrive, H_NF, coming, self, layer)
        return H_KF
