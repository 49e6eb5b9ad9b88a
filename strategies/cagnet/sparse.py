"""CAGNET, sparsity-aware: only the rows of H that a block of A needs travel, in 1D and in 1.5D.

What section IV-A6 of the paper weighs and the authors built later: with a partition of the graph that puts neighbours
together, few rows are needed. Layouts are those of `oned` and `onefived`.

Legend: N this rank's vertices, K the rows that arrive. A_NN is the block of A at this rank's own vertices, A_NK the
others without their empty columns (`harness.parallel.halo`).
"""

from torch import Tensor

from harness.comm.call import Landed
from harness.ledger import AxisName, Op, TensorName
from harness.parallel.halo import BlockRow, Boundary, block_row
from harness.strategy import Context, Coordinates, Counts, Piece
from strategies.cagnet.oned import RowScheme, WholeRows
from strategies.cagnet.onefived import COL, ReplicatedRows
from strategies.cagnet.terms import Moved

P = AxisName.P


class NeededRows(WholeRows):
    """Rows that are needed come from whoever has them."""

    def __init__(self, ctx: Context, strategy: "SparseScheme") -> None:
        super().__init__(ctx, strategy)
        cut = strategy.blocks(), ctx.at[strategy.rows_over], strategy.stages(ctx.at)
        self.A_NK = block_row(ctx, *cut)
        self.A_T_NK = block_row(ctx, *cut, transposed=True) if ctx.facts.directed else self.A_NK

    def aggregate(self, A: BlockRow, H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
        """A H: the rows that others need leave, this rank's own are multiplied, then those that arrived."""
        exchange = A.halo.exchange(self.over, self.kernels, H_NF, moves)
        arriving = exchange.later() if self.overlap else Landed(exchange.now())
        T_NF = None if A.A_NN is None else self.kernels.spmm(A.A_NN, H_NF, makes)
        return self.kernels.spmm(A.A_NK, arriving.wait(), makes, add_to=T_NF)


class SparseScheme(RowScheme):
    """Rows go only where they are needed."""

    def operators(self, ctx: Context) -> NeededRows:
        return NeededRows(ctx, self)

    def moved(self, at: Coordinates, counts: Counts, *, transposed: bool = False) -> list[Moved]:
        """The columns of this rank's blocks in which there is a nonzero, those at its own vertices excepted."""
        arriving = self.boundary(at, counts).arriving(transposed=transposed)
        return [Moved(Op.ALL_TO_ALL, self.rows_over, sum(arriving.values()))]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Two matrices a side, own and compact, and the indices of the rows that leave."""
        rows, boundary, sides = self.rows(at), self.boundary(at, counts), self.sides()
        is_served = at[self.rows_over] in self.stages(at)
        own = self.bytes_of_matrices([Piece(rows, rows)], counts) if is_served else 0
        compact = sum(boundary.compact_bytes(self.spec.precision, transposed=side) for side in sides)
        leaving = sum(boundary.index_bytes(transposed=side) for side in sides)
        held = {TensorName.A: own + compact, TensorName.INDEX: leaving}
        return {**super().memory(at, counts), **held}

    def boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        """Of the stages of this rank's products."""
        return Boundary(counts, self.blocks(), at[self.rows_over], self.stages(at))


class SparseOneD(SparseScheme):
    """The sparsity-aware 1D algorithm."""

    name = "cagnet-sa-1d"


class PartialNeededRows(NeededRows):
    """The rows of this grid column's stages, then the sum over the columns."""

    def __init__(self, ctx: Context, strategy: SparseScheme) -> None:
        super().__init__(ctx, strategy)
        self.across = ctx.grid[COL]

    def aggregate(self, A: BlockRow, H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
        T_NF = super().aggregate(A, H_NF, moves=moves, makes=makes)
        return self.across.all_reduce(T_NF, tensor=makes)


class SparseOneAndAHalfD(ReplicatedRows, SparseScheme):
    """The sparsity-aware 1.5D algorithm."""

    name = "cagnet-sa-1.5d"

    def operators(self, ctx: Context) -> PartialNeededRows:
        return PartialNeededRows(ctx, self)

    def moved(self, at: Coordinates, counts: Counts, *, transposed: bool = False) -> list[Moved]:
        summed = Moved(Op.ALL_REDUCE, COL, len(self.rows(at)), sums=True)
        return [*super().moved(at, counts, transposed=transposed), summed]
