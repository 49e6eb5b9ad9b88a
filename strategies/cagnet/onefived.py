"""CAGNET 1.5D: block rows, replicated c times (SC'20, section IV-B).

Ranks stand on a grid of P/c rows and c columns, P(i, j). The ranks of a grid row hold the same block row of A, H and G,
W is whole on every rank. A grid column multiplies by its share of the block rows only; a grid row adds up.

Legend as in `oned`. The axis row joins the ranks of a grid column, P(:, j); the axis col those of a grid row, P(i, :).
Where c^2 does not divide P, the stages are spread evenly over the columns; the authors' code leaves them to the last.
"""

from collections.abc import Sequence
from math import log2

from torch import Tensor

from harness.kernels import Csr
from harness.ledger import AxisName, Op, TensorName
from harness.ranges import balanced
from harness.strategy import Context, Coordinates, Counts, Published, Quantity
from strategies.cagnet.oned import BlockRows, RowScheme
from strategies.cagnet.terms import Moved

ROW, COL = AxisName.ROW, AxisName.COL


class ReplicatedRows(RowScheme):
    """Block rows over the axis row, each on every rank of a grid row."""

    axes = (ROW, COL)
    rows_over = partitioned_over = ROW

    def stages(self, at: Coordinates) -> range:
        """The block rows of H by which the grid column of the rank at `at` multiplies."""
        return balanced(self.grid[ROW], self.grid[COL])[at[COL]]


class PartialRows(BlockRows):
    """One rank's block row of A and of A^T, at the vertices of its column's stages."""

    def __init__(self, ctx: Context, strategy: "OneAndAHalfD") -> None:
        super().__init__(ctx, strategy)
        self.across = ctx.grid[COL]

    def aggregate(self, A_NK: Sequence[Csr], H_NF: Tensor, *, moves: TensorName, makes: TensorName) -> Tensor:
        """A H by Algorithm 2: this column's stages, then the sum over the columns."""
        T_NF = super().aggregate(A_NK, H_NF, moves=moves, makes=makes)
        return self.across.all_reduce(T_NF, tensor=makes)


class OneAndAHalfD(ReplicatedRows):
    """CAGNET's 1.5D algorithm, for any replication that divides the number of ranks."""

    name = "cagnet-1.5d"

    def operators(self, ctx: Context) -> PartialRows:
        return PartialRows(ctx, self)

    def published(self) -> list[Published]:
        """Section IV-B5."""
        n, ranks, c = self.facts.vertices, self.spec.ranks, self.grid[COL]
        by_one_d = sum(n * (f_in + f_out) for f_in, f_out in self.shapes)
        stages = ranks / c**2
        return [
            Published(
                Quantity.WORDS,
                "sum of (n f_(l-1) + n f_l) (1/c + c/P)",
                ("CAG-008", "CAG-009"),
                by_one_d * (1 / c + c / ranks),
                "f_(l-1) f_l of the weight gradient, which the paper drops, and one word of the loss; where c^2 does "
                "not divide P some columns have a stage more than others",
            ),
            Published(
                Quantity.CALLS,
                "sum of 2 (P/c^2) lg(P/c^2)",
                ("CAG-016",),
                len(self.shapes) * 2 * stages * log2(stages) if stages > 1 else 0,
                "the paper drops the reductions and counts lg messages a broadcast: one call each here",
            ),
            Published(
                Quantity.LAYOUT,
                "input memory, times that of 1D: c",
                ("CAG-003", "CAG-004", "CAG-005"),
                c,
                "A is not replicated: a rank holds the blocks of its own stages, only H and the features c times",
                ranks / self.grid[ROW],
            ),
        ]

    def moved(self, at: Coordinates, counts: Counts, *, transposed: bool = False) -> list[Moved]:
        """Section IV-B: n f / c rows arrive, n f c / P are summed, where c^2 divides P."""
        arriving = sum(len(self.blocks()[q]) for q in self.stages(at))
        return [Moved(Op.BROADCAST, ROW, arriving), Moved(Op.ALL_REDUCE, COL, len(self.rows(at)), sums=True)]
