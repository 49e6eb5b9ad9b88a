"""CAGNET, sparsity-aware: only the rows of H that a block of A needs travel, in 1D and in 1.5D.

Section IV-A6 of the paper considers this, and the authors built it later: if a partition of the graph puts neighbours
together, few rows are needed. The layouts are those of `oned`.

Legend: N this rank's vertices, K the rows that arrive. A_NN is the block of A at this rank's own vertices, A_NK the
other blocks without their empty columns (`harness.parallel.halo`).
"""

from torch import Tensor

from harness.comm.call import CompletedCall
from harness.ledger import Op, TensorName
from harness.parallel.halo import BlockRow, build_block_row
from harness.strategies.cagnet.oned import Aggregation, RowScheme, WholeRows
from harness.strategies.cagnet.terms import COL, ROW, Moved
from harness.strategy import Context, Coordinates, Counts, Piece


class NeededRows(Aggregation):
    """The rows of H that a block row of A needs arrive in one all-to-all."""

    def block_row(self, ctx: Context, *, transposed: bool = False) -> BlockRow:
        blocks, own = self.scheme.blocks(), ctx.at[self.scheme.rows_over]
        return build_block_row(ctx, blocks, own, self.scheme.stages(ctx.at), transposed=transposed)

    def product(
        self, ops: WholeRows, A: BlockRow, H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        """A H: the rows that others need leave, this rank's own rows are multiplied, then the rows that arrived."""
        exchange = A.halo.exchange(ops.over, ops.kernels, H_NF, moves)
        arriving = exchange.later() if ops.overlap else CompletedCall(exchange.now())
        T_NF = None if A.A_NN is None else ops.kernels.spmm(A.A_NN, H_NF, makes)
        return ops.kernels.spmm(A.A_NK, arriving.wait(), makes, add_to=T_NF)

    def moved(self, at: Coordinates, counts: Counts, *, transposed: bool) -> Moved:
        """The columns of this rank's blocks that have a nonzero, those at its own vertices excepted."""
        arriving = self.scheme.boundary(at, counts).incoming_rows(transposed=transposed)
        return Moved(Op.ALL_TO_ALL, self.scheme.rows_over, sum(arriving.values()))

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """The bytes of A_NN and A_NK, of their transposes if A is directed, and of the indices of rows that leave."""
        scheme, rows, sides = self.scheme, self.scheme.rows(at), self.scheme.transposed_options()
        boundary, precision = scheme.boundary(at, counts), scheme.spec.precision
        is_served = at[scheme.rows_over] in scheme.stages(at)
        own = scheme.matrices_bytes([Piece(rows, rows)], counts) if is_served else 0
        compact = sum(boundary.compact_bytes(precision, transposed=side) for side in sides)
        leaving = sum(boundary.index_bytes(transposed=side) for side in sides)
        return {TensorName.A: own + compact, TensorName.INDEX: leaving}


class SparseOneD(RowScheme):
    """The sparsity-aware 1D algorithm."""

    name = "cagnet-sa-1d"
    paper = "CAGNET (SC 2020), section IV-A6"

    def is_owner_computes(self) -> bool:
        return True

    @property
    def aggregation(self) -> Aggregation:
        return NeededRows(self)


class SparseOneAndAHalfD(RowScheme):
    """The sparsity-aware 1.5D algorithm."""

    name = "cagnet-sa-1.5d"
    paper = "CAGNET (SC 2020), sections IV-A6 and IV-B"
    axes = (ROW, COL)
    rows_over = partitioned_over = ROW
    replicated_over = (COL,)

    @property
    def aggregation(self) -> Aggregation:
        return NeededRows(self)
