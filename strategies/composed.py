"""Compose: the communication savings of four systems, combined in one plan for a graph, a model and a grid.

Each of the four is exact:

1. If features never change, A X of the first layer is computed once, before training (BNS-GCN). In an epoch the first
   layer then only multiplies by W.
2. Every other layer chooses the order of its products and its layouts by the words that they move (`rdm`). On P x 1,
   the narrower side of the layer is sent.
3. A product with A gathers only the rows at which a chunk of A has a nonzero (CAGNET, section IV-A6). A partition of
   the vertices into chunks keeps neighbours together.
4. Optionally, on P x 1, each rank also keeps A X for the rows that it needs of other chunks. It computes these rows of
   the first layer itself and differentiates them for its own loss, so the second layer sends nothing (NeutronStar).

The grids R x C range from a halo exchange between parts, P x 1, which suits graphs with good partitions, to
redistribution with A replicated, 1 x P, which suits graphs without. `grid: best` chooses.

Legend as in `rdm`: M the vertices of this rank's chunk, K those of other chunks at which its rows have nonzeros, N this
rank's part of M, V first N, then K on P x 1; F features in.
"""

from itertools import takewhile

import torch
from torch import Tensor

from harness.base.ranges import slice_range, split_evenly
from harness.kernels import transpose
from harness.kernels.parts import drop_empty_columns, hstack, nonempty_columns
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
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
from harness.strategy.parallel.halo import BlockRow, build_block_row
from harness.strategy.parallel.row_strategy import dense_bytes


class ComposedOperators(RdmOperators):
    """The operators of `rdm`, except that products gather needed rows only and the first layer may start from A X."""

    strategy: "Compose"

    def __init__(self, ctx: Context, strategy: "Compose") -> None:
        super().__init__(ctx, strategy)
        self.AX: Tensor | None = None
        """A X of the first layer if it is computed once: the rows N, or V with replicas."""
        ctx.measured.chosen["first layer"] = strategy.describe_first_layer()
        if strategy.has_replicas:
            self.build_replica_matrices(ctx)
        if strategy.precomputes:
            AX = self.append_replicas(self.aggregate_features(self.X), TensorName.T)
            X = self.append_replicas(self.X, TensorName.X) if strategy.needs_own_features else None
            self.AX = self.hold_aggregated_features(AX, X)

    def aggregate_features(self, X_NF: Tensor) -> Tensor:
        """Return A X in whole rows, by the stages of (A X) W that precede the product with W."""
        with self.ledger.phase(Phase.CONVOLVE, 0):
            for stage in self.strategy.setup_stages():
                X_NF = self.apply_stage(X_NF, stage)
            return X_NF

    def convolve(self, layer: int, H: Tensor, W_FH: Tensor) -> Tensor:
        return super().convolve(layer, H if layer or self.AX is None else self.AX, W_FH)

    def load_rows_of_A(self, ctx: Context, *, transposed: bool) -> BlockRow:
        """Return the rows of A in this rank's chunk, split at its boundary. An undirected A is its own transpose."""
        chunks, row = self.strategy.blocks(), ctx.at[ROW]
        if not transposed or ctx.facts.directed:
            return build_block_row(ctx, chunks, row, range(len(chunks)), transposed=transposed)
        A_MV: BlockRow = self.A_MV
        return A_MV

    def multiply_by_A(self, A: BlockRow, tensor: TensorName, H_M: Tensor) -> Tensor:
        """Return A H from this chunk's rows of H and the rows that it needs of other chunks."""
        makes, overlap = PRODUCTS[tensor], self.strategy.params.overlap
        if self.down.size == 1:
            assert A.A_NN is not None, "every chunk is a stage of its own product"
            return self.kernels.spmm(A.A_NN, H_M, makes)
        return A.multiply(self.down, self.kernels, H_M, moves=tensor, makes=makes, overlap=overlap)

    # Replicas: the rows K of the first layer's output.

    def build_replica_matrices(self, ctx: Context) -> None:
        """Hold A of this chunk's rows at V, its transpose, and K."""
        chunks, hold = self.strategy.blocks(), ctx.memory.hold_matrix
        own = chunks[ctx.at[ROW]]
        row = {chunk: ctx.blocks.host_adjacency(own, chunk) for chunk in chunks if chunk != own}
        A_NV = hstack([ctx.blocks.host_adjacency(own, own), *map(drop_empty_columns, row.values())])
        self.A_NV, self.A_VN = hold(A_NV), hold(transpose(A_NV))
        K = torch.cat([nonempty_columns(A) + chunk.start for chunk, A in row.items()])
        self.K = ctx.memory.hold(TensorName.INDEX, K)

    def append_replicas(self, x_NF: Tensor, tensor: TensorName) -> Tensor:
        """Fetch the rows K of a matrix that never changes and return its rows V; without replicas, the rows N."""
        if not self.strategy.has_replicas:
            return x_NF
        with self.ledger.phase(Phase.CONVOLVE, 0):
            x_KF = self.A_MV.halo.exchange(self.down, self.kernels, x_NF, tensor).now()
            return torch.cat([x_NF, x_KF])

    def apply_stage(self, H: Tensor, stage: LayerStage) -> Tensor:
        if stage.kind == "times A here":
            return self.kernels.aggregate(self.A_NV, self.A_VN, H, PRODUCTS[stage.tensor])
        return super().apply_stage(H, stage)

    def rows_of(self, layer: int) -> Tensor:
        rows = super().rows_of(layer)
        return torch.cat([rows, self.K]) if self.strategy.has_replicas and layer == 0 else rows


