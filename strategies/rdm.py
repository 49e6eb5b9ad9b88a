"""RDM: products without communication, and matrices redistributed between them (Kurt et al., IPDPS 2023).

Ranks P(r, c) form a grid of R chunks of rows by C slices of columns; the rank number is r C + c. A is split into R
chunks of rows, and all ranks of a chunk have that chunk: on 1 x P every rank has all of A. W is replicated. H and
everything computed from it has one of two layouts:

    rows      A rank has the whole rows of its vertices N, 1/P of all vertices. Products with W are local.
    columns   A rank has its slice of the columns for the vertices of its chunk, M. Products with A gather the columns
              over the chunks; on 1 x P they are local.

An all-to-all along the axis col redistributes a matrix from one layout to the other. A layer is

    Z = (A H) W    columns of H, product with A, rows of T = A H, product with W, rows of Z; or
    Z = A (H W)    rows of H, product with W, columns of T = H W, product with A, columns of Z,

and the backward pass is its transpose. The order of each layer and the layout between two layers are chosen to move the
fewest words in an epoch (`Rdm.layers`).

Legend: V all vertices, N and M as above, F features in, H features out. The suffixes do not show slices of columns.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import product
from math import inf
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from harness.base.ranges import split_evenly
from harness.comm.axis import apply_pair
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.strategy import Context, Coordinates, Counts, DenseGraph, MessageParams, Piece, Promise, Words
from harness.strategy.parallel.reshard import RowColumnSlices
from harness.strategy.parallel.row_strategy import (
    RowOperators,
    RowStrategy,
    reduce_all_gradients,
    to_index_tensor,
)

ROW, COL = AxisName.ROW, AxisName.COL
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
StageKind = Literal["to rows", "to columns", "times A", "times A here", "times W"]
LOCAL_STAGES: tuple[StageKind, ...] = ("times A here", "times W")
"""The stages without communication."""
PRODUCTS = {
    TensorName.H: TensorName.T,
    TensorName.T: TensorName.Z,
    TensorName.G: TensorName.S,
    TensorName.DT: TensorName.DH,
}
"""The name of the product of A, or of A^T, with each tensor."""


class LayerStage(NamedTuple):
    """One step of a layer: a redistribution or a product."""

    kind: StageKind
    width: int
    """The width of the matrix that is redistributed or multiplied, over all slices."""
    tensor: TensorName
    gradient: TensorName
    """The tensor that the backward pass redistributes or multiplies."""


class LayerPlan(NamedTuple):
    """The order of a layer's products, its power of A, and whether its input and output have whole rows."""

    combines_first: bool
    power: int
    rows_before: bool
    rows_after: bool
    has_all_rows: bool = False
    """True if the rank has all rows of the input that its product with A needs."""

    def stages(self, f_in: int, f_out: int) -> list[LayerStage]:
        """Return the stages of the layer in order. `power` is 1, or in a decoupled model 0 or the number of layers."""
        H, T, Z, G = TensorName.H, TensorName.T, TensorName.Z, TensorName.G
        product: StageKind = "times A here" if self.has_all_rows else "times A"
        if self.combines_first:
            before = [] if self.rows_before else [LayerStage("to rows", f_in, H, TensorName.DH)]
            spread = [LayerStage("to columns", f_out, T, TensorName.S)] if self.power else []
            after = [LayerStage("to rows", f_out, Z, G)] if self.rows_after and self.power else []
            times_A = [LayerStage(product, f_out, T, G)] * self.power
            made = (T, TensorName.S) if self.power else (Z, G)
            return [*before, LayerStage("times W", f_in, *made), *spread, *times_A, *after]
        before = [LayerStage("to columns", f_in, H, TensorName.DH)] if self.rows_before else []
        after = [] if self.rows_after else [LayerStage("to columns", f_out, Z, G)]
        middle = [
            LayerStage(product, f_in, H, TensorName.DT),
            LayerStage("to rows", f_in, T, TensorName.DT),
        ]
        return [*before, *middle, LayerStage("times W", f_in, Z, G), *after]

    def backward_stages(self, f_in: int, f_out: int, *, needs_dH: bool) -> list[LayerStage]:
        """Return the stages of the backward pass; without a gradient of the input, it ends at the product with W."""
        stages = self.stages(f_in, f_out)
        times_W = [stage.kind for stage in stages].index("times W")
        return stages if needs_dH else stages[times_W:]


