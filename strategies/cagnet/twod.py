"""CAGNET 2D and 3D: blocks of rows and columns, multiplied by SUMMA (SC'20, section IV-C), on any grid of Pr x Pc.

A, H, T, Z, G and S are cut into Pr x Pc blocks, W is whole on every rank. P(i, j) has the block at grid row i and grid
column j. The axis col joins the ranks of a grid row, the axis row those of a grid column. A third axis, fibre, stacks
such grids (`ThreeD`).

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

from harness.kernels.csr import unpack
from harness.ledger import AxisName, Direction, Op, Phase, TensorName, apply
from harness.models import Part, Weight
from harness.parallel.gradients import Gradients
from harness.parallel.norm import Epilogue, NormPlan, normalise_rows
from harness.parallel.row_strategy import RowOperators, RowStrategy
from harness.ranges import intersect, split, split_evenly
from harness.strategies.cagnet.summa import Split3D, SummaBlocks, Travelling, transposed_layout
from harness.strategies.cagnet.terms import BACKWARD, COL, FIBRE, FORWARD, ROW, Moved, nothing_to_keep
from harness.strategy import (
    Context,
    Coordinates,
    Counts,
    MessageParams,
    Piece,
    Promise,
    Published,
    Quantity,
    Words,
    packed_bytes,
)


class BlockParams(MessageParams):
    """The parameters of the 2D and 3D algorithms. The first choice is the paper's."""

    weight_gradient: Literal["summa", "S", "T"] = "summa"
    """Y = H^T S by a dense SUMMA, for which H is transposed; or from the rows of S that S W^T needs anyway; or
    Y = T^T G from the rows of T that T W needed, which spares the first layer its S."""
    moves: Literal["broadcasts", "all_gather"] = "broadcasts"
    """The blocks of a product arrive stage by stage; or all at once, in fewer calls, for which there must be room."""
    overlap: bool = False
    """Blocks of the next stage are under way while the blocks of this stage are multiplied."""
    block: int | None = Field(None, ge=1, examples=[17])
    """The most vertices that a stage contracts over (the paper's b); None: as many as one rank has."""

    @model_validator(mode="after")
    def _has_stages(self) -> "BlockParams":
        if (self.overlap or self.block) and self.moves == "all_gather":
            raise ValueError("overlap and block are about stages; an all_gather has none: use broadcasts")
        return self