class Compose(Rdm):
    """Layers planned to move the fewest words, for any grid of chunks of A by slices of H."""

    name = "compose"
    paper = "none: RDM's plans, CAGNET's needed rows and BNS-GCN's first layer together"
    rows_over = partitioned_over = ROW

    class Params(Rdm.Params):
        """The parameters of `rdm`, precomputation, overlap and replicas."""

        precompute: bool = True
        """A X is computed once, before training, if features never change."""
        overlap: bool = False
        """A rank multiplies by the rows of its chunk while the rows of others are in flight."""
        replicas: bool = False
        """On P x 1 a rank also computes the rows of the first layer that its second layer needs of others."""

    params: Params

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        """Return all grids, first one chunk of A for each rank, then fewer and fewer chunks."""
        return super().grids(ranks)[::-1]

    def operators(self, ctx: Context) -> ComposedOperators:
        return ComposedOperators(ctx, self)

    def is_owner_computes(self) -> bool:
        """Return whether this is a halo exchange, without slices and replicas, whose boundary bounds the words."""
        return self.grid[COL] == 1 and not self.has_replicas

    # Replicas.

    @property
    def has_replicas(self) -> bool:
        """True if this rank computes the rows V of the first layer, so that the second layer makes no call."""
        R, C = self.grid[ROW], self.grid[COL]
        return self.params.replicas and self.precomputes and C == 1 < R and len(self.shapes) > 1

    def has_all_rows(self, layer: int) -> bool:
        return self.has_replicas and layer == 1

    # The pieces that ranks hold.

    def blocks(self) -> list[range]:
        return self.chunks()

    def rows_of_chunk(self, at: Coordinates) -> list[range]:
        """Return the rows of each rank in a chunk, which is a part of the partition, divided evenly."""
        chunk = self.facts.blocks(self.grid[ROW])[at[ROW]]
        return [slice_range(chunk, rows) for rows in split_evenly(len(chunk), self.grid[COL])]

    # The first layer: A X, computed once.

    @property
    def precomputes(self) -> bool:
        """True if the first layer's input never changes, and the layer may multiply by A first."""
        return self.params.precompute and not self.params.decoupled and not self.needs_dH(0)

    def describe_first_layer(self) -> str:
        """Return a description of the first layer for the run's record."""
        if not self.precomputes:
            return "A multiplies in every epoch"
        more = ", also for the rows that the second layer needs of others" if self.has_replicas else ""
        return f"A X computed once, before training{more}"

    def setup_stages(self) -> list[LayerStage]:
        """Return the stages that compute A X before training."""
        plan = LayerPlan(combines_first=False, power=1, rows_before=True, rows_after=True)
        return list(takewhile(lambda stage: stage.kind != "times W", plan.stages(*self.shapes[0])))

    def setup_words(self, at: Coordinates, counts: Counts) -> Words:
        """Return the words that arrive at a rank before training."""
        words = Words(self.grid)
        for stage in self.setup_stages() if self.precomputes else ():
            words.add(FORWARD, 0, *self.stage_call(stage, FORWARD, at, counts))
        if self.has_replicas:
            op, rows = self.gather_call(at, counts, FORWARD)
            for tensor in (TensorName.T, TensorName.X)[: 1 + self.needs_own_features]:
                words.add(FORWARD, 0, op, ROW, tensor, rows * self.facts.features)
        return words

    def products_per_layer(self, layer: int) -> int:
        """Return the number of products with A in a layer and epoch."""
        return 0 if self.precomputes and layer == 0 else super().products_per_layer(layer)

    def allowed_orders(self, layer: int) -> list[bool]:
        if self.has_all_rows(layer) and self.params.order == "fewest":  # neither order moves any words
            f_in, f_out = self.shapes[layer]
            return [f_out < f_in]
        return super().allowed_orders(layer) if self.products_per_layer(layer) else [True]

    def allowed_layouts(self, boundary: int) -> list[bool]:
        """Return the allowed layouts; A X and its product with W have whole rows, at no cost to the next layer."""
        return [True] if self.precomputes and boundary < 2 else super().allowed_layouts(boundary)

    # Words and bytes.

    def gathered_rows_per_row(self) -> float:
        """Return an upper bound: all rows of other chunks, or one for each nonzero in them if that is less."""
        R, degree = self.grid[ROW], self.facts.nonzeros / self.facts.vertices
        return min(R - 1, degree * (R - 1) / R)

    def gather_call(self, at: Coordinates, counts: Counts, direction: Direction) -> tuple[Op, int]:
        """Return the columns of this chunk's A that have a nonzero, except those at its own vertices."""
        transposed = direction is BACKWARD and self.facts.directed
        return Op.ALL_TO_ALL, sum(self.boundary(at, counts).incoming_rows(transposed=transposed).values())

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes held between steps.

        They are A_MM and A_MK, their transposes if A is directed, the indices of sent rows, and X, or A X at N. With
        replicas, they are also A_NV, its transpose, K, and A X at V.
        """
        chunk, boundary, held = self.chunk(at), self.boundary(at, counts), dense_bytes(self, at)
        sides, precision = self.transposed_options(), self.spec.precision
        remote = sum(boundary.compact_bytes(precision, transposed=side) for side in sides)
        held[TensorName.A] = self.matrices_bytes([Piece(chunk, chunk)], counts) + remote
        held[TensorName.INDEX] = sum(boundary.index_bytes(transposed=side) for side in sides)
        if self.has_replicas:
            K = sum(boundary.incoming_rows().values())
            nonzeros = counts.nonzeros(chunk, chunk) + boundary.nonzeros()
            for rows in (len(chunk), len(chunk) + K):
                held[TensorName.A] += csr_bytes(rows, nonzeros, precision)
            held[TensorName.INDEX] += LONG * K
            held[TensorName.X] += WORD[precision] * K * self.facts.features
        if self.precomputes:
            held[TensorName.T] = held[TensorName.X]
            held[TensorName.X] *= self.needs_own_features
        return held
