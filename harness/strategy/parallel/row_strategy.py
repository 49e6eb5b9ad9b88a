"""Base classes of strategies that split the graph by rows: layouts, and all operators except the product with A.

Legend: N this rank's vertices, F features in, H features out, C classes. On an axis of one rank this is serial
training.
"""

import copy
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from harness.comm.axis import Axis
from harness.kernels.random import Index
from harness.ledger import NO_INDEX, AxisName, Direction, Op, Phase, TensorName
from harness.strategy import (
    WORD,
    Context,
    Coordinates,
    Counts,
    Piece,
    Strategy,
    Words,
    csr_bytes,
    label_bytes,
)
from harness.strategy.models import Part, Predictions, Skip, SplitAccuracy, Weight
from harness.strategy.models.operators import apply_dropout, dropout_key, dropout_mask
from harness.strategy.parallel.halo import Boundary
from harness.strategy.parallel.label_loss import make_label_loss

EPSILON = 1e-6
"""Added to the mean square of a row before the square root."""


class RowStrategy(Strategy):
    """Splits rows of the graph and of all activations over an axis, and replicates the weights."""

    axes: ClassVar[tuple[AxisName, ...]] = (AxisName.P,)
    rows_over: ClassVar[AxisName] = AxisName.P
    partitioned_over: ClassVar[AxisName | None] = AxisName.P

    def refuse(self) -> str | None:
        if self.spec.dataset.permutation == "double":
            return "its layers do not alternate between two orders, as a double permutation asks: use single or none"
        return self.too_many_ranks()

    def blocks(self) -> list[range]:
        """Return the vertices of every block of rows."""
        return self.facts.blocks(self.grid[self.rows_over])

    def rows(self, at: Coordinates) -> range:
        """Return the vertices of the rank at `at`."""
        return self.blocks()[at[self.rows_over]]

    def columns(self, at: Coordinates, width: int) -> range:
        """Return the columns that the rank at `at` holds of a matrix of this width."""
        return range(width)

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        """Return the rectangles of A and A^T by which the rank at `at` multiplies."""
        rows = self.rows(at)
        return [Piece(rows, block) for block in self.blocks()]

    def boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        """Return the sizes of the halo of the rank at `at`."""
        blocks = self.blocks()
        return Boundary(counts, blocks, at[self.rows_over], range(len(blocks)))

    @property
    def needs_own_features(self) -> bool:
        """True if a root weight multiplies X, in addition to A X."""
        return any(weight.part is Part.ROOT for weight in self.weights)

    def add_reductions(self, words: Words, over: AxisName | tuple[AxisName, ...]) -> None:
        """Add the words of an epoch's reductions over all ranks: the gradient of every weight, and the loss."""
        for weight in self.weights:
            size = prod(weight.shape)
            words.add(Direction.BACKWARD, weight.layer, Op.ALL_REDUCE, over, TensorName.DW, size)
        words.add(Direction.FORWARD, NO_INDEX, Op.ALL_REDUCE, over, TensorName.LOSS, 1)

    def is_owner_computes(self) -> bool:
        """Return True if each row of H and G is on one rank, which multiplies by the entries of that row of A."""
        return False

    def products_per_layer(self, layer: int) -> int:
        """Return the number of products with A in a layer."""
        return 1

    def words_lower_bound(self, at: Coordinates, counts: Counts) -> float:
        """Return the boundary at the narrower width of each product with A, plus one sum of all weight gradients.

        A X of fixed features needs to be computed only once, so the first layer is free. Between two ranks, either rows
        of G or partial sums of dH are sent, whichever are fewer.
        """
        if not self.is_owner_computes() or self.spec.model.kind == "gat":
            return 0.0
        own = self.rows(at)
        others = [block for block in self.blocks() if block != own]
        if not others:
            return 0.0
        forward = [counts.nonempty_columns(own, block) for block in others]
        gradient_rows = [counts.nonempty_columns(own, block, transposed=True) for block in others]
        partial_sums = [counts.nonempty_columns(block, own) for block in others]
        backward = map(min, gradient_rows, partial_sums)
        width = sum(
            self.products_per_layer(layer) * min(shape)
            for layer, shape in enumerate(self.shapes)
            if self.needs_dH(layer)
        )
        trained = sum(rows * cols for _, _, (rows, cols) in self.weights)
        return float(width * (sum(forward) + sum(backward)) + trained)

    def weight_piece(self, weight: Weight, at: Coordinates) -> Piece:
        rows, cols = weight.shape
        return Piece(range(rows), range(cols))

    def input_piece(self, at: Coordinates) -> Piece:
        return Piece(self.rows(at), self.columns(at, self.facts.features))

    def output_piece(self, at: Coordinates) -> Piece:
        return Piece(self.rows(at), self.columns(at, self.facts.classes))

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        return {TensorName.A: self.matrices_bytes(self.matrix_pieces(at), counts), **dense_bytes(self, at)}

    def matrices_bytes(self, pieces: list[Piece], counts: Counts) -> int:
        """Return the bytes of these rectangles of A and, for a directed graph, of A^T."""
        return sum(
            self.matrix_bytes(len(rows), counts.nonzeros(rows, cols, transposed=transposed))
            for rows, cols in pieces
            for transposed in self.transposed_options()
        )

    def matrix_bytes(self, rows: int, nonzeros: int) -> int:
        """Return the bytes of one rectangle in the strategy's matrix format."""
        return csr_bytes(rows, nonzeros, self.spec.precision)

    def transposed_options(self) -> list[bool]:
        """Return the values of `transposed` for the matrices that a rank holds: A, and A^T for a directed graph."""
        return [False, True] if self.facts.directed else [False]


