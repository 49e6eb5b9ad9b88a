"""CAGNET 2D: blocks of rows and columns, multiplied by SUMMA (SC'20, section IV-C), on any grid of Pr x Pc.

A, H, T, Z, G and S are cut into Pr x Pc blocks, W is whole on every rank. P(i, j) has the block at grid row i and grid
column j. The axis col joins the ranks of a grid row, the axis row those of a grid column.

Legend: N the vertices of this grid row, K those of a stage, F and H this rank's share of the features in and out, C of
the classes. Our A is the paper's A^T: Z = A H W. T = A H. G = dL/dZ. S = A^T G, dH = S W^T, Y = dL/dW = H^T S = T^T G.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import gcd, log2
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd import Function

from harness.kernels.csr import unpack
from harness.ledger import AxisName, Direction, Op, Phase, TensorName, apply
from harness.parallel.row_strategy import RowStrategy
from harness.ranges import balanced, common, split
from harness.strategy import (
    Context,
    Coordinates,
    Counts,
    Piece,
    Promise,
    Published,
    Quantity,
    Words,
    packed_bytes,
)
from harness.validation import Frozen
from strategies.cagnet.blocks import COL, ROW, Blocks, Travelling
from strategies.cagnet.summa import Split3D, arrivals, transposed_layout
from strategies.cagnet.terms import BACKWARD, FORWARD, Moved, nothing_to_keep


class BlockParams(Frozen):
    """The first choice is the paper's."""

    weight_gradient: Literal["summa", "S", "T"] = "summa"
    """Y = H^T S by a dense SUMMA, for which H is transposed; or from the rows of S that S W^T needs anyway; or
    Y = T^T G from the rows of T that T W needed, which spares the first layer its S."""
    overlap: bool = False
    """Blocks of the next stage are under way while those of this one are multiplied."""
    block: int | None = Field(None, ge=1, examples=[17])
    """The most vertices that a stage contracts over (the paper's b); None: as many as one rank has."""


class Convolve(Function):
    """Z = A H W by Algorithm 3, and its backward."""

    @staticmethod
    def forward(saved: Any, H_NF: Tensor, W: Tensor, ops: "Summa") -> Tensor:
        saved.ops, (f_in, _) = ops, W.shape
        if ops.combine_first:
            saved.save_for_backward(W, H_NF)
            T_NH = ops.times(ops.row(H_NF, f_in, TensorName.H), W, TensorName.T)
            return ops.aggregate(ops.A_NK, T_NH, moves=TensorName.T, makes=TensorName.Z)
        T_NF = ops.aggregate(ops.A_NK, H_NF, moves=TensorName.H, makes=TensorName.T)
        if ops.weight_gradient != "T":
            saved.save_for_backward(W, H_NF)
            return ops.times(ops.row(T_NF, f_in, TensorName.T), W, TensorName.Z)
        T_row = list(ops.row(T_NF, f_in, TensorName.T))
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
            S_row = list(ops.row(S_NH, f_out, TensorName.S))
        if wants_dH:
            dH_NF = ops.times(S_row, W.T, TensorName.DH)
        if way == "T":
            return dH_NF, ops.outer(G_NH, f_out, kept).T.contiguous(), None
        if way == "S":
            return dH_NF, ops.outer(kept[0], f_in, S_row), None
        return dH_NF, ops.summa(kept[0], S_NH, f_in, f_out), None


