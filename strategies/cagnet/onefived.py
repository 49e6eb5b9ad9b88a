"""CAGNET 1.5D: block rows, replicated c times (SC'20, section IV-B).

Ranks stand on a grid of P/c rows and c columns, P(i, j). The ranks of a grid row hold the same block row of A, H and G,
W is whole on every rank. Algorithm 2 is that of 1D on fewer stages (`harness.strategies.cagnet.oned`):

1. A grid column multiplies by its share of the blocks of H only: n f / c words arrive.
2. A grid row adds up its partial products: n f c / P words, where c^2 divides P.

Legend as in `oned`. The axis row joins the ranks of a grid column, P(:, j); the axis col those of a grid row, P(i, :).
Where c^2 does not divide P, the stages are spread evenly over the columns; the authors' code leaves them to the last.
"""

from math import log2

from harness.strategies.cagnet.oned import RowScheme
from harness.strategies.cagnet.terms import COL, ROW
from harness.strategy import Published, Quantity


class OneAndAHalfD(RowScheme):
    """CAGNET's 1.5D algorithm, for any replication that divides the number of ranks."""

    name = "cagnet-1.5d"
    axes = (ROW, COL)
    rows_over = partitioned_over = ROW
    replicated_over = (COL,)

    def published(self) -> list[Published]:
        """The totals of section IV-B5."""
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