def dense_bytes(strategy: Strategy, at: Coordinates) -> dict[TensorName, int]:
    """Return the bytes of the features, weights and labels that the rank at `at` holds."""
    word, features = WORD[strategy.spec.precision], strategy.input_piece(at)
    weights = [strategy.weight_piece(weight, at) for weight in strategy.weights]
    return {
        TensorName.X: word * len(features.rows) * len(features.cols),
        TensorName.W: word * sum(len(rows) * len(cols) for rows, cols in weights),
        TensorName.LABELS: label_bytes(strategy.output_piece(at), strategy.facts.task),
    }


class LayerOperators:
    """The operators of one rank except the convolution: projection, norm, ReLU, dropout, residual and head."""

    def __init__(self, ctx: Context, vertices: Index, group: int = 0, step: int | None = None) -> None:
        """`vertices` are the rows as vertices of the whole graph; `group` is the data-parallel group."""
        self.ledger, self.kernels = ctx.ledger, ctx.kernels
        self.model, self.seed, self.group = ctx.spec.model, ctx.spec.seed, group
        self.device, self.vertices = ctx.device, vertices
        self.numbers, self.step = ctx.numbers, step
        """The training step of the dropout masks; None outside training."""

    def for_step(self, step: int) -> Self:
        """Return a copy of these operators with the dropout masks of a step."""
        operators = copy.copy(self)
        operators.step = step
        return operators

    def linear(self, part: Part, H_NF: Tensor, W_FH: Tensor, layer: int = -1) -> Tensor:
        with self.ledger.phase(Phase.LINEAR, layer):
            return self.kernels.gemm(H_NF, W_FH, TensorName.H if part is Part.PROJECTION else TensorName.Z)

    def finish(self, layer: int, Z_NH: Tensor, gamma: Tensor | None) -> Tensor:
        if gamma is not None:
            Z_NH = self.normalise(layer, Z_NH, gamma)
        if self.model.activation == "relu":
            Z_NH = self.activate(layer, Z_NH)
        return Z_NH if self.step is None or not self.model.dropout else self.drop(layer, Z_NH)

    def normalise(self, layer: int, Z_NH: Tensor, gamma_1H: Tensor) -> Tensor:
        """Divide each row by its root mean square and multiply by gamma."""
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return self.kernels.elementwise(
                lambda Z, gamma: rms_norm(Z, Z.shape[1:], gamma[0], EPSILON),
                Z_NH,
                gamma_1H,
                makes=TensorName.H,
            )

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return self.kernels.elementwise(torch.relu, Z_NH, makes=TensorName.H)

    def drop(self, layer: int, H_NH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.ACTIVATE, layer):
            kept_NH, scale = self.draw_mask(layer, H_NH)
            return self.kernels.elementwise(
                partial(apply_dropout, kept=kept_NH, scale=scale), H_NH, makes=TensorName.H
            )

    def draw_mask(self, layer: int, H_NH: Tensor) -> tuple[Tensor, float]:
        """Return the mask of the elements that dropout keeps in this rank's piece, and their factor."""
        assert self.step is not None
        at: tuple[int, int, int, int] | Tensor = (self.seed, self.step, self.group, layer)
        if self.numbers.capturing:
            at = self.numbers.get_tensor(
                self.step, lambda step: dropout_key((self.seed, step, self.group, layer))
            )
        return dropout_mask(at, self.rows_of(layer), self.features(layer, H_NH), self.model.dropout)

    def rows_of(self, layer: int) -> Tensor:
        """Return the vertices of the rows of a layer's output."""
        return to_index_tensor(self.vertices, self.device)

    def features(self, layer: int, H_NH: Tensor) -> range:
        """Return this rank's columns of a layer's output, as columns of the whole output."""
        return range(H_NH.shape[1])

    def save_input(self, layer: int, H: Tensor) -> Skip:
        return Skip(H, H)

    def add_input(self, layer: int, H: Tensor, skip: Skip) -> Tensor:
        """Add the layer's input. If it has more rows than the output, the rows of the output come first."""
        saved = skip.saved if len(skip.saved) == len(H) else skip.saved[: len(H)]
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return self.kernels.elementwise(torch.add, H, saved, makes=TensorName.H)

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Do nothing: every operator has reduced its own gradients."""


class RowOperators(LayerOperators):
    """Adds input, loss and evaluation, which are row-wise except for sums over the blocks of rows."""

    def __init__(
        self,
        ctx: Context,
        strategy: Strategy,
        over: tuple[AxisName, ...],
        across: AxisName | None = None,
        others: Tensor | None = None,
    ) -> None:
        """The axes `over` split the rows of the output, and `across`, if any, splits its columns.

        `others` are vertices of other ranks whose features are stored after this rank's own.
        """
        super().__init__(ctx, strategy.output_piece(ctx.at).rows)
        self.combines_first = strategy.combines_first
        self.over = ctx.grid.axis(over)
        self.shares = ctx.grid.axis((*over, across)) if across else self.over
        """The axis over which partial losses are summed."""
        output, order = strategy.output_piece(ctx.at), (ctx.spec.model.layers - 1) % 2
        self.rows, split = output.rows, ctx.grid[across] if across else None
        self.label_loss = make_label_loss(ctx, output, order, self.over, split, self.shares)
        self.X, self._memory = ctx.blocks.features(*strategy.input_piece(ctx.at), others), ctx.memory

    def inputs(self) -> Tensor:
        return self.X

    def hold_aggregated_features(self, AX: Tensor, X: Tensor | None) -> Tensor:
        """Hold A X, which is computed once, in place of the features, or next to `X` if a weight multiplies X too."""
        self._memory.release(self.X)
        AX = self._memory.hold(TensorName.T, AX)
        self.X = AX if X is None else self._memory.hold(TensorName.X, X)
        return AX

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        """Return A H W, multiplied in the order of the layer."""
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.combines_first(layer):
                return self.aggregate(layer, self.kernels.gemm(H_NF, W_FH, TensorName.T), TensorName.Z)
            return self.kernels.gemm(self.aggregate(layer, H_NF, TensorName.T), W_FH, TensorName.Z)

    def aggregate(self, layer: int, H_NF: Tensor, makes: TensorName) -> Tensor:
        """Return this rank's rows of A H, differentiable, under the name `makes`."""
        raise NotImplementedError(f"{type(self).__name__} defines neither aggregate nor convolve")

    def loss(self, Z_NC: Tensor) -> Tensor:
        return self.label_loss.mean(Z_NC, self.shares)

    def evaluate(self, Z_NC: Tensor) -> dict[str, SplitAccuracy]:
        return self.label_loss.evaluate(Z_NC)

    def gather_predictions(self, Z_NC: Tensor) -> dict[str, Predictions]:
        return self.label_loss.gather_predictions(Z_NC)


def reduce_all_gradients(weights: Sequence[Tensor], over: Axis, layers: Sequence[int] | None = None) -> None:
    """Sum the gradients of all weights over an axis, in place and in one call.

    `layers` are the layers of the weights; None for gradients outside any layer.
    """
    gradients = [W.grad for W in weights if W.grad is not None]
    assert len(gradients) == len(weights), "a weight has no gradient"
    over.all_reduce_coalesced(gradients, layers=layers or [NO_INDEX] * len(weights), tensor=TensorName.DW)


def to_index_tensor(vertices: Index, device: torch.device) -> Tensor:
    """Convert a range to a tensor; return a tensor unchanged."""
    if isinstance(vertices, Tensor):
        return vertices
    return torch.arange(vertices.start, vertices.stop, device=device)
