"""RDM: products without communication, and matrices that change their layout in between (Kurt et al., IPDPS 2023).

Ranks stand on a grid of R chunks of rows and C slices of columns; P(r, c) is number r C + c. A is cut into R chunks of
rows, and the ranks of a chunk all have it: on 1 x P every rank has A whole. W is whole on every rank. H and all that is
computed from it has one of two layouts:

    rows      a rank has whole rows, N: the P-th part of all vertices. Products with W need nothing of other ranks.
    columns   a rank has the vertices of its chunk, M, and its slice of the columns. Products with A gather the columns
              over the chunks; with A whole they need nothing.

A matrix changes from one layout to the other in an all-to-all along the axis col. A layer is

    Z = (A H) W    columns of H, product with A, rows of T = A H, product with W, rows of Z; or
    Z = A (H W)    rows of H, product with W, columns of T = H W, product with A, columns of Z,

and the backward pass is its transpose. The order of each layer, and the layout between two layers, are those that move
the fewest words in an epoch (`Rdm.layers`).

Legend: V all vertices, N and M as above, F features in, H features out; a rank's slice of columns is not marked.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import product
from math import inf
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import apply_pair
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.parallel.reshard import RowColumnSlices
from harness.parallel.row_strategy import RowOperators, RowStrategy, reduce_all_gradients, to_index_tensor
from harness.ranges import split_evenly
from harness.strategy import Context, Coordinates, Counts, MessageParams, Piece, Promise, Words

ROW, COL = AxisName.ROW, AxisName.COL
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
Way = Literal["to rows", "to columns", "times A", "times A here", "times W"]
HERE: tuple[Way, ...] = ("times A here", "times W")
"""The stages that move nothing."""
PRODUCTS = {
    TensorName.H: TensorName.T,
    TensorName.T: TensorName.Z,
    TensorName.G: TensorName.S,
    TensorName.DT: TensorName.DH,
}
"""The names of products with A, or with A^T, by those of their right factors."""


class LayerStage(NamedTuple):
    """A part of a layer: a change of layout, or a product."""

    way: Way
    width: int
    """The columns of the whole matrix that is moved or multiplied."""
    tensor: TensorName
    gradient: TensorName
    """The name of what the backward pass moves or multiplies."""


class LayerPlan(NamedTuple):
    """The order of a layer's products, its power of A, and whether its input and its output are whole rows."""

    combines: bool
    power: int
    rows_before: bool
    rows_after: bool
    here: bool = False
    """The rank has all rows of the input that its product with A needs."""

    def stages(self, f_in: int, f_out: int) -> list[LayerStage]:
        """The layer in order; `power` is 1, or in a decoupled model 0 or the number of layers."""
        H, T, Z, G = TensorName.H, TensorName.T, TensorName.Z, TensorName.G
        product: Way = "times A here" if self.here else "times A"
        if self.combines:
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

    def returning(self, f_in: int, f_out: int, *, wants_dH: bool) -> list[LayerStage]:
        """The stages that the backward pass repeats: without a gradient of the input, those behind W alone."""
        stages = self.stages(f_in, f_out)
        begun = [stage.way for stage in stages].index("times W")
        return stages if wants_dH else stages[begun:]


