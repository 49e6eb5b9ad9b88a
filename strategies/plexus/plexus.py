"""Plexus: full-graph training on a grid of X x Y x Z, with all optimisations of section 5 of its paper (SC 2025).

Every matrix is split over two of the three axes and replicated along the third. The roles R, S and T of the axes rotate
from layer to layer (`harness.strategy.parallel.roles`). Trained parameters, W and optionally the input features, are
also split over the third axis, so that no two ranks train the same element.

Legend: N vertices over R, K vertices over S, F features in over T, H features out over S, C classes as H.
The paper's A, F, H, W, Q are our A, H, T, W, Z: T = A H, Z = T W. G = dL/dZ, dT = G W^T, dW = T^T G, dH = A^T dT.

Differences from the authors' code: blocks are not padded, W and features are split between rows, and the loss sends two
numbers per row instead of three (`harness.strategy.parallel.label_loss`).
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from harness.base.ranges import intersect_ranges, split_evenly
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.strategy import (
    WORD,
    Context,
    Coordinates,
    Counts,
    MessageParams,
    Piece,
    Promise,
    PublishedCost,
    Quantity,
    Strategy,
    Words,
    csr_bytes,
)
from harness.strategy.models import Part, Weight
from harness.strategy.parallel.gradients import Gradients
from harness.strategy.parallel.products import (
    WEIGHT_GRADIENTS,
    ProductAxes,
    SparseFactor,
    Striping,
    WeightGradient,
    aggregate_3d,
    build_sparse_factor,
    combine_3d,
)
from harness.strategy.parallel.roles import LayerShare, Roles, get_roles, split_piece
from harness.strategy.parallel.rotating_layers import RotatingLayers, add_words
from harness.strategy.parallel.rotating_layout import CUBE, FIRST, RotatingLayout
from harness.strategy.parallel.row_strategy import RowOperators, dense_bytes

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class PlexusParams(MessageParams):
    """The parameters of Plexus. The first choice is the paper's, without its optimisations."""

    aggregation: Literal["whole", "blocked", "overlapped"] = "whole"
    """Multiplies by A in one product, or in blocks of rows, or with the sum of a block in flight while the next block
    is multiplied (section 5.2)."""
    blocks: int = Field(4, ge=1)
    """The number of blocks of rows, unless A is multiplied in one product."""
    weight_gradient: Literal["straight", "flipped", "measured"] = "straight"
    """dW = T^T G, or (G^T T)^T (section 5.3), or whichever each rank measures to be faster, layer by layer."""
    loops: Literal["in_A", "apart"] = "in_A"
    """Keeps the self-loops among the nonzeros of A, or applies them as a scaled sum of rows, which balances A under a
    single permutation (not in the paper)."""


class LayerOperands(NamedTuple):
    """One rank's blocks of A in a layer, and how to multiply by W."""

    A_NK: SparseFactor
    A_T_KN: SparseFactor | None
    axes: ProductAxes
    weight_rows: list[int]
    """The number of rows of W on each member of R."""
    gradient: WeightGradient


