"""CAGNET, sparsity-aware: only the rows of H that a block of A needs travel, in 1D and in 1.5D.

What section IV-A6 of the paper weighs and the authors built later: with a partition of the graph that puts neighbours
together, few rows are needed. Layouts are those of `oned` and `onefived`.

Legend: N this rank's vertices, M the rows that leave, K those that arrive. A_NN is the block of A at this rank's own
vertices, A_NK the others without their empty columns. Every rank reads from the graph which of its rows the others
need, so no lists of indices are ever sent.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.pending import Landed
from harness.kernels import Csr
from harness.ledger import AxisName, Op, TensorName
from harness.strategy import LONG, Context, Coordinates, Counts, Piece, csr_bytes
from strategies.cagnet.oned import RowScheme, WholeRows
from strategies.cagnet.onefived import COL, ReplicatedRows
from strategies.cagnet.terms import Moved

P = AxisName.P


class Halo(NamedTuple):
    """A block row of A or of A^T, and who needs which rows of whom."""

    A_NN: Csr | None
    """None where this rank's own rows are another grid column's stage."""
    A_NK: Csr
    leaving: Tensor
    """Indices (M,) of the rows that others need, in the order of the others."""
    send: list[int]
    receive: list[int]


class NeededRows(WholeRows):
    """Rows that are needed come from whoever has them."""

    def __init__(self, ctx: Context, strategy: "SparseScheme") -> None:
        super().__init__(ctx, strategy)
        self.A_NK = _halo(ctx, strategy, transposed=False)
        self.A_T_NK = _halo(ctx, strategy, transposed=True) if ctx.facts.directed else self.A_NK

    def aggregate(self, A: Halo, H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
        """A H: the rows that others need leave, this rank's own are multiplied, then those that arrived."""
        leaving_MF = self.kernels.run(Op.COPY, moves, torch.index_select, H_NF, 0, A.leaving)
        exchange = self.over.all_to_all.call(leaving_MF, send=A.send, receive=A.receive, tensor=moves)
        arriving = exchange.later() if self.overlap else Landed(exchange.now())
        T_NF = None if A.A_NN is None else self.kernels.spmm(A.A_NN, H_NF, makes)
        return self.kernels.spmm(A.A_NK, arriving.wait(), makes, add_to=T_NF)


def _halo(ctx: Context, strategy: "SparseScheme", *, transposed: bool) -> Halo:
    blocks, stages, own = strategy.blocks(), strategy.stages(ctx.at), ctx.at[strategy.rows_over]
    rows, others = blocks[own], [i for i in range(len(blocks)) if i != own]
    wanted = [i for i in others if i in stages]
    served = others if own in stages else []
    A_NK, found = ctx.compact(rows, [blocks[i] for i in wanted], transposed=transposed)
    leaving, needed = ctx.needed([blocks[i] for i in served], rows, transposed=transposed)
    receive, send = dict(zip(wanted, found, strict=True)), dict(zip(served, needed, strict=True))
    read = ctx.transposed if transposed else ctx.adjacency
    everyone = range(len(blocks))
    return Halo(
        A_NN=read(rows, rows) if own in stages else None,
        A_NK=A_NK,
        leaving=leaving,
        send=[send.get(i, 0) for i in everyone],
        receive=[receive.get(i, 0) for i in everyone],
    )


class SparseScheme(RowScheme):
    """Rows go only where they are needed."""

    def operators(self, ctx: Context) -> NeededRows:
        return NeededRows(ctx, self)

    def moved(self, at: Coordinates, counts: Counts, *, transposed: bool = False) -> list[Moved]:
        """The columns of this rank's blocks in which there is a nonzero, those at its own vertices excepted."""
        rows = self.rows(at)
        wanted = self._others(self.stages(at), at)
        filled = sum(counts.filled(rows, cols, transposed=transposed) for cols in wanted)
        return [Moved(Op.ALL_TO_ALL, self.rows_over, filled)]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Two matrices a side, own and compact, and the indices of the rows that leave."""
        rows = self.rows(at)
        is_served = at[self.rows_over] in self.stages(at)
        wanted = self._others(self.stages(at), at)
        served = self._others(range(self.grid[self.rows_over]), at) if is_served else []
        compact = leaving = 0
        for side in self.sides():
            nonzeros = sum(counts.nonzeros(rows, cols, transposed=side) for cols in wanted)
            compact += csr_bytes(len(rows), nonzeros, self.spec.precision)
            leaving += sum(counts.filled(others, rows, transposed=side) for others in served)
        own = self.bytes_of_matrices([Piece(rows, rows)], counts) if is_served else 0
        held = {TensorName.A: own + compact, TensorName.INDEX: LONG * leaving}
        return {**super().memory(at, counts), **held}

    def _others(self, numbers: range, at: Coordinates) -> list[range]:
        """The blocks of these numbers but for the rank's own."""
        return [block for i, block in enumerate(self.blocks()) if i in numbers and i != at[self.rows_over]]


class SparseOneD(SparseScheme):
    """The sparsity-aware 1D algorithm."""

    name = "cagnet-sa-1d"


class PartialNeededRows(NeededRows):
    """The rows of this grid column's stages, then the sum over the columns."""

    def __init__(self, ctx: Context, strategy: SparseScheme) -> None:
        super().__init__(ctx, strategy)
        self.across = ctx.grid[COL]

    def aggregate(self, A: Halo, H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
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
