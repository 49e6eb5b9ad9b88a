"""CAGNET 3D: Split-3D-SpMM (SC'20, section IV-D), on any grid of rows x columns x fibres.

Each fibre layer is a 2D grid that contracts over vertices of its own (`harness.strategies.cagnet.twod`); then partial
products are added up along the fibre, and every rank keeps its part of the rows. A has block rows as in 2D, and the
layers share its columns; W is whole on every rank. Legend as in `twod`.

A product with W needs no sum along the fibre, as the fibre splits rows and not features. The paper counts a reduction
for each product with A and for each product with W.
"""

from harness.strategies.cagnet.terms import COL, FIBRE, ROW
from harness.strategies.cagnet.twod import TwoD
from harness.strategy import Published, Quantity


class ThreeD(TwoD):
    """CAGNET's 3D algorithm, for any grid whose columns have a feature each."""

    name = "cagnet-3d"
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