class Rotating(RotatingLayers, RowOperators):
    """One rank's operators: products over the axes, by their roles in a layer."""

    def __init__(self, ctx: Context, strategy: "Plexus") -> None:
        self.layout = strategy.layout
        shares, (down, across) = self.layout.shares(ctx.at), self.layout.output_axes
        super().__init__(ctx, strategy, over=(down,), across=across)
        self.vertices = range(ctx.facts.vertices)
        self.grid, self.at = ctx.grid, ctx.at
        self.gradients = Gradients(ctx.grid.axis(()), overlap=False)
        self.params, self.trains_features = strategy.params, ctx.spec.training.features
        self.layers = [
            self._build_operands(ctx, strategy, layer, share) for layer, share in enumerate(shares)
        ]
        K, R = shares[0].K, ctx.grid[shares[0].roles.R]
        self.feature_rows = [len(rows) for rows in split_evenly(len(K), R.size)]

    def _build_operands(
        self, ctx: Context, strategy: "Plexus", layer: int, share: LayerShare
    ) -> LayerOperands:
        R, S, T = (ctx.grid[axis] for axis in share.roles)
        factor, A_T_KN = partial(build_sparse_factor, ctx, order=layer, striping=strategy.striping), None
        A_NK = factor(Piece(share.N, share.K), transposed=False, over=S)
        if strategy.needs_dH(layer):
            summed = layer > 0 or self.model.projection
            A_T_KN = factor(Piece(share.K, share.N), transposed=True, over=R if summed else None)
        weight_rows = [len(rows) for rows in split_evenly(len(share.F), R.size)]
        variant: str = self.params.weight_gradient
        if variant == "measured":
            T_NF, G_NH = (ctx.memory.zeros(len(share.N), len(part)) for part in (share.F, share.H))
            candidates = {name: partial(gradient, T_NF, G_NH) for name, gradient in WEIGHT_GRADIENTS.items()}
            variant = ctx.measured.choose_fastest(f"weight_gradient of layer {layer}", candidates)
        return LayerOperands(A_NK, A_T_KN, ProductAxes(R, T, S), weight_rows, WEIGHT_GRADIENTS[variant])

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Apply algorithms 1 and 2: sum T = A H over S and Z = T W over T; backward, sum dT over S and dH over R."""
        A_NK, A_T_KN, axes, weight_rows, gradient = self.layers[layer]
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if layer == 0 and self.trains_features:
                X, dX = TensorName.X, TensorName.DX
                H = axes.rows.gather(H, sizes=self.feature_rows, tensor=X, gradient=dX)
            T_NF = aggregate_3d(self.kernels, A_NK, A_T_KN, H)
            return combine_3d(self.kernels, T_NF, W, axes, weight_rows, gradient)


class Plexus(Strategy):
    """Plexus' three-dimensional algorithm, on any grid."""

    name = "plexus"
    paper = "Plexus (SC 2025)"
    promise = Promise.EXACT
    has_model_parts = True
    can_recompute = True
    combine_first_refusal = (
        "its Algorithm 1 aggregates and then combines, and the axes rotate to the next layer's layout only in "
        "this order"
    )
    models = ("gcn", "sage")
    axes: ClassVar[tuple[AxisName, ...]] = (X, Y, Z)
    slowest_first = CUBE
    Params = PlexusParams
    params: PlexusParams

    def refuse(self) -> str | None:
        if self.params.loops == "apart" and self.spec.dataset.permutation == "double":
            return "a double permutation leaves no self-loops on the diagonal: use single, or loops in_A"
        if self.spec.training.features and self.spec.model.projection:
            return (
                "it trains features only where its first layer gathers them, and not through a projection: "
                "set training.features or model.projection to false"
            )
        model = self.spec.model
        if self.spec.training.features and model.kind == "sage":
            return (
                "only products with A gather trained features: set training.features to false, or train a gcn"
            )
        needs_single_order = model.residual or model.dropout or model.kind == "sage"
        if self.spec.dataset.permutation == "double" and needs_single_order:
            return (
                "a double permutation orders the input and the output of a layer differently, and a residual, a "
                "root term or a dropout mask needs one order: use single or none"
            )
        return self.too_many_ranks()

    @property
    def layout(self) -> RotatingLayout:
        """The layout of everything except trained parameters, which are split once more."""
        return RotatingLayout(self.grid, self.facts, self.shapes, projection=self.spec.model.projection)

    @property
    def striping(self) -> Striping:
        """How blocks of A are split and multiplied."""
        variant = self.params.aggregation
        stripes = 1 if variant == "whole" else self.params.blocks
        return Striping(
            stripes, overlap=variant == "overlapped", separate_diagonal=self.params.loops == "apart"
        )

    def weight_piece(self, weight: Weight, at: Coordinates) -> Piece:
        """Return the piece of a weight. The weights of convolutions are also split over R."""
        rows, cols = self.layout.weight(weight, at)
        if weight.part is Part.CONVOLUTION:
            R = self.layout.roles(weight.layer).R
            rows = split_piece(rows, self.grid[R], at[R])
        return Piece(rows, cols)

    def input_piece(self, at: Coordinates) -> Piece:
        """Return the piece of the features. Trained features are also split over R; fixed ones are replicated."""
        rows, cols = self.layout.input(at)
        R = FIRST.R
        return Piece(split_piece(rows, self.grid[R], at[R]) if self.spec.training.features else rows, cols)

    def output_piece(self, at: Coordinates) -> Piece:
        return self.layout.output(at)

    def operators(self, ctx: Context) -> Rotating:
        return Rotating(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Return the words of each block that is summed or gathered in a pass; W is gathered in both passes."""
        words, trained = Words(self.grid, self.recomputed_layers), self.spec.training.features
        for layer, (roles, *ranges) in enumerate(self.layout.shares(at)):
            (R, S, T), (N, K, F, H) = roles, map(len, ranges)
            if layer == 0 and trained:
                words.add(FORWARD, layer, Op.ALL_GATHER, R, TensorName.X, K * F)
            words.add(FORWARD, layer, Op.ALL_REDUCE, S, TensorName.T, N * F)
            words.add(FORWARD, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
            words.add(FORWARD, layer, Op.ALL_REDUCE, T, TensorName.Z, N * H)
            words.add(BACKWARD, layer, Op.REDUCE_SCATTER, R, TensorName.DW, F * H)
            if self.needs_dH(layer):
                words.add(BACKWARD, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
                words.add(BACKWARD, layer, Op.ALL_REDUCE, S, TensorName.DT, N * F)
            if layer > 0 or self.spec.model.projection:
                words.add(BACKWARD, layer, Op.ALL_REDUCE, R, TensorName.DH, K * F)
            elif trained:
                words.add(BACKWARD, layer, Op.REDUCE_SCATTER, R, TensorName.DX, K * F)
        rows = {axis: len(blocks[at[axis]]) for axis, blocks in self.layout.row_cuts().items()}
        add_words(words, self.layout, self.weights, at, rows, residual=self.spec.model.residual)
        down, across = self.layout.output_axes
        if self.facts.task == "single-label":
            words.add(FORWARD, -1, Op.ALL_REDUCE, across, TensorName.LOSS, 2 * rows[down])
        words.add(FORWARD, -1, Op.ALL_REDUCE, (down, across), TensorName.LOSS, 1)
        return words

    def published_costs(self) -> list[PublishedCost]:
        """Return the words of the authors' code, which trains the features, and the blocks of A by section 5.1."""
        paper = []
        if self.spec.training.features:
            authors = count_padded_words(self.grid, FIRST, self.facts.vertices, self.shapes)
            paper.append(
                PublishedCost(
                    Quantity.WORDS,
                    "sum of the padded blocks that are summed or gathered",
                    (),
                    sum(authors.values()),
                    "blocks are not padded, W is always split over R, and the loss sends two words a row, not three",
                )
            )
        paper.append(
            PublishedCost(
                Quantity.LAYOUT,
                "blocks of A on a rank: min(6, L) under a double permutation, else min(3, L)",
                ("PLX-063", "PLX-064", "PLX-065"),
                min(6 if self.spec.dataset.permutation == "double" else 3, self.spec.model.layers),
                "on axes of one rank blocks coincide",
                max(len(self._blocks_of_A(at)) for at in self._corners()),
            )
        )
        return paper

    def _corners(self) -> list[Coordinates]:
        """Return the corners of the grid. One of them has as many different blocks of A as any rank."""
        ends = product(*({0, size - 1} for size in self.grid.values()))
        return [dict(zip(self.grid, corner, strict=True)) for corner in ends]

    def _blocks_of_A(self, at: Coordinates) -> set[tuple[range, range, int]]:
        return {(N, K, self._order(layer)) for layer, (_, N, K, *_) in enumerate(self.layout.shares(at))}

    def _order(self, layer: int) -> int:
        """Return the order of the vertices in a layer."""
        return layer % 2 if self.spec.dataset.permutation == "double" else 0

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes of the distinct blocks of A and of A^T, and of the dense matrices."""
        A = sum(self._block_bytes(*block, counts) for block in self._held_blocks(self.layout.shares(at)))
        return {TensorName.A: A, **dense_bytes(self, at)}

    def _held_blocks(self, shares: list[LayerShare]) -> set[tuple[range, range, int, bool]]:
        """Return the rows, columns, order and transposition of each distinct block held.

        In an undirected graph with a double permutation, A^T is A in the other order.
        """
        held: set[tuple[range, range, int, bool]] = set()
        turned, double = self.facts.directed, self.spec.dataset.permutation == "double"
        for layer, (_, N, K, _, _) in enumerate(shares):
            order = self._order(layer)
            held |= {(rows, K, order, False) for rows in self.striping.split_rows(N)}
            if self.needs_dH(layer):
                other = 1 - order if double and not turned else order
                held |= {(rows, N, other, turned) for rows in self.striping.split_rows(K)}
        return held

    def _block_bytes(self, rows: range, cols: range, order: int, transposed: bool, counts: Counts) -> int:
        nonzeros = counts.nonzeros(rows, cols, transposed=transposed, order=order)
        loops = len(intersect_ranges(rows, cols)) if self.params.loops == "apart" else 0
        precision = self.spec.precision
        return csr_bytes(len(rows), nonzeros - loops, precision) + loops * WORD[precision]


def count_padded_words(
    grid: dict[AxisName, int], first: Roles, vertices: int, shapes: Sequence[tuple[int, int]]
) -> Words:
    """Return the payload words of an epoch in the authors' code, which pads all blocks to the largest one.

    They are the same on all ranks. On three grids they equal the words counted in that code.
    """
    words = Words(grid)
    for layer, (d, e) in enumerate(shapes):
        R, S, T = get_roles(layer, first)
        r, s, t = grid[R], grid[S], grid[T]
        N, K = -(-vertices // r), -(-vertices // s)
        sharded = layer == 0 or -(-d // t) % r == 0  # else W is whole along R and its gradient is summed
        F = -(-d // (t * r)) * r if sharded else -(-d // t)
        H = -(-e // s)
        if layer == 0:
            words.add(FORWARD, layer, Op.ALL_GATHER, R, TensorName.X, K * F)
        words.add(FORWARD, layer, Op.ALL_REDUCE, S, TensorName.T, N * F)
        words.add(FORWARD, layer, Op.ALL_REDUCE, T, TensorName.Z, N * H)
        if sharded:
            words.add(FORWARD, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
            words.add(BACKWARD, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
        gradient = Op.REDUCE_SCATTER if sharded else Op.ALL_REDUCE
        words.add(BACKWARD, layer, gradient, R, TensorName.DW, F * H)
        words.add(BACKWARD, layer, Op.ALL_REDUCE, S, TensorName.DT, N * F)
        if layer == 0:
            words.add(BACKWARD, layer, Op.REDUCE_SCATTER, R, TensorName.DX, K * F)
        else:
            words.add(BACKWARD, layer, Op.ALL_REDUCE, R, TensorName.DH, K * F)
    words.add(FORWARD, -1, Op.ALL_REDUCE, S, TensorName.LOSS, 3 * N)
    words.add(FORWARD, -1, Op.ALL_REDUCE, R, TensorName.LOSS, 1)
    return words