class RdmOperators(RowOperators):
    """One rank's operators: the convolutions in stages, and all others on whatever piece they are given."""

    def __init__(self, ctx: Context, strategy: "Rdm") -> None:
        super().__init__(ctx, strategy, over=(ROW, COL))
        self.strategy, self.at, self.layers = strategy, ctx.at, strategy.layers
        self.down, self.across = ctx.grid[ROW], ctx.grid[COL]
        self.A_MV = self.rows_of_A(ctx, transposed=False)
        self.A_T_MV = self.rows_of_A(ctx, transposed=True)
        ctx.measured.chosen["layers"] = strategy.described()

    def rows_of_A(self, ctx: Context, *, transposed: bool) -> Any:
        """The rows of this rank's chunk, as `times` takes them."""
        chunk, everyone = self.strategy.chunk(ctx.at), range(ctx.facts.vertices)
        return ctx.blocks.adjacency(chunk, everyone, transposed=transposed)

    def convolve(self, layer: int, H: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            for stage in self.layers[layer].stages(*W_FH.shape):
                by_W = stage.way == "times W"
                H = self.kernels.gemm(H, W_FH, stage.tensor) if by_W else self.moved(H, stage)
            return H

    def moved(self, H: Tensor, stage: LayerStage) -> Tensor:
        """A stage other than a product with W, and backward its transpose."""
        way, width, tensor, gradient = stage
        if way != "times A":
            slices = RowColumnSlices(
                self.across, self.strategy.rows_of_chunk(self.at), self.strategy.slices(width)
            )
            return slices.reshard(H, whole_rows=way == "to rows", tensor=tensor, gradient=gradient)
        ahead, back = partial(self.times, self.A_MV, tensor), partial(self.times, self.A_T_MV, gradient)
        return apply_pair(self.ledger, H, ahead, back)

    def times(self, A_MV: Any, tensor: TensorName, H_M: Tensor) -> Tensor:
        """A H: the columns of H are gathered over the chunks of rows."""
        sizes = list(map(len, self.strategy.chunks()))
        H_V = self.down.all_gather(H_M, sizes=sizes, tensor=tensor)
        return self.kernels.spmm(A_MV, H_V, PRODUCTS[tensor])

    def rows_of(self, layer: int) -> Tensor:
        whole = self.layers[layer].rows_after
        return to_index_tensor(
            self.strategy.rows(self.at) if whole else self.strategy.chunk(self.at), self.device
        )

    def features(self, layer: int, H: Tensor) -> range:
        width, whole = self.strategy.shapes[layer][1], self.layers[layer].rows_after
        return self.strategy.piece(self.at, width, whole).cols

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """A weight's gradient is the sum over the rows of all ranks."""
        reduce_all_gradients(weights, self.over, [weight.layer for weight in self.strategy.weights])


class Rdm(RowStrategy):
    """Feature-parallel training, for any grid of chunks of A by slices of H."""

    name = "rdm"
    paper = "RDM (IPDPS 2023)"
    promise = Promise.EXACT
    parts = True
    recomputes = True
    models = ("gcn", "sage")
    axes: ClassVar[tuple[AxisName, ...]] = (ROW, COL)
    partitioned_over: ClassVar[AxisName | None] = None

    class Params(MessageParams):
        """The order of the products, and NeutronTP's decoupled model."""

        order: Literal["fewest", "model"] = "fewest"
        """Each layer multiplies in the order that moves the fewest words; or all in that of `model.order`."""
        decoupled: bool = False
        """Z = A^L MLP(X): all products with W, then all with A. This is another model than a GCN."""

    params: Params

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        """First A whole on every rank, then ever more chunks."""
        return sorted(super().grids(ranks), key=itemgetter(ROW))

    def promised(self) -> Promise:
        return Promise.OTHER_MODEL if self.params.decoupled else Promise.EXACT

    def multiplier(self, A: Tensor, layer: int, step: int | None) -> Tensor:
        """A; in the decoupled model A^L in the last layer, and the identity in all others."""
        return torch.matrix_power(A, self.products_per_layer(layer)) if self.params.decoupled else A

    def products_per_layer(self, layer: int) -> int:
        """The products with A in a layer."""
        last = layer + 1 == len(self.shapes)
        return len(self.shapes) * last if self.params.decoupled else 1

    # Who holds what.

    def blocks(self) -> list[range]:
        return self.facts.blocks(self.spec.ranks)

    def rows(self, at: Coordinates) -> range:
        return self.rows_of_chunk(at)[at[COL]]

    def rows_of_chunk(self, at: Coordinates) -> list[range]:
        """The rows of every rank that has the chunk of the rank at `at`."""
        first = at[ROW] * self.grid[COL]
        return self.blocks()[first : first + self.grid[COL]]

    def chunk(self, at: Coordinates) -> range:
        rows = self.rows_of_chunk(at)
        return range(rows[0].start, rows[-1].stop)

    def chunks(self) -> list[range]:
        return [self.chunk({ROW: r}) for r in range(self.grid[ROW])]

    def slices(self, width: int) -> list[range]:
        return split_evenly(width, self.grid[COL])

    def piece(self, at: Coordinates, width: int, whole_rows: bool) -> Piece:
        """The part of a matrix of this width in one of the two layouts."""
        if whole_rows:
            return Piece(self.rows(at), range(width))
        return Piece(self.chunk(at), self.slices(width)[at[COL]])

    def input(self, at: Coordinates) -> Piece:
        return self.piece(at, self.facts.features, self.layers[0].rows_before)

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        return [Piece(self.chunk(at), range(self.facts.vertices))]

    def operators(self, ctx: Context) -> RdmOperators:
        return RdmOperators(ctx, self)

    # The order of the products and the layouts between them.

    @cached_property
    def layers(self) -> list[LayerPlan]:
        """The plan of every layer: of all plans, the first of those that move the fewest words in an epoch.

        Only the layouts at a layer's ends tie it to the next, so the best plan up to a layer is known for each of them.
        """
        best: dict[bool, tuple[float, list[LayerPlan]]] = {rows: (0, []) for rows in self.layouts(0)}
        for layer in range(len(self.shapes)):
            ways = [
                (moved + self.moved(layer, plan), [*plans, plan])
                for before, (moved, plans) in best.items()
                for combines, after in product(self.orders(layer), self.layouts(layer + 1))
                for plan in [
                    LayerPlan(combines, self.products_per_layer(layer), before, after, self.here(layer))
                ]
                if before == after or not self.spec.model.residual
            ]
            best = {}
            for moved, plans in ways:
                after = plans[-1].rows_after
                best[after] = min(best.get(after, (inf, [])), (moved, plans), key=itemgetter(0))
        return best[True][1]

    def here(self, layer: int) -> bool:
        """True if a rank has all rows of the layer's input that its product with A needs."""
        return False

    def orders(self, layer: int) -> list[bool]:
        """Whether a layer may multiply by W first, the order of the model first."""
        first = self.combine_first
        if self.params.decoupled:
            return [True]
        return [first] if self.params.order == "model" else [first, not first]

    def layouts(self, boundary: int) -> list[bool]:
        """Whether the input of layer `boundary` may be whole rows: always, and alone where a norm or a W needs them."""
        model, last = self.spec.model, len(self.shapes)
        projected = boundary == 0 and model.projection
        needs_rows = projected or boundary == last or model.kind == "sage" or model.norm
        return [True] if needs_rows or self.params.decoupled else [True, False]

    def moved(self, layer: int, plan: LayerPlan) -> float:
        """The words that a rank receives in a layer, times P / V, if nothing is cut unevenly."""
        shape, C = self.shapes[layer], self.grid[COL]
        both = plan.stages(*shape) + plan.returning(*shape, wants_dH=self.wants_dH(layer))
        cost = {"times A": self.gathered_per_row(), **dict.fromkeys(HERE, 0)}
        return sum(stage.width * cost.get(stage.way, (C - 1) / C) for stage in both)

    def gathered_per_row(self) -> float:
        """The rows that a product with A brings to a rank of the chunk, for each row of the chunk: all others."""
        return self.grid[ROW] - 1

    def gathered(self, at: Coordinates, counts: Counts, direction: Direction) -> tuple[Op, int]:
        """The call of a product with A, or backward with A^T, and its rows."""
        return Op.ALL_GATHER, self.facts.vertices

    def arriving(
        self, stage: LayerStage, direction: Direction, at: Coordinates, counts: Counts
    ) -> tuple[Op, AxisName, TensorName, int]:
        """The call of a stage that moves something: its axis, the tensor that it moves, and its words."""
        way, width, tensor, gradient = stage
        moves = gradient if direction is BACKWARD else tensor
        if way == "times A":
            op, rows = self.gathered(at, counts, direction)
            return op, ROW, moves, rows * len(self.slices(width)[at[COL]])
        piece = self.piece(at, width, (way == "to rows") == (direction is FORWARD))
        return Op.ALL_TO_ALL, COL, moves, len(piece.rows) * len(piece.cols)

    def described(self) -> str:
        """The plan in the words of a run's record."""
        orders, layouts = {True: "A (H W)", False: "(A H) W"}, {True: "rows", False: "columns"}
        layers = (
            f"{orders[plan.combines] if plan.power else 'H W'} {layouts[plan.rows_after]}"
            for plan in self.layers
        )
        return " ".join([layouts[self.layers[0].rows_before], *layers])

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Every change of layout brings this rank's piece, every product with A the columns of all chunks."""
        words = Words(self.grid, self.recomputed)
        for layer, (plan, shape) in enumerate(zip(self.layers, self.shapes, strict=True)):
            backward = plan.returning(*shape, wants_dH=self.wants_dH(layer))
            for direction, stages in ((FORWARD, plan.stages(*shape)), (BACKWARD, backward)):
                for stage in stages:
                    if stage.way not in HERE:
                        words.put(direction, layer, *self.arriving(stage, direction, at, counts))
        self.add_reductions(words, self.axes)
        return words
