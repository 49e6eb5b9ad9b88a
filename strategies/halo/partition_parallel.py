"""Partition parallelism: a rank has the rows of its part of the graph and exchanges the rows at the boundary.

The systems of this family differ in three choices, which are passed to `PartOperators`:

1. which rows cross the boundary: all (`LocalGraph.build_layers`), a sample (`bns`), or only those that the receiving
   rank does not compute itself (`neutronstar`);
2. when a layer uses them: in the same step (`Exchange`) or in the next epoch (`pipegcn`);
3. the kind of layer: a convolution (`PartMatrices`) or attention (`harness.strategy.parallel.row_attention`).

A layer multiplies a part's own rows and the received rows separately. In the backward pass, the gradients of received
rows return to the owners, which add them in the order of the ranks. If the first layer aggregates features that never
change, A X can be computed once, before training, as in the authors' code of BNS-GCN and PipeGCN (`precompute`).

Legend: N this rank's vertices, K the vertices of other ranks at which N has nonzeros, M the vertices of N that other
ranks need, with repetition; V are N and then K; F features in, H features out, of all heads. T = A H; T = H W of
attention. A_NN is A at this rank's vertices, A_NK at K; A_KN is the transpose of A_NK. S_NM adds returned gradients to
the rows that were sent.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd import Function

from harness.comm.call import Call, CompletedCall, Pending
from harness.kernels import Csr, transpose
from harness.kernels.parts import build_scatter_matrix, hstack
from harness.ledger import AxisName, Direction, Op, Phase, TensorName, apply
from harness.strategy import Context, Coordinates, Counts, Piece, Words, csr_bytes, transposed_index_bytes
from harness.strategy.parallel.halo import Boundary, Halo, build_halo
from harness.strategy.parallel.row_attention import Edges, attend_rows, build_edges
from harness.strategy.parallel.row_strategy import RowOperators, RowStrategy, reduce_all_gradients

P = AxisName.P
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class PartMatrices(NamedTuple):
    """The rows of A that a convolution multiplies by, split at the boundary, and their transposes."""

    A_NN: Csr
    A_T_NN: Csr
    A_NK: Csr
    A_KN: Csr


class LayerPart(NamedTuple):
    """One rank's share of the graph and of the exchange, for one layer."""

    matrices: PartMatrices | Edges
    halo: Halo
    S_NM: Csr
    replicas: Tensor | None = None
    """Vertices of other ranks whose rows this layer computes too."""
    is_exchanged: bool = True
    """False if no rank fetches a row for this layer, which then makes no call."""


class LocalGraph:
    """The rows of A of one part, on the host."""

    def __init__(self, ctx: Context, blocks: Sequence[range]) -> None:
        self.ctx, self.rows = ctx, blocks[ctx.at[P]]
        self.halo, self.A_NK = build_halo(ctx, blocks, ctx.at[P], range(len(blocks)))
        self.A_KN = transpose(self.A_NK)

    @cached_property
    def A_NN(self) -> Csr:
        return self.ctx.blocks.host_adjacency(self.rows, self.rows)

    def build_matrices(self, A_NK: Csr, A_KN: Csr, keep: Callable[[Csr], Csr]) -> PartMatrices | Edges:
        """Return a layer's matrices, given the columns of the boundary; `keep` moves a matrix to the device."""
        if self.ctx.spec.model.kind == "gat":
            return build_edges(hstack([self.A_NN, A_NK]), keep)
        adjacency, rows = self.ctx.blocks.adjacency, self.rows
        own = adjacency(rows, rows), adjacency(rows, rows, transposed=True)
        return PartMatrices(*own, keep(A_NK), keep(A_KN))

    def build_layers(self) -> list[LayerPart]:
        """Return the part of each layer, with the whole boundary."""
        ctx = self.ctx
        S_NM = build_scatter_matrix(self.halo.send_rows, len(self.rows), ctx.dtype)
        matrices = self.build_matrices(self.A_NK, self.A_KN, ctx.memory.hold_matrix)
        part = LayerPart(matrices, self.halo, ctx.memory.hold_matrix(S_NM, TensorName.INDEX))
        return [part] * ctx.spec.model.layers


class Exchange:
    """Issues the calls that move rows and gradients; with `overlap`, waits for a result when it is used."""

    def __init__(self, *, overlap: bool = False) -> None:
        self.overlap = overlap

    def issue(
        self, call: Call[Tensor], direction: Direction, layer: int, step: int | None
    ) -> Pending[Tensor]:
        """Issue a call, and return the rows or gradients that a layer uses now; `step` is None outside training."""
        return call.issue(overlap=self.overlap)


