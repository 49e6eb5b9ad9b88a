"""Attention bin by bin: T = H W of all vertices at hand, of which the rows of a bin take (`harness.kernels.attention`).

What travels is H, as in a convolution: who needs a row projects it, and one gradient comes back for T and for what it
adds to scores. Back, bins give the gradients of their edges; then these are collected at the edges' other ends.

Legend as in `pipeline`; V are N and then K, X some of them; L are N in the order of the bins, E all edges, bin by bin;
Q heads, F features of one, H those of all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels import Csr
from harness.kernels.attention import columns_back, rows_back, turned, weigh
from harness.kernels.parts import beside
from harness.ledger import Op, TensorName
from harness.models.gat import by_head, merged, merged_back, scores, scores_back, side_by_side
from harness.strategy import Context
from strategies.g3.layer import Here
from strategies.g3.schedule import Message, Schedule, rows_between, rows_of


class Matrices(NamedTuple):
    """Rows of every bin, with where these stand in L and their edges in E; and all edges at their other ends."""

    A_BV: Sequence[Csr]
    rows: Sequence[slice]
    edges: Sequence[slice]
    A_VL: Csr
    """Turned: its values are places in E."""
    own: int
    """Edges from this rank's vertices; the others come after them in A_VL."""


class Attention:
    """A layer."""

    def __init__(
        self, here: Here, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]
    ) -> None:
        self.number, self.H_NF, self.H_KF = number, H_NF, H_KF
        self.W_FH, self.a_2H = weights
        self.kernels, self.op = here.kernels, here.kernels.ledger.op
        self.bins, self.matrices, self.brought = here.plan.bins, here.matrices, here.brought
        self.heads, self.mean = here.heads, number + 1 == here.layers
        self.own, everyone, features = len(H_NF), len(H_NF) + len(H_KF), self.W_FH.shape[1] // self.heads
        self.T_QVF = H_NF.new_empty((self.heads, everyone, features))
        self.s_QV = H_NF.new_empty((self.heads, everyone))
        self.a_QE = H_NF.new_empty((self.heads, self.matrices.edges[-1].stop if self.bins else 0))
        self.project(range(self.own), H_NF)
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            self.d_QN = scores(self.T_QVF[:, : self.own], self.a_2H[0])
        if not number:
            self.arrived(range(len(H_KF)))

    @staticmethod
    def hold(
        ctx: Context, plan: Schedule, vertices: range, A_NK: Csr, keep: Callable[[Csr], Csr]
    ) -> Matrices:
        A_NN, parts = ctx.blocks.host_block(vertices, vertices), plan.listed.parts
        A_NV = beside([A_NN, A_NK])
        A_BV = [keep(rows_of(A_NV, rows)) for rows in parts]
        A_LV = rows_of(A_NV, torch.cat([torch.arange(0), *parts]))
        rows, edges = _slices(A.rows for A in A_BV), _slices(A.nnz for A in A_BV)
        return Matrices(A_BV, rows, edges, ctx.memory.hold_matrix(turned(A_LV)), A_NN.nnz)

    def arrived(self, slots: range) -> None:
        self.project(self._of_others(slots), self.H_KF[slots.start : slots.stop])

    def project(self, at: range, H_XF: Tensor) -> None:
        """T = H W, and what these rows add to the scores of their edges."""
        T_XH = self.kernels.gemm(H_XF, self.W_FH, TensorName.T)
        with self.op(Op.COPY, tensor=TensorName.T):
            T_QXF = by_head(T_XH, self.heads)
            self.T_QVF[:, at.start : at.stop] = T_QXF
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            self.s_QV[:, at.start : at.stop] = scores(T_QXF, self.a_2H[1])

    def stage_begin(self, number: int) -> None:
        """T of its own rows is there, and scores ask for all neighbours at once."""

    def begin(self, number: int, at_hand: None) -> None: ...

    def stage_output(self, number: int) -> tuple[Csr, Tensor]:
        d_QB = self.d_QN.index_select(1, self.bins[number].rows)
        return self.brought(self.matrices.A_BV[number]), d_QB

    def output(self, number: int, at_hand: tuple[Csr, Tensor], land: Callable[[], None]) -> Tensor:
        land()
        A_BV, d_QB = at_hand
        with self.op(Op.SPMM, tensor=TensorName.Z):
            a_QB, Z_QBF = weigh(A_BV, d_QB, self.s_QV, self.T_QVF)
        with self.op(Op.COPY, tensor=TensorName.Z):
            self.a_QE[:, self.matrices.edges[number]] = a_QB
            return merged(Z_QBF, mean=self.mean)

    def turn(self, G_NH: Tensor) -> None:
        self.G_NH = G_NH
        self.G_QLF = torch.empty_like(self.T_QVF[:, : self.own])
        self.dl_QE, self.dd_QN = torch.empty_like(self.a_QE), torch.empty_like(self.d_QN)
        self.dW_FH, self.da_2H = torch.zeros_like(self.W_FH), torch.zeros_like(self.a_2H)

    def stage_from_output(self, number: int) -> tuple[Csr, Tensor, Tensor]:
        G_BH = self.G_NH.index_select(0, self.bins[number].rows)
        return *self.stage_output(number), merged_back(G_BH, self.heads, mean=self.mean)

    def from_output(self, number: int, at_hand: tuple[Csr, Tensor, Tensor]) -> None:
        """dl of the edges of a bin, and dd, their sums."""
        A_BV, d_QB, G_QBF = at_hand
        rows, edges = self.bins[number].rows, self.matrices.edges[number]
        with self.op(Op.COPY, tensor=TensorName.G):
            self.G_QLF[:, self.matrices.rows[number]] = G_QBF
        with self.op(Op.SPMM, tensor=TensorName.SCORES):
            dl_QB, dd_QB = rows_back(A_BV, d_QB, self.s_QV, self.T_QVF, self.a_QE[:, edges], G_QBF)
        with self.op(Op.COPY, tensor=TensorName.SCORES):
            self.dl_QE[:, edges] = dl_QB
            self.dd_QN.index_copy_(1, rows, dd_QB)

    def of_message(self, message: Message) -> Tensor:
        """dH = dT W^T."""
        return self._into_H(self.of_others(message.slots, message.entries))

    def of_others(self, slots: range, entries: range) -> Tensor:
        """dT of rows of others, given to the weights."""
        after_own = range(self.matrices.own + entries.start, self.matrices.own + entries.stop)
        dT_QMF = self.collect(self._of_others(slots), after_own)
        return self.into_weights(dT_QMF, self.H_KF[slots.start : slots.stop])

    def gradients(self) -> Iterator[Tensor]:
        """dd is part of dT of this rank's own rows; of the first layer, others' are given to the weights here."""
        own, A_VL = range(self.own), self.matrices.A_VL
        dT_QNF = self.collect(own, range(self.matrices.own))
        self.add_scores(dT_QNF, 0, self.dd_QN, own)
        self.dT_NH = self.into_weights(dT_QNF, self.H_NF)
        if not self.number:
            self.of_others(range(len(self.H_KF)), range(A_VL.nnz - self.matrices.own))
        yield self.dW_FH
        yield self.da_2H

    def collect(self, at: range, entries: range) -> Tensor:
        """dT of what the bins have taken of these rows."""
        A_XL = rows_between(self.matrices.A_VL, at, entries)
        with self.op(Op.SPMM, tensor=TensorName.DT):
            dT_QXF, ds_QX = columns_back(A_XL, self.a_QE, self.dl_QE, self.G_QLF)
        self.add_scores(dT_QXF, 1, ds_QX, at)
        return dT_QXF

    def add_scores(self, dT_QXF: Tensor, end: int, of_scores_QX: Tensor, at: range) -> None:
        """What came to one of the ends' scores goes on to T and to a."""
        with self.op(Op.GEMM, tensor=TensorName.SCORES):
            dT, da = scores_back(of_scores_QX, self.T_QVF[:, at.start : at.stop], self.a_2H[end])
            dT_QXF += dT
            self.da_2H[end] += da

    def into_weights(self, dT_QXF: Tensor, H_XF: Tensor) -> Tensor:
        """dW += H^T dT."""
        with self.op(Op.COPY, tensor=TensorName.DT):
            dT_XH = side_by_side(dT_QXF)
        self.kernels.gemm(H_XF.T, dT_XH, TensorName.DW, add_to=self.dW_FH)
        return dT_XH

    def stage_of_bin(self, number: int) -> Tensor:
        return self.dT_NH.index_select(0, self.bins[number].rows)

    def of_bin(self, number: int, at_hand: Tensor) -> Tensor:
        """dH = dT W^T."""
        return self._into_H(at_hand)

    def _into_H(self, dT_XH: Tensor) -> Tensor:
        return self.kernels.gemm(dT_XH, self.W_FH.T, TensorName.DH)

    def _of_others(self, slots: range) -> range:
        """Where rows of K stand in V."""
        return range(self.own + slots.start, self.own + slots.stop)


def _slices(lengths: Iterable[int]) -> list[slice]:
    """What follows each other in such lengths."""
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
