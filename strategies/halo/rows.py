"""Partition parallelism: a rank has the rows of its part, and gets the rows at its boundary from whoever has them.

What the systems of this family have in common. A part's own rows and the rows that arrive are multiplied apart; on the
way back the gradients of what arrived return to their owners, where they are added up in the order of the ranks.
Where the first layer aggregates features that never change, A X can be computed once, before training, as the authors
of BNS-GCN and PipeGCN do (`precompute`).

Legend: N this rank's vertices, K those that it needs of others, M its own that others need, with repetition; F
features. T = A H; A_NN is A at this rank's vertices, A_NK at those that arrive; A_KN is the transpose of A_NK. S_NM
adds what comes back to the rows that had left.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from harness.comm.call import Landed, Pending
from harness.kernels import Csr, transpose
from harness.kernels.gather import scatter_matrix
from harness.ledger import AxisName, Direction, Op, Phase, TensorName, apply
from harness.models import Part as WeightPart
from harness.parallel.halo import Boundary, Halo, halo_of
from harness.parallel.row_strategy import RowOperators, RowStrategy
from harness.strategy import Context, Coordinates, Counts, Piece, Words, csr_bytes

P = AxisName.P
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class Part(NamedTuple):
    """What one rank multiplies by."""

    A_NN: Csr
    A_T_NN: Csr
    A_NK: Csr
    A_KN: Csr
    halo: Halo
    S_NM: Csr


class Aggregate(Function):
    """T = A_NN H + A_NK H_K. Backward: dH_K returns; dH = A_NN^T dT + S dH_M."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, ops: "PartRows", part: Part, layer: int) -> Tensor:
        saved.ops, saved.part, saved.layer = ops, part, layer
        coming = ops.fetch(part.halo, layer, H_NF)
        T_NF = ops.kernels.spmm(part.A_NN, H_NF, TensorName.T)
        return ops.kernels.spmm(part.A_NK, coming.wait(), TensorName.T, add_to=T_NF)

    @staticmethod
    def backward(saved: Any, dT_NF: Tensor) -> tuple[Tensor, None, None, None]:
        ops, part = saved.ops, saved.part
        dH_KF = ops.kernels.spmm(part.A_KN, dT_NF, TensorName.DH)
        coming = ops.give_back(part.halo, saved.layer, dH_KF)
        dH_NF = ops.kernels.spmm(part.A_T_NN, dT_NF, TensorName.DH)
        return ops.kernels.spmm(part.S_NM, coming.wait(), TensorName.DH, add_to=dH_NF), None, None, None


class PartRows(RowOperators):
    """One rank's part. Weights are whole everywhere; their gradients are added up when the backward pass is over."""

    def __init__(self, ctx: Context, strategy: "PartScheme", beyond: Tensor | None = None) -> None:
        super().__init__(ctx, strategy, over=(P,), beyond=beyond)
        self.strategy, self.ctx = strategy, ctx
        self.parts = self.cut()
        """What each layer multiplies by."""
        self.AX_NF: Tensor | None = None
        """What the first layer aggregates, where that is computed once."""
        if strategy.precompute is not None:
            ctx.measured.chosen["first layer"] = strategy.first_layer()
        if strategy.precomputes:
            self.precompute()

    def cut(self) -> list[Part]:
        """The whole of A at this rank's vertices."""
        ctx, blocks, own = self.ctx, self.strategy.blocks(), self.ctx.at[P]
        rows, (halo, A_NK) = self.rows, halo_of(ctx, blocks, own, range(len(blocks)))
        own_rows = ctx.blocks.adjacency(rows, rows), ctx.blocks.adjacency(rows, rows, transposed=True)
        others = ctx.memory.hold_matrix(A_NK), ctx.memory.hold_matrix(transpose(A_NK))
        S_NM = ctx.memory.hold_matrix(scatter_matrix(halo.leaving, len(rows), ctx.dtype), TensorName.INDEX)
        return [Part(*own_rows, *others, halo, S_NM)] * self.model.layers

    def precompute(self) -> None:
        """A X, with the whole boundary. X itself stays only where a weight of its own multiplies it."""
        self.AX_NF = self.ctx.memory.hold(TensorName.T, self.aggregate(0, self.X))
        if not self.strategy.needs_own_features:
            self.ctx.memory.release(self.X)
            self.X = self.AX_NF

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.strategy.combine_first:
                return self.aggregate(layer, self.kernels.gemm(H_NF, W_FH, TensorName.T))
            return self.kernels.gemm(self.aggregate(layer, H_NF), W_FH, TensorName.Z)

    def aggregate(self, layer: int, H_NF: Tensor) -> Tensor:
        """T = A H."""
        if layer == 0 and self.AX_NF is not None:
            return self.AX_NF
        T_NF: Tensor = apply(self.ledger, Aggregate, H_NF, self, self.parts[layer], layer)
        return T_NF

    def fetch(self, halo: Halo, layer: int, H_NF: Tensor) -> Pending[Tensor]:
        """The rows that this rank needs of others."""
        call = halo.exchange(self.over, self.kernels, H_NF, TensorName.H)
        return call.later() if self.strategy.overlaps else Landed(call.now())

    def give_back(self, halo: Halo, layer: int, dH_KF: Tensor) -> Pending[Tensor]:
        """Their gradients go to the owners; those of this rank's rows come."""
        call = halo.back(self.over, dH_KF, TensorName.DH)
        return call.later() if self.strategy.overlaps else Landed(call.now())

    def settle(self, weights: Sequence[Tensor]) -> None:
        """The gradients of all weights are added up, each as soon as the one before it has left."""
        under_way = []
        for weight, W in zip(self.strategy.weights, weights, strict=True):
            assert W.grad is not None
            with self.ledger.phase(Phase.SYNC, weight.layer):
                under_way.append(self.over.all_reduce.later(W.grad, tensor=TensorName.DW))
        for pending in under_way:
            pending.wait()