class Summa(Blocks):
    """The two phases of Algorithm 3, and the weight gradient."""

    def __init__(self, ctx: Context, strategy: "TwoD") -> None:
        params = strategy.params
        super().__init__(ctx, strategy, strategy.layout, strategy.layer(ctx.at), overlap=params.overlap)
        self.combine_first = ctx.spec.model.order == "combine_first"
        self.weight_gradient = params.weight_gradient

    def convolve(self, layer: int, H_NF: Tensor, W: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            return apply(self.ledger, Convolve, H_NF, W, self)

    def aggregate(
        self, A_NK: Sequence[Travelling], H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        """A H, first phase: in each stage a block of A comes along the row, one of H along the column."""
        stages = ((self.block_of_A(A), self.rows_of(H_NF, A.stage, moves)) for A in A_NK)
        T_NF = None
        for A, (packed, H_KF) in zip(A_NK, arrivals(stages, overlap=self.overlap), strict=True):
            T_NF = self.kernels.spmm(unpack(packed, A.form), H_KF, makes, add_to=T_NF)
        rows = len(self.layout.block(self.row_number))
        return H_NF.new_zeros((rows, H_NF.shape[1])) if T_NF is None else T_NF

    def times(self, row: Iterable[Tensor], W: Tensor, makes: TensorName) -> Tensor:
        """T W, second phase: whole rows of T by this rank's columns of W."""
        down, mine = balanced(W.shape[0], self.layout.cols), balanced(W.shape[1], self.layout.cols)
        here = mine[self.col_number]
        Z = None
        for part, T in zip(down, row, strict=True):
            Z = self.kernels.gemm(T, W[part.start : part.stop, here.start : here.stop], makes, add_to=Z)
        assert Z is not None
        return Z

    def outer(self, X_NF: Tensor, width: int, row: Sequence[Tensor]) -> Tensor:
        """X^T R, whole on every rank, from this rank's columns of X and whole rows of R."""
        part = torch.cat([self.kernels.gemm(X_NF.T, R, TensorName.DW) for R in row], dim=1)
        part = self.over.all_reduce(part, tensor=TensorName.DW)
        sizes = [len(block) for block in balanced(width, self.layout.cols)]
        return self.along_row.all_gather(part, sizes=sizes, tensor=TensorName.DW)

    def summa(self, H_NF: Tensor, S_NH: Tensor, f_in: int, f_out: int) -> Tensor:
        """H^T S, whole on every rank: H changes to the layout of its transpose, then stages as in `aggregate`."""
        H_KF = transposed_layout(H_NF, f_in, self.layout, self.layer, self.plane)
        stages = (
            (self.rows_of_transposed(H_KF, stage), self.rows_of(S_NH, stage, TensorName.S))
            for stage in self.stages
        )
        down, across = balanced(f_in, self.layout.rows), balanced(f_out, self.layout.cols)
        Y = H_NF.new_zeros((len(down[self.row_number]), S_NH.shape[1]))
        for H_K, S_K in arrivals(stages, overlap=self.overlap):
            Y = self.kernels.gemm(H_K.T, S_K, TensorName.DW, add_to=Y)
        return self.gathered(self.sum_of_layers(Y), down, across)

    def sum_of_layers(self, Y: Tensor) -> Tensor:
        """In two dimensions there is one layer."""
        return Y


class TwoD(RowStrategy):
    """CAGNET's 2D algorithm, for any rectangular grid whose columns have a feature each."""

    name = "cagnet-2d"
    promise = Promise.EXACT
    axes: ClassVar[tuple[AxisName, ...]] = (ROW, COL)
    rows_over = ROW
    partitioned_over = None
    Params = BlockParams
    params: BlockParams

    def refuse(self) -> str | None:
        narrowest, cols = min(map(min, self.shapes)), self.grid[COL]
        if narrowest < cols:
            return (
                f"rows of {narrowest} features or classes are too few for {cols} grid columns, each of which needs "
                f"one: use a grid of at most {narrowest} columns"
            )
        return nothing_to_keep(self.params.weight_gradient, self.spec.model.order) or super().refuse()

    @property
    def layout(self) -> Split3D:
        return Split3D(self.facts.vertices, self.grid[ROW], self.grid[COL], width=self.params.block)

    def layer(self, at: Coordinates) -> int:
        """The fibre layer in which a rank stands."""
        return 0

    def rows(self, at: Coordinates) -> range:
        return self.layout.rows_of(at[ROW], self.layer(at))

    def columns(self, at: Coordinates, width: int) -> range:
        return balanced(width, self.grid[COL])[at[COL]]

    def multiplied(self, at: Coordinates) -> list[Piece]:
        block = self.layout.block(at[ROW])
        return [Piece(block, cols) for cols in self.layout.columns_of(at[COL], self.layer(at))]

    def bytes_of_matrix(self, rows: int, nonzeros: int) -> int:
        return packed_bytes(rows, nonzeros, self.spec.precision)

    def operators(self, ctx: Context) -> Summa:
        return Summa(ctx, self)

    def published(self) -> list[Published]:
        """Section IV-C5, the total on a square grid; section IV-C6, the forward pass on any other."""
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
        """Section IV-C6. The paper gives no cost of the backward pass on these grids."""
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
        """Section IV-C: A and H per product, T or S once more per product with W, then the weight gradient."""
        words, mine, way = Words(self.grid), len(self.rows(at)), self.params.weight_gradient
        A = {back: self._words_of_A(at, counts, transposed=back is BACKWARD) for back in (FORWARD, BACKWARD)}
        moved = self.moved(at)

        def product(
            direction: Direction, layer: int, factor: TensorName, makes: TensorName, width: int
        ) -> None:
            words.put(direction, layer, Op.BROADCAST, COL, TensorName.A, A[direction])
            for op, axis, rows, sums in moved:
                here = rows * len(self.columns(at, width))
                words.put(direction, layer, op, axis, makes if sums else factor, here)

        for layer, (f_in, f_out) in enumerate(self.shapes):
            if self.spec.model.order == "combine_first":
                words.put(FORWARD, layer, Op.BROADCAST, COL, TensorName.H, mine * f_in)
                product(FORWARD, layer, TensorName.T, TensorName.Z, f_out)
            else:
                product(FORWARD, layer, TensorName.H, TensorName.T, f_in)
                words.put(FORWARD, layer, Op.BROADCAST, COL, TensorName.T, mine * f_in)
            if self.wants_dH(layer) or way != "T":
                product(BACKWARD, layer, TensorName.G, TensorName.S, f_out)
            if self.wants_dH(layer) or way == "S":
                words.put(BACKWARD, layer, Op.BROADCAST, COL, TensorName.S, mine * f_out)
            self._put_weight_gradient(words, layer, f_in, f_out, at)
        if self.facts.task == "single-label":
            words.put(FORWARD, -1, Op.ALL_REDUCE, COL, TensorName.Z, 2 * mine)
        words.put(FORWARD, -1, Op.ALL_REDUCE, self.axes, TensorName.LOSS, 1)
        return words

    def moved(self, at: Coordinates) -> list[Moved]:
        """The dense rows that one product with A moves."""
        return [Moved(Op.BROADCAST, ROW, sum(map(len, self.layout.layer(self.layer(at)))))]

    def _words_of_A(self, at: Coordinates, counts: Counts, *, transposed: bool) -> int:
        """Of one product: row pointers of every stage, and a value and a column for each nonzero."""
        block, contracted = self.layout.block(at[ROW]), self.layout.layer(self.layer(at))
        nonzeros = sum(counts.nonzeros(block, part, transposed=transposed) for part in contracted)
        return self._stages(contracted) * (len(block) + 1) + 2 * nonzeros

    def _stages(self, contracted: Sequence[range]) -> int:
        """Both cuts of the vertices, by grid rows and by grid columns, and the blocking parameter."""
        total = sum(map(len, contracted))
        by_rows = set(accumulate(map(len, contracted)))
        by_cols = {min(-(-total // self.grid[COL]) * (j + 1), total) for j in range(self.grid[COL])}
        lengths = [high - low for low, high in pairwise(sorted({0} | by_rows | by_cols))]
        return sum(-(-length // (self.params.block or length)) for length in lengths)

    def _put_weight_gradient(self, words: Words, layer: int, f_in: int, f_out: int, at: Coordinates) -> None:
        here_in, here_out = len(self.columns(at, f_in)), len(self.columns(at, f_out))
        if self.params.weight_gradient != "summa":
            part = f_in * here_out if self.params.weight_gradient == "T" else here_in * f_out
            words.put(BACKWARD, layer, Op.ALL_REDUCE, self.axes_of_rows, TensorName.DW, part)
            words.put(BACKWARD, layer, Op.ALL_GATHER, COL, TensorName.DW, f_in * f_out)
            return
        contracted = self.layout.layer(self.layer(at))
        total, here = sum(map(len, contracted)), balanced(f_in, self.grid[ROW])[at[ROW]]
        share = split(total, self.grid[COL])[at[COL]]
        before = sum(map(len, contracted[: at[ROW]]))
        rows, cols = range(before, before + len(self.rows(at))), self.columns(at, f_in)
        stays = len(common(rows, share)) * len(common(here, cols))
        words.put(BACKWARD, layer, Op.SEND, (ROW, COL), TensorName.H, len(self.rows(at)) * here_in - stays)
        words.put(BACKWARD, layer, Op.RECV, (ROW, COL), TensorName.H, len(share) * len(here) - stays)
        words.put(BACKWARD, layer, Op.BROADCAST, COL, TensorName.H, total * len(here))
        words.put(BACKWARD, layer, Op.BROADCAST, ROW, TensorName.S, total * here_out)
        words.put(BACKWARD, layer, Op.ALL_GATHER, (ROW, COL), TensorName.DW, f_in * f_out)

    @property
    def axes_of_rows(self) -> tuple[AxisName, ...]:
        """The axes over which rows are split."""
        return tuple(axis for axis in self.axes if axis is not COL)
