"""CAGNET 2D and 3D: blocks of rows and columns, multiplied by SUMMA (SC'20, section IV-C), on any grid of Pr x Pc.

A, H, T, Z, G and S are split into Pr x Pc blocks, and W is replicated. P(i, j) has the block at grid row i and grid
column j. The axis col contains the ranks of a grid row, the axis row the ranks of a grid column. A third axis, fibre,
stacks such grids (`ThreeD`).

Legend: N the vertices of this grid row, K those of a stage, F and H this rank's share of the features in and out, C of
the classes. Our A is the paper's A^T: Z = A H W. T = A H. G = dL/dZ. S = A^T G, dH = S W^T, Y = dL/dW = H^T S = T^T G.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import gcd, log2
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.autograd import Function

from harness.base.ranges import intersect_ranges, split_evenly, split_range
from harness.kernels.csr import unpack
from harness.ledger import AxisName, Direction, Op, Phase, TensorName, apply
from harness.strategies.cagnet.summa import PackedBlock, Split3D, SummaBlocks, redistribute_transposed
from harness.strategies.cagnet.terms import (
    BACKWARD,
    COL,
    FIBRE,
    FORWARD,
    ROW,
    MovedRows,
    explain_kept_T,
    refuse_kept_T,
)
from harness.strategy import (
    Context,
    Coordinates,
    Counts,
    MessageParams,
    Piece,
    Promise,
    PublishedCost,
    Quantity,
    Words,
    packed_bytes,
)
from harness.strategy.models import Part, Weight
from harness.strategy.parallel.gradients import Gradients
from harness.strategy.parallel.norm import Epilogue, NormPlan, normalise_rows
from harness.strategy.parallel.row_strategy import RowOperators, RowStrategy


class BlockParams(MessageParams):
    """The parameters of the 2D and 3D algorithms. The first choice is the paper's."""

    weight_gradient: Literal["summa", "S", "T"] = "summa"
    """Y = H^T S by a dense SUMMA, for which H is transposed; or from the rows of S that S W^T needs anyway; or
    Y = T^T G from the rows of T that T W needed, so that the first layer needs no S."""
    moves: Literal["broadcasts", "all_gather"] = "broadcasts"
    """The blocks of a product arrive stage by stage; or all together, in fewer calls, which takes more memory."""
    overlap: bool = False
    """Blocks of the next stage are in flight while the blocks of this stage are multiplied."""
    block: int | None = Field(None, ge=1, examples=[17])
    """The most vertices that a stage contracts over (the paper's b); None for as many as a rank has."""

    @model_validator(mode="after")
    def _has_stages(self) -> "BlockParams":
        if (self.overlap or self.block) and self.moves == "all_gather":
            raise ValueError("overlap and block apply to stages, and an all_gather has none: use broadcasts")
        return self


