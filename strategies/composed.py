"""Compose: what each system does once or not at all, together in one plan for a graph, a model and a grid.

Four parts, each exact, and each of another system here:

1. A X of the first layer is computed once, before training, where the features never change (BNS-GCN). In an epoch the
   first layer is then a product with W alone.
2. Every other layer takes the order of its products and the layouts at its ends by their words (`rdm`). On P x 1, the
   side of the layer with fewer columns travels.
3. A product with A gathers over the chunks of A those rows alone at which the chunk has a nonzero (CAGNET, section
   IV-A6). A partition of the vertices into chunks puts neighbours together.
4. By choice, on P x 1, A X is kept for the rows of other chunks that a chunk needs, too. Every rank then computes these
   rows of the first layer itself, and differentiates them for its own losses, so the second layer sends nothing
   (NeutronStar).

So R x C ranges from the halo exchange of parts, P x 1, to changes of layout with A whole on every rank, 1 x P, of which
the first suits graphs that have good partitions, and the second those that do not. `grid: best` chooses.

Legend as in `rdm`: M the vertices of this rank's chunk, K those of other chunks at which its rows have nonzeros, N this
rank's part of M, V first N, then K on P x 1; F features in.
"""

from itertools import takewhile

import torch
from torch import Tensor

from harness.comm.call import CompletedCall
from harness.kernels import transpose
from harness.kernels.parts import drop_empty_columns, hstack, nonempty_columns
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.parallel.halo import BlockRow, build_block_row
from harness.parallel.row_strategy import dense_bytes
from harness.ranges import split_evenly, subrange
from harness.strategies.rdm import (
    BACKWARD,
    COL,
    FORWARD,
    PRODUCTS,
    ROW,
    LayerPlan,
    LayerStage,
    Rdm,
    RdmOperators,
)
from harness.strategy import LONG, WORD, Context, Coordinates, Counts, Piece, Words, csr_bytes


class ComposedOperators(RdmOperators):
    """One rank's operators: those of `rdm`, but for the rows that products gather, and a first layer that has A X."""

    strategy: "Compose"

    def __init__(self, ctx: Context, strategy: "Compose") -> None:
        super().__init__(ctx, strategy)
        self.AX: Tensor | None = None
        """A X of the first layer, if it is computed once: the rows N, or with replicas V."""
        ctx.measured.chosen["first layer"] = strategy.first_layer()
        if strategy.replicates:
            self.cut_for_replicas(ctx)
        if strategy.precomputes:
            X, T, hold = self.X, TensorName.T, ctx.memory.hold
            self.AX = self.X = hold(T, self.with_replicas(self.aggregated(X), T))
            ctx.memory.release(X)
            if strategy.needs_own_features:
                self.X = hold(TensorName.X, self.with_replicas(X, TensorName.X))

    def aggregated(self, X_NF: Tensor) -> Tensor:
        """A X in whole rows, by the stages of (A X) W before the product with W."""
        with self.ledger.phase(Phase.CONVOLVE, 0):
            for stage in self.strategy.setup():
                X_NF = self.moved(X_NF, stage)
            return X_NF

    def convolve(self, layer: int, H: Tensor, W_FH: Tensor) -> Tensor:
        return super().convolve(layer, H if layer or self.AX is None else self.AX, W_FH)

    def rows_of_A(self, ctx: Context, *, transposed: bool) -> BlockRow:
        """The rows of this rank's chunk, cut at the chunk's boundary; A is its own transpose unless it is directed."""
        chunks, row = self.strategy.blocks(), ctx.at[ROW]
        if not transposed or ctx.facts.directed:
            return build_block_row(ctx, chunks, row, range(len(chunks)), transposed=transposed)
        A_MV: BlockRow = self.A_MV
        return A_MV

    def times(self, A: BlockRow, tensor: TensorName, H_M: Tensor) -> Tensor:
        """A H: the rows that other chunks need leave, this chunk's own are multiplied, then those that arrived."""
        spmm, makes = self.kernels.spmm, PRODUCTS[tensor]
        assert A.A_NN is not None, "every chunk is a stage of its own product"
        if self.down.size == 1:
            return spmm(A.A_NN, H_M, makes)
        exchange = A.halo.exchange(self.down, self.kernels, H_M, tensor)
        arriving = exchange.later() if self.strategy.params.overlap else CompletedCall(exchange.now())
        T_M = spmm(A.A_NN, H_M, makes)
        return spmm(A.A_NK, arriving.wait(), makes, add_to=T_M)

    # Replicas: the rows K of the first layer's output.

    def cut_for_replicas(self, ctx: Context) -> None:
        """A of this chunk's rows at V, its transpose, and K."""
        chunks, hold = self.strategy.blocks(), ctx.memory.hold_matrix
        own = chunks[ctx.at[ROW]]
        row = {chunk: ctx.blocks.host_block(own, chunk) for chunk in chunks if chunk != own}
        A_NV = hstack([ctx.blocks.host_block(own, own), *map(drop_empty_columns, row.values())])
        self.A_NV, self.A_VN = hold(A_NV), hold(transpose(A_NV))
        K = torch.cat([nonempty_columns(A) + chunk.start for chunk, A in row.items()])
        self.K = ctx.memory.hold(TensorName.INDEX, K)

    def with_replicas(self, x_NF: Tensor, tensor: TensorName) -> Tensor:
        """The rows V of what never changes; without replicas the rows N."""
        if not self.strategy.replicates:
            return x_NF
        with self.ledger.phase(Phase.CONVOLVE, 0):
            x_KF = self.A_MV.halo.exchange(self.down, self.kernels, x_NF, tensor).now()
            return torch.cat([x_NF, x_KF])

    def moved(self, H: Tensor, stage: LayerStage) -> Tensor:
        if stage.way == "times A here":
            return self.kernels.aggregate(self.A_NV, self.A_VN, H, PRODUCTS[stage.tensor])
        return super().moved(H, stage)

    def rows_of(self, layer: int) -> Tensor:
        rows = super().rows_of(layer)
        return torch.cat([rows, self.K]) if self.strategy.replicates and layer == 0 else rows