class Convolve2D(Function):
    """Z = A H W by Algorithm 3, and its backward pass."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W: Tensor, ops: "Summa") -> Tensor:
        saved.ops, (f_in, _), whole_rows = ops, W.shape, ops.blocks.whole_rows
        if ops.combine_first:
            saved.save_for_backward(W, H_NF)
            T_NH = ops.times(whole_rows(H_NF, f_in, TensorName.H), W, TensorName.T)
            return ops.aggregate(ops.A_NK, T_NH, moves=TensorName.T, makes=TensorName.Z)
        T_NF = ops.aggregate(ops.A_NK, H_NF, moves=TensorName.H, makes=TensorName.T)
        if ops.weight_gradient != "T":
            saved.save_for_backward(W, H_NF)
            return ops.times(whole_rows(T_NF, f_in, TensorName.T), W, TensorName.Z)
        T_row = list(whole_rows(T_NF, f_in, TensorName.T))
        saved.save_for_backward(W, *T_row)
        return ops.times(T_row, W, TensorName.Z)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None]:
        ops, (W, *kept), wants_dH = saved.ops, saved.saved_tensors, saved.needs_input_grad[0]
        way, (f_in, f_out) = ops.weight_gradient, W.shape
        dH_NF, S_row = None, []
        if wants_dH or way != "T":
            S_NH = ops.aggregate(ops.A_T_NK, G_NH, moves=TensorName.G, makes=TensorName.S)
        if wants_dH or way == "S":
            S_row = list(ops.blocks.whole_rows(S_NH, f_out, TensorName.S))
        if wants_dH:
            dH_NF = ops.times(S_row, W.T, TensorName.DH)
        if way == "T":
            return dH_NF, ops.outer(G_NH, f_out, kept).T.contiguous(), None
        if way == "S":
            return dH_NF, ops.outer(kept[0], f_in, S_row), None
        return dH_NF, ops.summa(kept[0], S_NH, f_in, f_out), None


class Multiply2D(Function):
    """H W, the second phase of Algorithm 3 alone, and its backward pass."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W: Tensor, ops: "Summa", makes: TensorName) -> Tensor:
        saved.ops = ops
        saved.save_for_backward(H_NF, W)
        return ops.times(ops.blocks.whole_rows(H_NF, W.shape[0], TensorName.H), W, makes)

    @staticmethod
    def backward(saved: Any, G_NH: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        ops, (H_NF, W), wants_dH = saved.ops, saved.saved_tensors, saved.needs_input_grad[0]
        G_row = list(ops.blocks.whole_rows(G_NH, W.shape[1], TensorName.G))
        dH_NF = ops.times(G_row, W.T, TensorName.DH) if wants_dH else None
        return dH_NF, ops.outer(H_NF, W.shape[0], G_row), None, None


class Summa(RowOperators):
    """One rank's convolution: the two phases of Algorithm 3, and the weight gradient.

    In 2D there is one fibre layer, and the sums along the fibre are no calls.
    """

    def __init__(self, ctx: Context, strategy: "TwoD") -> None:
        super().__init__(ctx, strategy, over=strategy.axes_of_rows, across=COL)
        self.strategy, self.at, self.layout = strategy, ctx.at, strategy.layout
        self.weight_gradient = strategy.params.weight_gradient
        self.combine_first = ctx.spec.model.order == "combine_first"
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
        """One number a row is summed over the grid row."""
        alone = Epilogue(self.model.hidden, relu=False, mask=None, scale=1.0)
        gradients = Gradients(self.grid.axis(()), overlap=False)
        plan = NormPlan(self.grid[COL], self.over, gradients, fused=False)
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return normalise_rows(self.kernels, Z_NH, gamma_1H, alone, plan)

    def convolve(self, layer: int, H_NF: Tensor, W: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            Z_NH: Tensor = apply(self.ledger, Convolve2D, H_NF, W, self)
            return Z_NH

    def features(self, layer: int, H_NH: Tensor) -> range:
        return self.strategy.columns(self.at, self.strategy.shapes[layer][1])

    def aggregate(
        self, A_NK: Sequence[Travelling], H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        """A H, first phase.

        1. In each stage a block of A arrives along the grid row, a block of H along the grid column.
        2. In 3D, the partial products of the fibre layers are summed; each layer keeps its part of the rows.
        """
        T_NF = None
        for A, (packed, H_KF) in zip(A_NK, self.blocks.of_product(A_NK, H_NF, moves), strict=True):
            T_NF = self.kernels.spmm(unpack(packed, A.form), H_KF, makes, add_to=T_NF)
        if T_NF is None:
            T_NF = H_NF.new_zeros((len(self.layout.block(self.at[ROW])), H_NF.shape[1]))
        sizes = [len(self.layout.rows_of(self.at[ROW], k)) for k in range(self.layout.fibres)]
        return self.fibre.reduce_scatter(T_NF, sizes=sizes, tensor=makes)

    def times(self, row: Iterable[Tensor], W: Tensor, makes: TensorName) -> Tensor:
        """T W, second phase: whole rows of T by this rank's columns of W."""
        down, own = split_evenly(W.shape[0], self.layout.cols), self.strategy.columns(self.at, W.shape[1])
        Z = None
        for part, T in zip(down, row, strict=True):
            Z = self.kernels.gemm(T, W[part.start : part.stop, own.start : own.stop], makes, add_to=Z)
        assert Z is not None
        return Z

    def outer(self, X_NF: Tensor, width: int, row: Sequence[Tensor]) -> Tensor:
        """X^T R, whole on every rank, from this rank's columns of X and whole rows of R."""
        part = torch.cat([self.kernels.gemm(X_NF.T, R, TensorName.DW) for R in row], dim=1)
        part = self.over.all_reduce(part, tensor=TensorName.DW)
        sizes = [len(block) for block in split_evenly(width, self.layout.cols)]
        return self.blocks.row_group.all_gather(part, sizes=sizes, tensor=TensorName.DW)

    def summa(self, H_NF: Tensor, S_NH: Tensor, f_in: int, f_out: int) -> Tensor:
        """H^T S, whole on every rank.

        1. H changes to the layout of its transpose.
        2. In each stage a block of H arrives along the grid row, a block of S along the grid column.
        3. In 3D, the partial products of the fibre layers are summed.
        4. The blocks of the product are gathered.
        """
        blocks, layout = self.blocks, self.layout
        H_KF = transposed_layout(H_NF, f_in, layout, blocks.layer, blocks.plane)
        down, across = split_evenly(f_in, layout.rows), split_evenly(f_out, layout.cols)
        Y = H_NF.new_zeros((len(down[self.at[ROW]]), S_NH.shape[1]))
        for H_K, S_K in blocks.of_transposed_product(H_KF, S_NH):
            Y = self.kernels.gemm(H_K.T, S_K, TensorName.DW, add_to=Y)
        return blocks.gathered(self.fibre.all_reduce(Y, tensor=TensorName.DW), down, across)


class TwoD(RowStrategy):
    """CAGNET's 2D algorithm, for any rectangular grid whose columns have a feature each."""

    name = "cagnet-2d"
    paper = "CAGNET (SC 2020), section IV-C"
    promise = Promise.EXACT
    parts = True
    recomputes = True
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
        return nothing_to_keep(self.params.weight_gradient, self.spec.model.order) or super().refuse()

    @property
    def layout(self) -> Split3D:
        return Split3D(
            self.facts.vertices, self.grid[ROW], self.grid[COL], self.grid.get(FIBRE, 1), self.params.block
        )

    def layer(self, at: Coordinates) -> int:
        """The fibre layer of the rank at `at`; 0 in 2D."""
        return at.get(FIBRE, 0)

    def rows(self, at: Coordinates) -> range:
        return self.layout.rows_of(at[ROW], self.layer(at))

    def columns(self, at: Coordinates, width: int) -> range:
        return split_evenly(width, self.grid[COL])[at[COL]]

    def weight(self, weight: Weight, at: Coordinates) -> Piece:
        """Every matrix is whole on every rank; a scale is cut as the columns that it scales."""
        rows, cols = super().weight(weight, at)
        return Piece(rows, self.columns(at, len(cols)) if weight.part is Part.SCALE else cols)

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        block = self.layout.block(at[ROW])
        return [Piece(block, cols) for cols in self.layout.columns_of(at[COL], self.layer(at))]

    def matrix_bytes(self, rows: int, nonzeros: int) -> int:
        return packed_bytes(rows, nonzeros, self.spec.precision)

    def operators(self, ctx: Context) -> Summa:
        return Summa(ctx, self)

    def published(self) -> list[Published]:
        """The total of section IV-C5 on a square grid; the forward pass of section IV-C6 on any other."""
        side, n, nonzeros = self.grid[ROW], self.facts.vertices, self.facts.nonzeros
        if side != self.grid[COL]:
            return self._published_forward()
        return [
            Published(
                Quantity.WORDS,
                "sum of (8 n f_l + 2 nnz) / sqrt(P) + f_l^2",
                ("CAG-010", "CAG-011", "CAG-012"),
                sum((8 * n * f_out + 2 * nonzeros) / side + f_out**2 for _, f_out in self.shapes),
                "a nonzero is a value and a column, and rows have pointers; softmax sends two words a row in the last "
                "layer, not whole rows in each; f_(l-1) for f_l; H is transposed first; no dH of the features",
            ),
            Published(
                Quantity.CALLS,
                "sum of 5 sqrt(P) + 3 lg P",
                ("CAG-017",),
                len(self.shapes) * (5 * side + 3 * log2(self.spec.ranks)),
                "two calls a stage, of A and of H, where the paper counts one; a gather is one call, not lg P",
            ),
        ]

    def _published_forward(self) -> list[Published]:
        """The forward pass of section IV-C6. The paper gives no cost of the backward pass on these grids."""
        rows, cols = self.grid[ROW], self.grid[COL]
        n, nonzeros = self.facts.vertices, self.facts.nonzeros
        return [
            Published(
                Quantity.FORWARD_WORDS,
                "sum of nnz / Pr + n f_(l-1) / Pc + n f_(l-1) / Pr",
                (),
                sum(nonzeros / rows + n * f_in / cols + n * f_in / rows for f_in, _ in self.shapes),
                "a nonzero is a value and a column, and rows have pointers; blocks are not all equal; an axis of one "
                "rank carries nothing; another order sends rows of other widths",
            ),
            Published(
                Quantity.FORWARD_CALLS,
                "sum of gcf(Pr, Pc)",
                (),
                len(self.shapes) * gcd(rows, cols),
                "cuts by rows and by columns make Pr + Pc - gcf(Pr, Pc) stages, two calls each, of A and of H; T takes "
                "Pc calls more",
            ),
        ]

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Section IV-C: A and H in a product with A, T or S once more in a product with W, then the weight gradient."""
        words, own, way = Words(self.grid, self.recomputed), len(self.rows(at)), self.params.weight_gradient
        A = {back: self._words_of_A(at, counts, transposed=back is BACKWARD) for back in (FORWARD, BACKWARD)}
        moved = self.moved(at)

        def product(
            direction: Direction, layer: int, factor: TensorName, makes: TensorName, width: int
        ) -> None:
            words.put(direction, layer, self.move, COL, TensorName.A, A[direction])
            for op, axis, rows, sums in moved:
                block = rows * len(self.columns(at, width))
                words.put(direction, layer, op, axis, makes if sums else factor, block)

        for layer, (f_in, f_out) in enumerate(self.shapes):
            if self.spec.model.order == "combine_first":
                words.put(FORWARD, layer, self.move, COL, TensorName.H, own * f_in)
                product(FORWARD, layer, TensorName.T, TensorName.Z, f_out)
            else:
                product(FORWARD, layer, TensorName.H, TensorName.T, f_in)
                words.put(FORWARD, layer, self.move, COL, TensorName.T, own * f_in)
            if self.wants_dH(layer) or way != "T":
                product(BACKWARD, layer, TensorName.G, TensorName.S, f_out)
            if self.wants_dH(layer) or way == "S":
                words.put(BACKWARD, layer, self.move, COL, TensorName.S, own * f_out)
            self._put_weight_gradient(words, layer, f_in, f_out, at)
        for weight in self.weights:
            self._put_part(words, weight, at)
        if self.facts.task == "single-label":
            words.put(FORWARD, -1, Op.ALL_REDUCE, COL, TensorName.LOSS, 2 * own)
        words.put(FORWARD, -1, Op.ALL_REDUCE, self.axes, TensorName.LOSS, 1)
        return words

    @property
    def move(self) -> Op:
        """The collective by which blocks reach the ranks that multiply by them."""
        return Op.ALL_GATHER if self.params.moves == "all_gather" else Op.BROADCAST

    def moved(self, at: Coordinates) -> list[Moved]:
        """The dense rows that one product with A moves: rows of H, and in 3D the sum of partial products."""
        contracted = sum(map(len, self.layout.layer(self.layer(at))))
        sums = Moved(Op.REDUCE_SCATTER, FIBRE, len(self.layout.block(at[ROW])), sums=True)
        return [Moved(self.move, ROW, contracted), *([sums] if FIBRE in self.grid else [])]

    def _words_of_A(self, at: Coordinates, counts: Counts, *, transposed: bool) -> int:
        """The words of A in one product: row pointers of every stage, and a value and a column for each nonzero."""
        block, contracted = self.layout.block(at[ROW]), self.layout.layer(self.layer(at))
        nonzeros = sum(counts.nonzeros(block, part, transposed=transposed) for part in contracted)
        return self._stages(contracted) * (len(block) + 1) + 2 * nonzeros

    def _stages(self, contracted: Sequence[range]) -> int:
        """The number of stages: cuts of the vertices by grid rows, by grid columns, and by the blocking parameter."""
        total = sum(map(len, contracted))
        by_rows = set(accumulate(map(len, contracted)))
        by_cols = {min(-(-total // self.grid[COL]) * (j + 1), total) for j in range(self.grid[COL])}
        lengths = [high - low for low, high in pairwise(sorted({0} | by_rows | by_cols))]
        return sum(-(-length // (self.params.block or length)) for length in lengths)

    def _put_weight_gradient(self, words: Words, layer: int, f_in: int, f_out: int, at: Coordinates) -> None:
        """Adds the words of Y: those of a second SUMMA (section IV-C), or of a sum and a gather."""
        own_in, own_out = len(self.columns(at, f_in)), len(self.columns(at, f_out))
        if self.params.weight_gradient != "summa":
            part = f_in * own_out if self.params.weight_gradient == "T" else own_in * f_out
            words.put(BACKWARD, layer, Op.ALL_REDUCE, self.axes_of_rows, TensorName.DW, part)
            words.put(BACKWARD, layer, Op.ALL_GATHER, COL, TensorName.DW, f_in * f_out)
            return
        contracted = self.layout.layer(self.layer(at))
        total, down = sum(map(len, contracted)), split_evenly(f_in, self.grid[ROW])[at[ROW]]
        share = split(total, self.grid[COL])[at[COL]]
        before = sum(map(len, contracted[: at[ROW]]))
        rows, cols = range(before, before + len(self.rows(at))), self.columns(at, f_in)
        stays = len(intersect(rows, share)) * len(intersect(down, cols))
        words.put(BACKWARD, layer, Op.SEND, (ROW, COL), TensorName.H, len(self.rows(at)) * own_in - stays)
        words.put(BACKWARD, layer, Op.RECV, (ROW, COL), TensorName.H, len(share) * len(down) - stays)
        words.put(BACKWARD, layer, self.move, COL, TensorName.H, total * len(down))
        words.put(BACKWARD, layer, self.move, ROW, TensorName.S, total * own_out)
        if FIBRE in self.grid:
            words.put(BACKWARD, layer, Op.ALL_REDUCE, FIBRE, TensorName.DW, len(down) * own_out)
        words.put(BACKWARD, layer, Op.ALL_GATHER, (ROW, COL), TensorName.DW, f_in * f_out)

    def _put_part(self, words: Words, weight: Weight, at: Coordinates) -> None:
        """Adds the words of a norm, or of a product with a weight alone, which are none of a convolution's."""
        own, (f_in, f_out) = len(self.rows(at)), weight.shape
        if weight.part is Part.SCALE:
            words.put(FORWARD, weight.layer, Op.ALL_REDUCE, COL, TensorName.SQUARES, own)
            words.put(BACKWARD, weight.layer, Op.ALL_REDUCE, COL, TensorName.SQUARES, own)
            scaled = len(self.columns(at, f_out))
            words.put(BACKWARD, weight.layer, Op.ALL_REDUCE, self.axes_of_rows, TensorName.DGAMMA, scaled)
        elif weight.part is not Part.CONVOLUTION:
            words.put(FORWARD, weight.layer, self.move, COL, TensorName.H, own * f_in)
            words.put(BACKWARD, weight.layer, self.move, COL, TensorName.G, own * f_out)
            part = len(self.columns(at, f_in)) * f_out
            words.put(BACKWARD, weight.layer, Op.ALL_REDUCE, self.axes_of_rows, TensorName.DW, part)
            words.put(BACKWARD, weight.layer, Op.ALL_GATHER, COL, TensorName.DW, f_in * f_out)

    @property
    def axes_of_rows(self) -> tuple[AxisName, ...]:
        """The axes that split the rows of H."""
        return tuple(axis for axis in self.axes if axis is not COL)


# 3D: Split-3D-SpMM (section IV-D), on any grid of rows x columns x fibres.
#
# Each fibre layer is a 2D grid that contracts over vertices of its own; then partial products are added up along the
# fibre, and every rank keeps its part of the rows. A has block rows as in 2D, and the layers share its columns; W is
# whole on every rank. A product with W needs no sum along the fibre, as the fibre splits rows and not features. The
# paper counts a reduction for each product with A and for each product with W.


class ThreeD(TwoD):
    """CAGNET's 3D algorithm, for any grid whose columns have a feature each."""

    name = "cagnet-3d"
    paper = "CAGNET (SC 2020), section IV-D"
    axes = (ROW, COL, FIBRE)

    def published(self) -> list[Published]:
        """The totals of section IV-D5, which has cubic grids only."""
        side = self.grid[FIBRE]
        if {self.grid[axis] for axis in self.axes} != {side}:
            return []
        n, nonzeros = self.facts.vertices, self.facts.nonzeros
        return [
            Published(
                Quantity.WORDS,
                "sum of (12 n f_l + 2 nnz) / P^(2/3)",
                ("CAG-013", "CAG-014"),
                sum((12 * n * f_out + 2 * nonzeros) / side**2 for _, f_out in self.shapes),
                "as in 2D; and a product with W needs no sum along the fibre, for which the paper counts n f / P^(2/3)",
            ),
            Published(
                Quantity.CALLS,
                "sum of 4 P^(1/3)",
                ("CAG-018",),
                len(self.shapes) * 4 * side,
                "two calls a stage, and the reductions and gathers, which the paper drops",
            ),
            Published(
                Quantity.LAYOUT,
                "partial products, times the size of T: P^(1/3)",
                ("CAG-019",),
                side,
                "",
                self.spec.ranks / (self.grid[ROW] * self.grid[COL]),
            ),
        ]