class PartScheme(RowStrategy):
    """A part a rank, and the rows at its boundary."""

    parts = True
    models = ("gcn", "sage")
    overlaps = False
    """Whether a rank multiplies by its own rows while those of others are under way."""
    precompute: bool | None = None
    """Whether A X is to be computed once, where that can be done; None for strategies without this choice."""

    def operators(self, ctx: Context) -> PartRows:
        return PartRows(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Boundary rows of the width that is aggregated, there and back; the gradients; one word for the loss."""
        words, travelling = Words(self.grid), self.travelling(self.boundary(at, counts), epoch)
        for layer in self.exchanging:
            (arriving, leaving), width = travelling[layer], self.width(layer)
            words.put(FORWARD, layer, Op.ALL_TO_ALL, P, TensorName.H, width * arriving)
            if self.combine_first or self.wants_dH(layer):
                words.put(BACKWARD, layer, Op.ALL_TO_ALL, P, TensorName.DH, width * leaving)
        for weight in self.weights:
            f_in, f_out = weight.shape
            words.put(BACKWARD, weight.layer, Op.ALL_REDUCE, P, TensorName.DW, f_in * f_out)
        words.put(FORWARD, -1, Op.ALL_REDUCE, P, TensorName.LOSS, 1)
        return words

    @property
    def combine_first(self) -> bool:
        return self.spec.model.order == "combine_first"

    @property
    def every_epoch(self) -> str | None:
        """Why the first layer aggregates in every epoch; None where A X is computed once."""
        if not self.precompute:
            return "precompute is off"
        if self.spec.model.kind == "gat":
            return "attention weighs the neighbours anew"
        if self.spec.training.features:
            return "the features are trained"
        if self.spec.model.projection:
            return "a trained projection comes before it"
        return "it combines first" if self.combine_first else None

    @property
    def precomputes(self) -> bool:
        return self.every_epoch is None

    def first_layer(self) -> str:
        """When the first layer aggregates, for the record."""
        why = self.every_epoch
        return f"aggregated in every epoch: {why}" if why else "aggregated once, before training"

    @property
    def exchanging(self) -> range:
        """The layers whose boundary travels in an epoch."""
        return range(int(self.precomputes), len(self.shapes))

    @property
    def needs_own_features(self) -> bool:
        """Whether X is multiplied by a weight of its own, beside A X."""
        return any(weight.part is WeightPart.ROOT for weight in self.weights)

    def width(self, layer: int) -> int:
        """Of the rows that a layer aggregates."""
        return self.shapes[layer][self.combine_first]

    def travelling(self, boundary: Boundary, epoch: int) -> list[tuple[int, int]]:
        """Layer by layer of an epoch, rows that arrive, and rows of which gradients come back."""
        every_layer = sum(boundary.arriving().values()), sum(boundary.leaving().values())
        return [every_layer] * len(self.shapes)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """A_NN and, where it differs, its transpose; A_NK and its transpose; the rows that leave, and S; A X."""
        rows, boundary, precision = self.rows(at), self.boundary(at, counts), self.spec.precision
        own = self.bytes_of_matrices([Piece(rows, rows)], counts)
        nonzeros, leaving = boundary.nonzeros(), sum(boundary.leaving().values())
        back, held = (
            csr_bytes(sum(boundary.arriving().values()), nonzeros, precision),
            super().memory(at, counts),
        )
        if self.precomputes:
            held[TensorName.T] = held[TensorName.X]
            held[TensorName.X] *= self.needs_own_features
        return {
            **held,
            TensorName.A: own + boundary.compact_bytes(precision) + back,
            TensorName.INDEX: boundary.index_bytes() + csr_bytes(len(rows), leaving, precision),
        }