class Compose(Rdm):
    """Layers planned by their words, for any grid of chunks of A by slices of H."""

    name = "compose"
    paper = "none: RDM's plans, CAGNET's needed rows and BNS-GCN's first layer together"
    rows_over = partitioned_over = ROW

    class Params(Rdm.Params):
        """The parameters of `rdm`, the first layer, and overlap."""

        precompute: bool = True
        """A X is computed once, before training, where features never change."""
        overlap: bool = False
        """A rank multiplies by the rows of its chunk while the rows of others are under way."""
        replicas: bool = False
        """On P x 1 a rank also computes the first layer's rows that its second layer needs of others."""

    params: Params

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        """First a chunk of A on every rank, then ever fewer."""
        return super().grids(ranks)[::-1]

    def operators(self, ctx: Context) -> ComposedOperators:
        return ComposedOperators(ctx, self)

    def is_owner_computes(self) -> bool:
        """Without slices and replicas this is a halo exchange, so the boundary is a lower bound of its words."""
        return self.grid[COL] == 1 and not self.replicates

    # Replicas.

    @property
    def replicates(self) -> bool:
        """True if the first layer's rows at V are computed here, and the second layer sends nothing."""
        R, C = self.grid[ROW], self.grid[COL]
        return self.params.replicas and self.precomputes and C == 1 < R and len(self.shapes) > 1

    def here(self, layer: int) -> bool:
        return self.replicates and layer == 1

    # Who holds what.

    def blocks(self) -> list[range]:
        return self.chunks()

    def rows_of_chunk(self, at: Coordinates) -> list[range]:
        """A chunk is a part of the partition, and the ranks of a chunk share it out evenly."""
        chunk = self.facts.blocks(self.grid[ROW])[at[ROW]]
        return [subrange(chunk, rows) for rows in split_evenly(len(chunk), self.grid[COL])]

    # The first layer: A X, computed once.

    @property
    def precomputes(self) -> bool:
        """True if nothing below the first layer changes, and the layer may multiply by A first."""
        return self.params.precompute and not self.params.decoupled and not self.wants_dH(0)

    @property
    def needs_own_features(self) -> bool:
        """True if X is multiplied by a weight of its own, or in every epoch by A."""
        return not self.precomputes or self.spec.model.kind == "sage"

    def first_layer(self) -> str:
        """The record's line about the first layer."""
        if not self.precomputes:
            return "A multiplies in every epoch"
        more = ", also for the rows that the second layer needs of others" if self.replicates else ""
        return f"A X computed once, before training{more}"

    def setup(self) -> list[LayerStage]:
        """The stages that make A X, before training."""
        stages = LayerPlan(combines=False, power=1, rows_before=True, rows_after=True).stages(*self.shapes[0])
        return list(takewhile(lambda stage: stage.way != "times W", stages))

    def words_of_setup(self, at: Coordinates, counts: Counts) -> Words:
        """The words that arrive at a rank before training."""
        words = Words(self.grid)
        for stage in self.setup() if self.precomputes else ():
            words.put(FORWARD, 0, *self.arriving(stage, FORWARD, at, counts))
        if self.replicates:
            op, rows = self.gathered(at, counts, FORWARD)
            for tensor in (TensorName.T, TensorName.X)[: 1 + self.needs_own_features]:
                words.put(FORWARD, 0, op, ROW, tensor, rows * self.facts.features)
        return words

    def products_per_layer(self, layer: int) -> int:
        """The products with A in a layer, in an epoch."""
        return 0 if self.precomputes and layer == 0 else super().products_per_layer(layer)

    def orders(self, layer: int) -> list[bool]:
        if self.here(layer) and self.params.order == "fewest":  # neither order moves a word
            f_in, f_out = self.shapes[layer]
            return [f_out < f_in]
        return super().orders(layer) if self.products_per_layer(layer) else [True]

    def layouts(self, boundary: int) -> list[bool]:
        """A X has whole rows, and so has the product with W. The next layer moves as many words if it gets columns."""
        return [True] if self.precomputes and boundary < 2 else super().layouts(boundary)

    # Words and bytes.

    def gathered_per_row(self) -> float:
        """At most all rows of other chunks, and at most one for each nonzero in them."""
        R, degree = self.grid[ROW], self.facts.nonzeros / self.facts.vertices
        return min(R - 1, degree * (R - 1) / R)

    def gathered(self, at: Coordinates, counts: Counts, direction: Direction) -> tuple[Op, int]:
        """The columns of this chunk's A that have a nonzero, those at its own vertices excepted."""
        transposed = direction is BACKWARD and self.facts.directed
        return Op.ALL_TO_ALL, sum(self.boundary(at, counts).incoming_rows(transposed=transposed).values())

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """A_MM and A_MK, the transposes if A is directed, and indices of the rows that leave; X, or A X of N.

        With replicas also A_NV, its transpose and K; and A X of V.
        """
        chunk, boundary, held = self.chunk(at), self.boundary(at, counts), dense_bytes(self, at)
        sizes = [
            boundary.compact_bytes(self.spec.precision, transposed=side) for side in self.transposed_options()
        ]
        held[TensorName.A] = self.matrices_bytes([Piece(chunk, chunk)], counts) + sum(sizes)
        held[TensorName.INDEX] = sum(
            boundary.index_bytes(transposed=side) for side in self.transposed_options()
        )
        if self.replicates:
            K, precision = sum(boundary.incoming_rows().values()), self.spec.precision
            nonzeros = counts.nonzeros(chunk, chunk) + boundary.nonzeros()
            held[TensorName.A] += sum(
                csr_bytes(rows, nonzeros, precision) for rows in (len(chunk), len(chunk) + K)
            )
            held[TensorName.INDEX] += LONG * K
            held[TensorName.X] += WORD[precision] * K * self.facts.features
        if self.precomputes:
            held[TensorName.T] = held[TensorName.X]
            held[TensorName.X] *= self.needs_own_features
        return held