class AggregatePart(Function):
    """T = A_NN H + A_NK H_K. Backward, dH_K = A_KN dT returns to the owners, and dH = A_NN^T dT + S dH_M."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, A: PartMatrices, ops: "PartOperators", layer: int) -> Tensor:
        saved.A, saved.ops, saved.layer = A, ops, layer
        fetched = ops.fetch_rows(layer, H_NF)
        T_NF = ops.kernels.spmm(A.A_NN, H_NF, TensorName.T)
        return ops.kernels.spmm(A.A_NK, fetched.wait(), TensorName.T, add_to=T_NF)

    @staticmethod
    def backward(saved: Any, dT_NF: Tensor) -> tuple[Tensor, None, None, None]:
        A, ops, layer = saved.A, saved.ops, saved.layer
        dH_KF = ops.kernels.spmm(A.A_KN, dT_NF, TensorName.DH)
        returned = ops.return_gradients(layer, dH_KF)
        dH_NF = ops.kernels.spmm(A.A_T_NN, dT_NF, TensorName.DH)
        S_NM = ops.parts[layer].S_NM
        return ops.kernels.spmm(S_NM, returned.wait(), TensorName.DH, add_to=dH_NF), None, None, None


class WaitForHalo(Function):
    """Waits for H_K. Backward, dH_K returns to the owners, and dH = S dH_M."""

    @staticmethod
    def forward(
        saved: Any, _H_NF: Tensor, fetched: Pending[Tensor], ops: "PartOperators", layer: int
    ) -> Tensor:
        saved.ops, saved.layer = ops, layer
        return fetched.wait()

    @staticmethod
    def backward(saved: Any, dH_KF: Tensor) -> tuple[Tensor, None, None, None]:
        ops, layer = saved.ops, saved.layer
        returned = ops.return_gradients(layer, dH_KF)
        return ops.kernels.spmm(ops.parts[layer].S_NM, returned.wait(), TensorName.DH), None, None, None


class PartOperators(RowOperators):
    """One rank's operators. Weights are replicated; their gradients are summed after the backward pass."""

    def __init__(
        self,
        ctx: Context,
        strategy: "PartitionParallel",
        parts: Sequence[LayerPart],
        exchange: Exchange,
        *,
        sample: Callable[[int], LayerPart] | None = None,
        replicas: Tensor | None = None,
    ) -> None:
        """Create the operators; `parts` are the layers' parts of the whole graph.

        `sample` draws the part of all layers for a training step. `replicas` are vertices of other ranks whose features
        this rank holds after its own.
        """
        super().__init__(ctx, strategy, over=(P,), others=replicas)
        self.strategy, self.parts, self.exchange, self.sample = strategy, parts, exchange, sample
        self.AX_NF: Tensor | None = None
        """A X of the first layer, if it is computed once."""
        if strategy.precompute is not None:
            ctx.measured.chosen["first layer"] = strategy.describe_first_layer()
        if strategy.precomputes:
            AX_NF = self.aggregate(0, self.X, TensorName.T)
            self.AX_NF = self.hold_aggregated_features(AX_NF, self.X if strategy.needs_own_features else None)

    def for_step(self, step: int) -> Self:
        ops = super().for_step(step)
        if self.sample:
            with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.INDEX):
                ops.parts = [self.sample(step)] * len(self.parts)
        return ops

    def rows_of(self, layer: int) -> Tensor:
        own, replicas = super().rows_of(layer), self.parts[layer].replicas
        return own if replicas is None else torch.cat([own, replicas])

    def aggregate(self, layer: int, H_NF: Tensor, makes: TensorName) -> Tensor:
        """T = A H."""
        if layer == 0 and self.AX_NF is not None:
            return self.AX_NF
        T_NF: Tensor = apply(self.ledger, AggregatePart, H_NF, self.parts[layer].matrices, self, layer)
        return T_NF

    def attend(self, layer: int, H_NF: Tensor, W_FH: Tensor, a_2H: Tensor) -> Tensor:
        """Compute T = H W of own and fetched rows, then attention. If W comes first, rows of T are sent, not of H."""
        edges = self.parts[layer].matrices
        assert isinstance(edges, Edges)
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.combines_first(layer):
                T_NH = self.kernels.gemm(H_NF, W_FH, TensorName.T)
                T_KH = self.wait_for_rows(layer, T_NH, self.fetch_rows(layer, T_NH.detach()))
            else:
                fetched = self.fetch_rows(layer, H_NF.detach())
                T_NH = self.kernels.gemm(H_NF, W_FH, TensorName.T)
                T_KH = self.kernels.gemm(self.wait_for_rows(layer, H_NF, fetched), W_FH, TensorName.T)
            T_VH = self.kernels.run(Op.COPY, TensorName.T, lambda *each: torch.cat(each), T_NH, T_KH)
            return attend_rows(self, layer, edges, T_VH, a_2H)

    def wait_for_rows(self, layer: int, H_NF: Tensor, fetched: Pending[Tensor]) -> Tensor:
        """Return the rows of a call in flight; their gradients return to the owners' rows of H."""
        H_KF: Tensor = apply(self.ledger, WaitForHalo, H_NF, fetched, self, layer)
        return H_KF

    def fetch_rows(self, layer: int, H_NF: Tensor) -> Pending[Tensor]:
        """Fetch H_K: each rank sends the rows that others need and receives the rows that it needs."""
        part = self.parts[layer]
        if not part.is_exchanged:
            return CompletedCall(H_NF[:0])
        call = part.halo.exchange(self.over, self.kernels, H_NF, TensorName.H)
        return self.exchange.issue(call, FORWARD, layer, self.step)

    def return_gradients(self, layer: int, dH_KF: Tensor) -> Pending[Tensor]:
        """Fetch dH_M: each rank sends gradients to the owners of the rows, and receives its own rows' gradients."""
        part = self.parts[layer]
        if not part.is_exchanged:
            return CompletedCall(dH_KF)
        call = part.halo.exchange_gradients(self.over, dH_KF, TensorName.DH)
        return self.exchange.issue(call, BACKWARD, layer, self.step)

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Sum the gradients of all weights in one call."""
        reduce_all_gradients(weights, self.over, [weight.layer for weight in self.strategy.weights])


class PartitionParallel(RowStrategy):
    """A strategy with one part of the graph for each rank, which exchanges rows at the boundaries."""

    has_model_parts = True
    can_recompute = True
    models: ClassVar[tuple[str, ...]] = ("gcn", "sage", "gat")

    def is_owner_computes(self) -> bool:
        return True

    @property
    def precompute(self) -> bool | None:
        """True to compute A X once where possible; None for strategies without this choice."""
        return None

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Return the words of boundary rows, forward and backward, of dW and of the loss."""
        return self.words_of_rows(self.exchanged_rows(self.boundary(at, counts), epoch))

    def words_of_rows(self, exchanged_rows: Sequence[tuple[int, int]]) -> Words:
        """Return the words of an epoch, given the rows that are exchanged for each layer (`exchanged_rows`)."""
        words = Words(self.grid, self.recomputed_layers)
        for layer in self.exchanging_layers:
            (arriving, leaving), width = exchanged_rows[layer], self.aggregated_width(layer)
            words.add(FORWARD, layer, Op.ALL_TO_ALL, P, TensorName.H, width * arriving)
            if self.combines_first(layer) or self.needs_dH(layer):
                words.add(BACKWARD, layer, Op.ALL_TO_ALL, P, TensorName.DH, width * leaving)
        self.add_reductions(words, P)
        return words

    @property
    def precompute_refusal(self) -> str | None:
        """Why the first layer aggregates in every epoch; None where A X is computed once."""
        if not self.precompute:
            return "precompute is off"
        if self.spec.model.kind == "gat":
            return "attention weighs the neighbours anew"
        if self.spec.training.features:
            return "the features are trained"
        if self.spec.model.projection:
            return "a trained projection comes before it"
        return "it combines first" if self.spec.model.order == "combine_first" else None

    @property
    def precomputes(self) -> bool:
        return self.precompute_refusal is None

    def is_narrower_combined(self, layer: int) -> bool:
        """Return whether H W should come first. A X that is computed once takes no product with A in an epoch."""
        return super().is_narrower_combined(layer) and not (self.precomputes and layer == 0)

    def describe_first_layer(self) -> str:
        """Return a description for the run's record: aggregated once or in every epoch, and why."""
        reason = self.precompute_refusal
        return f"aggregated in every epoch: {reason}" if reason else "aggregated once, before training"

    @property
    def exchanging_layers(self) -> range:
        """The layers whose boundary rows are exchanged in an epoch."""
        return range(int(self.precomputes), len(self.shapes))

    def aggregated_width(self, layer: int) -> int:
        """Return the width of the rows that a layer aggregates."""
        return self.shapes[layer][self.combines_first(layer)]

    def exchanged_rows(self, boundary: Boundary, epoch: int) -> list[tuple[int, int]]:
        """Return the number of rows that arrive, and of rows whose gradients return, for each layer of an epoch."""
        every_layer = sum(boundary.incoming_rows().values()), sum(boundary.outgoing_rows().values())
        return [every_layer] * len(self.shapes)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes of A_NN and, where it differs, its transpose; A_NK and its transpose; M; S; and A X.

        For attention, A_NV and its transpose with positions replace these matrices.
        """
        rows, boundary, precision = self.rows(at), self.boundary(at, counts), self.spec.precision
        nonzeros, leaving = boundary.nonzeros(), sum(boundary.outgoing_rows().values())
        arriving, held = sum(boundary.incoming_rows().values()), super().memory(at, counts)
        if self.spec.model.kind == "gat":
            entries = counts.nonzeros(rows, rows) + nonzeros
            A = csr_bytes(len(rows), entries, precision) + transposed_index_bytes(
                len(rows) + arriving, entries
            )
        else:
            A = self.matrices_bytes([Piece(rows, rows)], counts)
            A += boundary.compact_bytes(precision) + csr_bytes(arriving, nonzeros, precision)
        if self.precomputes:
            held[TensorName.T] = held[TensorName.X]
            held[TensorName.X] *= self.needs_own_features
        return {
            **held,
            TensorName.A: A,
            TensorName.INDEX: boundary.index_bytes() + csr_bytes(len(rows), leaving, precision),
        }