class RdmOperators(RowOperators):
    """One rank's operators. Convolutions run in stages; all other operators work on a matrix in either layout."""

    def __init__(self, ctx: Context, strategy: "Rdm") -> None:
        super().__init__(ctx, strategy, over=(ROW, COL))
        self.strategy, self.at, self.layers = strategy, ctx.at, strategy.layers
        self.down, self.across = ctx.grid[ROW], ctx.grid[COL]
        self.A_MV = self.load_rows_of_A(ctx, transposed=False)
        self.A_T_MV = self.load_rows_of_A(ctx, transposed=True)
        ctx.measured.chosen["layers"] = strategy.describe_plan()

    def load_rows_of_A(self, ctx: Context, *, transposed: bool) -> Any:
        """Return the rows of A in this rank's chunk, as `multiply_by_A` takes them."""
        chunk, everyone = self.strategy.chunk(ctx.at), range(ctx.facts.vertices)
        return ctx.blocks.adjacency(chunk, everyone, transposed=transposed)

    def convolve(self, layer: int, H: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            for stage in self.layers[layer].stages(*W_FH.shape):
                by_W = stage.kind == "times W"
                H = self.kernels.gemm(H, W_FH, stage.tensor) if by_W else self.apply_stage(H, stage)
            return H

    def apply_stage(self, H: Tensor, stage: LayerStage) -> Tensor:
        """Apply a redistribution or a product with A; its backward pass is the transpose."""
        kind, width, tensor, gradient = stage
        if kind != "times A":
            rows, cols = self.strategy.rows_of_chunk(self.at), self.strategy.slices(width)
            slices = RowColumnSlices(self.across, rows, cols)
            return slices.reshard(H, whole_rows=kind == "to rows", tensor=tensor, gradient=gradient)
        forward_map = partial(self.multiply_by_A, self.A_MV, tensor)
        backward_map = partial(self.multiply_by_A, self.A_T_MV, gradient)
        return apply_pair(self.ledger, H, forward_map, backward_map)

    def multiply_by_A(self, A_MV: Any, tensor: TensorName, H_M: Tensor) -> Tensor:
        """Return A H, after gathering the columns of H over the chunks."""
        sizes = list(map(len, self.strategy.chunks()))
        H_V = self.down.all_gather(H_M, sizes=sizes, tensor=tensor)
        return self.kernels.spmm(A_MV, H_V, PRODUCTS[tensor])

    def rows_of(self, layer: int) -> Tensor:
        whole = self.layers[layer].rows_after
        rows = self.strategy.rows(self.at) if whole else self.strategy.chunk(self.at)
        return to_index_tensor(rows, self.device)

    def features(self, layer: int, H: Tensor) -> range:
        width, whole = self.strategy.shapes[layer][1], self.layers[layer].rows_after
        return self.strategy.layout_piece(self.at, width, whole).cols

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Sum the gradients over all ranks; each rank has computed them for its own rows."""
        reduce_all_gradients(weights, self.over, [weight.layer for weight in self.strategy.weights])


class Rdm(RowStrategy):
    """Feature-parallel training, for any grid of chunks of A by slices of H."""

    name = "rdm"
    paper = "RDM (IPDPS 2023)"
    promise = Promise.EXACT
    has_model_parts = True
    can_recompute = True
    models = ("gcn", "sage")
    axes: ClassVar[tuple[AxisName, ...]] = (ROW, COL)
    partitioned_over: ClassVar[AxisName | None] = None

    class Params(MessageParams):
        """The order of the products, and NeutronTP's decoupled model."""

        order: Literal["fewest", "model"] = "fewest"
        """Each layer multiplies in the order that moves the fewest words; or all layers use `model.order`, if it is not
        `best`."""
        decoupled: bool = False
        """Z = A^L MLP(X): all products with W, then all products with A. This model is not a GCN."""

    params: Params

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        """Return all grids, first A replicated on every rank, then with more and more chunks."""
        return sorted(super().grids(ranks), key=itemgetter(ROW))

    @property
    def effective_promise(self) -> Promise:
        return Promise.OTHER_MODEL if self.params.decoupled else Promise.EXACT

    def effective_adjacency(self, graph: DenseGraph, layer: int, step: int | None) -> Tensor:
        """Return A; in the decoupled model, A^L in the last layer and the identity in all others."""
        return (
            torch.matrix_power(graph.A, self.products_per_layer(layer)) if self.params.decoupled else graph.A
        )

    def products_per_layer(self, layer: int) -> int:
        """Return the number of products with A in a layer."""
        last = layer + 1 == len(self.shapes)
        return len(self.shapes) * last if self.params.decoupled else 1

    # The pieces that ranks hold.

    def blocks(self) -> list[range]:
        return self.facts.blocks(self.spec.ranks)

    def rows(self, at: Coordinates) -> range:
        return self.rows_of_chunk(at)[at[COL]]

    def rows_of_chunk(self, at: Coordinates) -> list[range]:
        """Return the rows of each rank in the chunk of the rank at `at`."""
        first = at[ROW] * self.grid[COL]
        return self.blocks()[first : first + self.grid[COL]]

    def chunk(self, at: Coordinates) -> range:
        rows = self.rows_of_chunk(at)
        return range(rows[0].start, rows[-1].stop)

    def chunks(self) -> list[range]:
        return [self.chunk({ROW: r}) for r in range(self.grid[ROW])]

    def slices(self, width: int) -> list[range]:
        return split_evenly(width, self.grid[COL])

    def layout_piece(self, at: Coordinates, width: int, whole_rows: bool) -> Piece:
        """Return the piece of a matrix of this width that the rank at `at` holds in one of the two layouts."""
        if whole_rows:
            return Piece(self.rows(at), range(width))
        return Piece(self.chunk(at), self.slices(width)[at[COL]])

    def input_piece(self, at: Coordinates) -> Piece:
        return self.layout_piece(at, self.facts.features, self.layers[0].rows_before)

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        return [Piece(self.chunk(at), range(self.facts.vertices))]

    def operators(self, ctx: Context) -> RdmOperators:
        return RdmOperators(ctx, self)

    # The order of the products and the layouts between them.

    @cached_property
    def layers(self) -> list[LayerPlan]:
        """The plans of the layers that move the fewest words in an epoch; the first of several.

        Layers depend on each other only through the layout between them, so dynamic programming over the layers keeps
        the best plans up to a layer for each layout of its output.
        """
        best: dict[bool, tuple[float, list[LayerPlan]]] = {rows: (0, []) for rows in self.allowed_layouts(0)}
        for layer in range(len(self.shapes)):
            best_before, best = best, {}
            for before, (moved_before, plans) in best_before.items():
                for plan in self.allowed_plans(layer, before):
                    option = moved_before + self.count_moved_words(layer, plan), [*plans, plan]
                    after = plan.rows_after
                    best[after] = min(best.get(after, (inf, [])), option, key=itemgetter(0))
        return best[True][1]

    def allowed_plans(self, layer: int, rows_before: bool) -> list[LayerPlan]:
        """Return the plans of a layer for one layout of its input; a residual needs the same layout at both ends."""
        power, has_all_rows = self.products_per_layer(layer), self.has_all_rows(layer)
        return [
            LayerPlan(combines_first, power, rows_before, rows_after, has_all_rows)
            for combines_first, rows_after in product(
                self.allowed_orders(layer), self.allowed_layouts(layer + 1)
            )
            if rows_before == rows_after or not self.spec.model.residual
        ]

    def has_all_rows(self, layer: int) -> bool:
        """Return whether a rank has all rows of the layer's input that its product with A needs."""
        return False

    def allowed_orders(self, layer: int) -> list[bool]:
        """Return the allowed values of `combines_first` for a layer, starting with the model's order."""
        first = self.combines_first(layer)
        if self.params.decoupled:
            return [True]
        is_given = self.params.order == "model" and self.spec.model.order != "best"
        return [first] if is_given else [first, not first]

    def allowed_layouts(self, boundary: int) -> list[bool]:
        """Return the allowed values of `rows_before` for layer `boundary`; a norm or a product with W needs True."""
        model, last = self.spec.model, len(self.shapes)
        projected = boundary == 0 and model.projection
        needs_rows = projected or boundary == last or model.kind == "sage" or model.norm
        return [True] if needs_rows or self.params.decoupled else [True, False]

    def count_moved_words(self, layer: int, plan: LayerPlan) -> float:
        """Return the words that a rank receives in a layer, times P / V, with blocks of equal size."""
        shape, C = self.shapes[layer], self.grid[COL]
        forward = plan.stages(*shape) * (1 + (layer in self.recomputed_layers))
        both = forward + plan.backward_stages(*shape, needs_dH=self.needs_dH(layer))
        cost = {"times A": self.gathered_rows_per_row(), **dict.fromkeys(LOCAL_STAGES, 0)}
        return sum(stage.width * cost.get(stage.kind, (C - 1) / C) for stage in both)

    def gathered_rows_per_row(self) -> float:
        """Return how many rows of other chunks a product with A brings to a rank, per row of its own chunk."""
        return self.grid[ROW] - 1

    def gather_call(self, at: Coordinates, counts: Counts, direction: Direction) -> tuple[Op, int]:
        """Return the collective of a product with A, or with A^T in the backward pass, and its number of rows."""
        return Op.ALL_GATHER, self.facts.vertices

    def stage_call(
        self, stage: LayerStage, direction: Direction, at: Coordinates, counts: Counts
    ) -> tuple[Op, AxisName, TensorName, int]:
        """Return the collective of a stage, its axis, the tensor that it moves, and its words."""
        kind, width, tensor, gradient = stage
        moves = gradient if direction is BACKWARD else tensor
        if kind == "times A":
            op, rows = self.gather_call(at, counts, direction)
            return op, ROW, moves, rows * len(self.slices(width)[at[COL]])
        piece = self.layout_piece(at, width, (kind == "to rows") == (direction is FORWARD))
        return Op.ALL_TO_ALL, COL, moves, len(piece.rows) * len(piece.cols)

    def describe_plan(self) -> str:
        """Return a description of the plan for the run's record."""
        orders, layouts = {True: "A (H W)", False: "(A H) W"}, {True: "rows", False: "columns"}
        layers = (
            f"{orders[plan.combines_first] if plan.power else 'H W'} {layouts[plan.rows_after]}"
            for plan in self.layers
        )
        return " ".join([layouts[self.layers[0].rows_before], *layers])

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Return the words of redistributions (this rank's piece) and of products with A (columns of all chunks)."""
        words = Words(self.grid, self.recomputed_layers)
        for layer, (plan, shape) in enumerate(zip(self.layers, self.shapes, strict=True)):
            backward = plan.backward_stages(*shape, needs_dH=self.needs_dH(layer))
            for direction, stages in ((FORWARD, plan.stages(*shape)), (BACKWARD, backward)):
                for stage in stages:
                    if stage.kind not in LOCAL_STAGES:
                        words.add(direction, layer, *self.stage_call(stage, direction, at, counts))
        self.add_reductions(words, self.axes)
        return words