class Convolve2D(Function):
    """Z = A H W by Algorithm 3, and its backward pass."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W: Tensor, ops: "Summa", combines_first: bool) -> Tensor:
        saved.ops, (f_in, _), gather_rows = ops, W.shape, ops.blocks.gather_rows
        if combines_first:
            saved.save_for_backward(W, H_NF)
            T_NH = ops.multiply_by_W(gather_rows(H_NF, f_in, TensorName.H), W, TensorName.T)
            return ops.multiply(ops.A_NK, T_NH, moves=TensorName.T, makes=TensorName.Z)
        T_NF = ops.multiply(ops.A_NK, H_NF, moves=TensorName.H, makes=TensorName.T)
        if ops.weight_gradient != "T":
            saved.save_for_backward(W, H_NF)
            return ops.multiply_by_W(gather_rows(T_NF, f_in, TensorName.T), W, TensorName.Z)
        T_row = list(gather_rows(T_NF, f_in, TensorName.T))
        saved.save_for_backward(W, *T_row)
        return ops.multiply_by_W(T_row, W, TensorName.Z)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        ops, (W, *kept), needs_dH = saved.ops, saved.saved_tensors, saved.needs_input_grad[0]
        variant, (f_in, f_out) = ops.weight_gradient, W.shape
        dH_NF, S_row = None, []
        if needs_dH or variant != "T":
            S_NH = ops.multiply(ops.A_T_NK, G_NH, moves=TensorName.G, makes=TensorName.S)
        if needs_dH or variant == "S":
            S_row = list(ops.blocks.gather_rows(S_NH, f_out, TensorName.S))
        if needs_dH:
            dH_NF = ops.multiply_by_W(S_row, W.T, TensorName.DH)
        if variant == "T":
            return dH_NF, ops.outer_product(G_NH, f_out, kept).T.contiguous(), None, None
        if variant == "S":
            return dH_NF, ops.outer_product(kept[0], f_in, S_row), None, None
        return dH_NF, ops.multiply_transposed(kept[0], S_NH, f_in, f_out), None, None


class Multiply2D(Function):
    """H W, which is the second phase of Algorithm 3, and its backward pass."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W: Tensor, ops: "Summa", makes: TensorName) -> Tensor:
        saved.ops = ops
        saved.save_for_backward(H_NF, W)
        return ops.multiply_by_W(ops.blocks.gather_rows(H_NF, W.shape[0], TensorName.H), W, makes)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        ops, (H_NF, W), needs_dH = saved.ops, saved.saved_tensors, saved.needs_input_grad[0]
        G_row = list(ops.blocks.gather_rows(G_NH, W.shape[1], TensorName.G))
        dH_NF = ops.multiply_by_W(G_row, W.T, TensorName.DH) if needs_dH else None
        return dH_NF, ops.outer_product(H_NF, W.shape[0], G_row), None, None


