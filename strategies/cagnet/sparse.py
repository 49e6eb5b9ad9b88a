"""CAGNET, sparsity-aware: ranks send only the rows of H that a block of A needs, in 1D and in 1.5D.

Section IV-A6 of the paper proposes this, and the authors implemented it later. A partition that keeps neighbours
together makes these rows few. The layouts are those of `oned`.

Legend: N this rank's vertices, K the rows that arrive. A_NN is the block of A at this rank's own vertices, A_NK the
other blocks without their empty columns (`harness.strategy.parallel.halo`).
"""

from torch import Tensor

from harness.ledger import Op, TensorName
from harness.strategies.cagnet.oned import Aggregation, RowScheme, WholeRows
from harness.strategies.cagnet.terms import COL, ROW, MovedRows
from harness.strategy import Context, Coordinates, Counts, Piece
from harness.strategy.parallel.halo import BlockRow, build_block_row


class NeededRows(Aggregation):
    """Fetches the rows of H that a block row of A needs, in one all-to-all."""

    def load_block_row(self, ctx: Context, *, transposed: bool = False) -> BlockRow:
        blocks, own = self.scheme.blocks(), ctx.at[self.scheme.rows_over]
        return build_block_row(ctx, blocks, own, self.scheme.stages(ctx.at), transposed=transposed)

    def multiply(
        self, ops: WholeRows, A: BlockRow, H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        return A.multiply(ops.over, ops.kernels, H_NF, moves=moves, makes=makes, overlap=ops.overlap)

    def moved_rows(self, at: Coordinates, counts: Counts, *, transposed: bool) -> MovedRows:
        """Return the columns of this rank's blocks that have a nonzero, except those at its own vertices."""
        arriving = self.scheme.boundary(at, counts).incoming_rows(transposed=transposed)
        return MovedRows(Op.ALL_TO_ALL, self.scheme.rows_over, sum(arriving.values()))

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes of A_NN and A_NK, of their transposes if A is directed, and of the indices of sent rows."""
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