class Summa(RowOperators):
    """One rank's convolution: the two phases of Algorithm 3, and the weight gradient.

    In 2D there is one fibre layer, and the sums along the fibre make no call.
    """

    def __init__(self, ctx: Context, strategy: "TwoD") -> None:
        super().__init__(ctx, strategy, over=strategy.axes_of_rows, across=COL)
        self.strategy, self.at, self.layout = strategy, ctx.at, strategy.layout
        self.weight_gradient = strategy.params.weight_gradient
        overlap, at_once = strategy.params.overlap, strategy.params.moves == "all_gather"
        self.blocks = SummaBlocks(ctx, self.layout, strategy.layer(ctx.at), overlap=overlap, at_once=at_once)
        self.fibre = ctx.grid.axis(tuple(axis for axis in strategy.axes if axis is FIBRE))
        self.A_NK, self.A_T_NK = self.blocks.A_NK, self.blocks.A_T_NK
        self.grid = ctx.grid

    def linear(self, part: Part, H_NF: Tensor, W: Tensor, layer: int = -1) -> Tensor:
        makes = TensorName.H if part is Part.PROJECTION else TensorName.Z
        with self.ledger.phase(Phase.LINEAR, layer):
            Z_NH: Tensor = apply(self.ledger, Multiply2D, H_NF, W, self, makes)
            return Z_NH

    def normalise(self, layer: int, Z_NH: Tensor, gamma_1H: Tensor) -> Tensor:
        """Normalise rows; the sum of squares of each row is reduced over the grid row."""
        no_epilogue = Epilogue(self.model.hidden, relu=False, mask=None, scale=1.0)
        gradients = Gradients(self.grid.axis(()), overlap=False)
        plan = NormPlan(self.grid[COL], self.over, gradients, fused=False)
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return normalise_rows(self.kernels, Z_NH, gamma_1H, no_epilogue, plan)

    def convolve(self, layer: int, H_NF: Tensor, W: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            Z_NH: Tensor = apply(self.ledger, Convolve2D, H_NF, W, self, self.combines_first(layer))
            return Z_NH

    def features(self, layer: int, H_NH: Tensor) -> range:
        return self.strategy.columns(self.at, self.strategy.shapes[layer][1])

    def multiply(
        self, A_NK: Sequence[PackedBlock], H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        """Return A H, the first phase.

        1. In each stage, broadcast a block of A along the grid row and a block of H along the grid column; multiply.
        2. In 3D, reduce-scatter the partial products along the fibre: each layer keeps its part of the rows.
        """
        T_NF = None
        for A, (packed, H_KF) in zip(A_NK, self.blocks.product_operands(A_NK, H_NF, moves), strict=True):
            T_NF = self.kernels.spmm(unpack(packed, A.form), H_KF, makes, add_to=T_NF)
        if T_NF is None:
            T_NF = H_NF.new_zeros((len(self.layout.block(self.at[ROW])), H_NF.shape[1]))
        sizes = [len(self.layout.rows_of(self.at[ROW], k)) for k in range(self.layout.fibres)]
        return self.fibre.reduce_scatter(T_NF, sizes=sizes, tensor=makes)

    def multiply_by_W(self, row: Iterable[Tensor], W: Tensor, makes: TensorName) -> Tensor:
        """Return T W, the second phase: whole rows of T times this rank's columns of W."""
        down, own = split_evenly(W.shape[0], self.layout.cols), self.strategy.columns(self.at, W.shape[1])
        Z = None
        for part, T in zip(down, row, strict=True):
            Z = self.kernels.gemm(T, W[part.start : part.stop, own.start : own.stop], makes, add_to=Z)
        assert Z is not None
        return Z

    def outer_product(self, X_NF: Tensor, width: int, row: Sequence[Tensor]) -> Tensor:
        """Return X^T R on every rank, from this rank's columns of X and whole rows of R."""
        part = torch.cat([self.kernels.gemm(X_NF.T, R, TensorName.DW) for R in row], dim=1)
        part = self.over.all_reduce(part, tensor=TensorName.DW)
        sizes = [len(block) for block in split_evenly(width, self.layout.cols)]
        return self.blocks.row_group.all_gather(part, sizes=sizes, tensor=TensorName.DW)

    def multiply_transposed(self, H_NF: Tensor, S_NH: Tensor, f_in: int, f_out: int) -> Tensor:
        """Return H^T S on every rank.

        1. Redistribute H to the layout of its transpose.
        2. In each stage, broadcast a block of H along the grid row and a block of S along the grid column; multiply.
        3. In 3D, sum the partial products along the fibre.
        4. Gather the blocks of the product.
        """
        blocks, layout = self.blocks, self.layout
        H_KF = redistribute_transposed(H_NF, f_in, layout, blocks.layer, blocks.plane)
        down, across = split_evenly(f_in, layout.rows), split_evenly(f_out, layout.cols)
        Y = H_NF.new_zeros((len(down[self.at[ROW]]), S_NH.shape[1]))
        for H_K, S_K in blocks.transposed_product_operands(H_KF, S_NH):
            Y = self.kernels.gemm(H_K.T, S_K, TensorName.DW, add_to=Y)
        return blocks.gather_matrix(self.fibre.all_reduce(Y, tensor=TensorName.DW), down, across)


class TwoD(RowStrategy):
    """CAGNET's 2D algorithm, for any rectangular grid with at most as many columns as features."""

    name = "cagnet-2d"
    paper = "CAGNET (SC 2020), section IV-C"
    promise = Promise.EXACT
    has_model_parts = True
    can_recompute = True
    models = ("gcn", "sage")
    axes: ClassVar[tuple[AxisName, ...]] = (ROW, COL)
    rows_over = ROW
    partitioned_over = None
    Params = BlockParams
    params: BlockParams

    def refuse(self) -> str | None:
        matrices = [weight.shape for weight in self.weights if weight.part is not Part.SCALE]
        narrowest, cols = min(map(min, matrices)), self.grid[COL]
        if narrowest < cols:
            return (
                f"rows of {narrowest} features or classes are too few for {cols} grid columns, each of which needs "
                f"one: use a grid of at most {narrowest} columns"
            )
        return refuse_kept_T(self.params.weight_gradient, self.spec.model.order) or super().refuse()

    @property
    def aggregate_first_reason(self) -> str | None:
        return explain_kept_T(self.params.weight_gradient)

    def is_narrower_combined(self, layer: int) -> bool:
        """Return whether H W has fewer columns than H: the backward pass multiplies A^T G in both orders."""
        f_in, f_out = self.shapes[layer]
        return f_out < f_in

    @property
    def layout(self) -> Split3D:
        return Split3D(
            self.facts.vertices, self.grid[ROW], self.grid[COL], self.grid.get(FIBRE, 1), self.params.block
        )

    def layer(self, at: Coordinates) -> int:
        """Return the fibre layer of the rank at `at`; 0 in 2D."""
        return at.get(FIBRE, 0)

    def rows(self, at: Coordinates) -> range:
        return self.layout.rows_of(at[ROW], self.layer(at))

    def columns(self, at: Coordinates, width: int) -> range:
        return split_evenly(width, self.grid[COL])[at[COL]]

    def weight_piece(self, weight: Weight, at: Coordinates) -> Piece:
        """Return the whole matrix, or of a scale the columns that the rank scales."""
        rows, cols = super().weight_piece(weight, at)
        return Piece(rows, self.columns(at, len(cols)) if weight.part is Part.SCALE else cols)

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        block = self.layout.block(at[ROW])
        return [Piece(block, cols) for cols in self.layout.columns_of(at[COL], self.layer(at))]

    def matrix_bytes(self, rows: int, nonzeros: int) -> int:
        return packed_bytes(rows, nonzeros, self.spec.precision)

    def operators(self, ctx: Context) -> Summa:
        return Summa(ctx, self)

    def published_costs(self) -> list[PublishedCost]:
        """Return the total of section IV-C5 on a square grid; the forward pass of section IV-C6 on any other."""
        side, n, nonzeros = self.grid[ROW], self.facts.vertices, self.facts.nonzeros
        if side != self.grid[COL]:
            return self._published_forward()
        return [
            PublishedCost(
                Quantity.WORDS,
                "sum of (8 n f_l + 2 nnz) / sqrt(P) + f_l^2",
                ("CAG-010", "CAG-011", "CAG-012"),
                sum((8 * n * f_out + 2 * nonzeros) / side + f_out**2 for _, f_out in self.shapes),
                "a nonzero is a value and a column, and rows have pointers; softmax sends two words a row in the last "
                "layer, not whole rows in each; f_(l-1) for f_l; H is transposed first; no dH of the features; another "
                "order sends rows of other widths",
            ),
            PublishedCost(
                Quantity.CALLS,
                "sum of 5 sqrt(P) + 3 lg P",
                ("CAG-017",),
                len(self.shapes) * (5 * side + 3 * log2(self.spec.ranks)),
                "two calls a stage, of A and of H, where the paper counts one; a gather is one call, not lg P",
            ),
        ]

    def _published_forward(self) -> list[PublishedCost]:
        """Return the forward pass of section IV-C6. The paper gives no cost of the backward pass on these grids."""
        rows, cols = self.grid[ROW], self.grid[COL]
        n, nonzeros = self.facts.vertices, self.facts.nonzeros
        return [
            PublishedCost(
                Quantity.FORWARD_WORDS,
                "sum of nnz / Pr + n f_(l-1) / Pc + n f_(l-1) / Pr",
                (),
                sum(nonzeros / rows + n * f_in / cols + n * f_in / rows for f_in, _ in self.shapes),
                "a nonzero is a value and a column, and rows have pointers; blocks are not all equal; an axis of one "
                "rank carries nothing; another order sends rows of other widths",
            ),
            PublishedCost(
                Quantity.FORWARD_CALLS,
                "sum of gcf(Pr, Pc)",
                (),
                len(self.shapes) * gcd(rows, cols),
                "cuts by rows and by columns make Pr + Pc - gcf(Pr, Pc) stages, two calls each, of A and of H; T takes "
                "Pc calls more",
            ),
        ]

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Return the words of A and H in products with A, of T or S in products with W, and of weight gradients."""
        words, own = Words(self.grid, self.recomputed_layers), len(self.rows(at))
        variant = self.params.weight_gradient
        A = {back: self._words_of_A(at, counts, transposed=back is BACKWARD) for back in (FORWARD, BACKWARD)}
        moved = self.moved_rows(at)

        def add_product(
            direction: Direction, layer: int, factor: TensorName, makes: TensorName, width: int
        ) -> None:
            words.add(direction, layer, self._block_op, COL, TensorName.A, A[direction])
            for op, axis, rows, sums in moved:
                block = rows * len(self.columns(at, width))
                words.add(direction, layer, op, axis, makes if sums else factor, block)

        for layer, (f_in, f_out) in enumerate(self.shapes):
            if self.combines_first(layer):
                words.add(FORWARD, layer, self._block_op, COL, TensorName.H, own * f_in)
                add_product(FORWARD, layer, TensorName.T, TensorName.Z, f_out)
            else:
                add_product(FORWARD, layer, TensorName.H, TensorName.T, f_in)
                words.add(FORWARD, layer, self._block_op, COL, TensorName.T, own * f_in)
            if self.needs_dH(layer) or variant != "T":
                add_product(BACKWARD, layer, TensorName.G, TensorName.S, f_out)
            if self.needs_dH(layer) or variant == "S":
                words.add(BACKWARD, layer, self._block_op, COL, TensorName.S, own * f_out)
            self._add_weight_gradient(words, layer, f_in, f_out, at)
        for weight in self.weights:
            self._add_model_part(words, weight, at)
        if self.facts.task == "single-label":
            words.add(FORWARD, -1, Op.ALL_REDUCE, COL, TensorName.LOSS, 2 * own)
        words.add(FORWARD, -1, Op.ALL_REDUCE, self.axes, TensorName.LOSS, 1)
        return words

    @property
    def _block_op(self) -> Op:
        """The collective that brings blocks to the ranks that multiply by them."""
        return Op.ALL_GATHER if self.params.moves == "all_gather" else Op.BROADCAST

    def moved_rows(self, at: Coordinates) -> list[MovedRows]:
        """Return the dense rows that a product with A moves: rows of H, and in 3D the sum of partial products."""
        contracted = sum(map(len, self.layout.layer(self.layer(at))))
        sums = MovedRows(Op.REDUCE_SCATTER, FIBRE, len(self.layout.block(at[ROW])), sums=True)
        return [MovedRows(self._block_op, ROW, contracted), *([sums] if FIBRE in self.grid else [])]

    def _words_of_A(self, at: Coordinates, counts: Counts, *, transposed: bool) -> int:
        """Return the words of A in a product: row pointers of each stage, a value and a column of each nonzero."""
        block, contracted = self.layout.block(at[ROW]), self.layout.layer(self.layer(at))
        nonzeros = sum(counts.nonzeros(block, part, transposed=transposed) for part in contracted)
        return self._count_stages(contracted) * (len(block) + 1) + 2 * nonzeros

    def _count_stages(self, contracted: Sequence[range]) -> int:
        """Return the number of stages, cut by grid rows, by grid columns and by the blocking parameter."""
        total = sum(map(len, contracted))
        by_rows = set(accumulate(map(len, contracted)))
        by_cols = {min(-(-total // self.grid[COL]) * (j + 1), total) for j in range(self.grid[COL])}
        lengths = [high - low for low, high in pairwise(sorted({0} | by_rows | by_cols))]
        return sum(-(-length // (self.params.block or length)) for length in lengths)

    def _add_weight_gradient(self, words: Words, layer: int, f_in: int, f_out: int, at: Coordinates) -> None:
        """Add the words of Y: a second SUMMA (section IV-C), or a sum and a gather."""
        own_in, own_out = len(self.columns(at, f_in)), len(self.columns(at, f_out))
        if self.params.weight_gradient != "summa":
            part = f_in * own_out if self.params.weight_gradient == "T" else own_in * f_out
            words.add(BACKWARD, layer, Op.ALL_REDUCE, self.axes_of_rows, TensorName.DW, part)
            words.add(BACKWARD, layer, Op.ALL_GATHER, COL, TensorName.DW, f_in * f_out)
            return
        contracted = self.layout.layer(self.layer(at))
        total, down = sum(map(len, contracted)), split_evenly(f_in, self.grid[ROW])[at[ROW]]
        share = split_range(total, self.grid[COL])[at[COL]]
        before = sum(map(len, contracted[: at[ROW]]))
        rows, cols = range(before, before + len(self.rows(at))), self.columns(at, f_in)
        stays = len(intersect_ranges(rows, share)) * len(intersect_ranges(down, cols))
        words.add(BACKWARD, layer, Op.SEND, (ROW, COL), TensorName.H, len(self.rows(at)) * own_in - stays)
        words.add(BACKWARD, layer, Op.RECV, (ROW, COL), TensorName.H, len(share) * len(down) - stays)
        words.add(BACKWARD, layer, self._block_op, COL, TensorName.H, total * len(down))
        words.add(BACKWARD, layer, self._block_op, ROW, TensorName.S, total * own_out)
        if FIBRE in self.grid:
            words.add(BACKWARD, layer, Op.ALL_REDUCE, FIBRE, TensorName.DW, len(down) * own_out)
        words.add(BACKWARD, layer, Op.ALL_GATHER, (ROW, COL), TensorName.DW, f_in * f_out)

    def _add_model_part(self, words: Words, weight: Weight, at: Coordinates) -> None:
        """Add the words of a normalisation, or of a product with a weight outside of a convolution."""
        own, (f_in, f_out) = len(self.rows(at)), weight.shape
        if weight.part is Part.SCALE:
            words.add(FORWARD, weight.layer, Op.ALL_REDUCE, COL, TensorName.SQUARES, own)
            words.add(BACKWARD, weight.layer, Op.ALL_REDUCE, COL, TensorName.SQUARES, own)
            scaled = len(self.columns(at, f_out))
            words.add(BACKWARD, weight.layer, Op.ALL_REDUCE, self.axes_of_rows, TensorName.DGAMMA, scaled)
        elif weight.part is not Part.CONVOLUTION:
            words.add(FORWARD, weight.layer, self._block_op, COL, TensorName.H, own * f_in)
            words.add(BACKWARD, weight.layer, self._block_op, COL, TensorName.G, own * f_out)
            part = len(self.columns(at, f_in)) * f_out
            words.add(BACKWARD, weight.layer, Op.ALL_REDUCE, self.axes_of_rows, TensorName.DW, part)
            words.add(BACKWARD, weight.layer, Op.ALL_GATHER, COL, TensorName.DW, f_in * f_out)

    @property
    def axes_of_rows(self) -> tuple[AxisName, ...]:
        """The axes that split the rows of H."""
        return tuple(axis for axis in self.axes if axis is not COL)


# 3D: Split-3D-SpMM (section IV-D), on any grid of rows x columns x fibres.
#
# Each fibre layer is a 2D grid that contracts over its own vertices; then partial products are summed along the fibre,
# and every rank keeps its part of the rows. A has block rows as in 2D, whose columns are divided among the layers; W is
# replicated. A product with W needs no sum along the fibre, because the fibre splits rows and not features. The paper
# counts a reduction for each product with A and for each product with W.


class ThreeD(TwoD):
    """CAGNET's 3D algorithm, for any grid with at most as many columns as features."""

    name = "cagnet-3d"
    paper = "CAGNET (SC 2020), section IV-D"
    axes = (ROW, COL, FIBRE)

    def published_costs(self) -> list[PublishedCost]:
        """Return the totals of section IV-D5, which covers cubic grids only."""
        side = self.grid[FIBRE]
        if {self.grid[axis] for axis in self.axes} != {side}:
            return []
        n, nonzeros = self.facts.vertices, self.facts.nonzeros
        return [
            PublishedCost(
                Quantity.WORDS,
                "sum of (12 n f_l + 2 nnz) / P^(2/3)",
                ("CAG-013", "CAG-014"),
                sum((12 * n * f_out + 2 * nonzeros) / side**2 for _, f_out in self.shapes),
                "as in 2D; and a product with W needs no sum along the fibre, for which the paper counts n f / P^(2/3)",
            ),
            PublishedCost(
                Quantity.CALLS,
                "sum of 4 P^(1/3)",
                ("CAG-018",),
                len(self.shapes) * 4 * side,
                "two calls a stage, and the reductions and gathers, which the paper drops",
            ),
            PublishedCost(
                Quantity.LAYOUT,
                "partial products, times the size of T: P^(1/3)",
                ("CAG-019",),
                side,
                "",
                self.spec.ranks / (self.grid[ROW] * self.grid[COL]),
            ),
        ]
