"""CAGNET 3D: Split-3D-SpMM (SC'20, section IV-D), on any grid of rows x columns x fibres.

Each fibre layer is a 2D grid that contracts over vertices of its own; then partial products are added up along the
fibre, and every rank keeps its part of the rows. A has block rows as in 2D, its columns are shared by the layers; W is
whole on every rank. Legend as in `twod`.

A product with W needs no sum along the fibre, as the rows are split there and not the features: one reduction a product
with A, none a product with W, where the paper counts one for each.
"""

from collections.abc import Sequence

from torch import Tensor

from harness.ledger import AxisName, Op, TensorName
from harness.ranges import balanced
from harness.strategy import Context, Coordinates, Published, Quantity, Words
from strategies.cagnet.blocks import COL, ROW, Travelling
from strategies.cagnet.summa import Split3D
from strategies.cagnet.terms import BACKWARD, Moved
from strategies.cagnet.twod import Summa, TwoD

FIBRE = AxisName.FIBRE


class SplitSumma(Summa):
    """SUMMA in every layer, then a sum over the layers."""

    def __init__(self, ctx: Context, strategy: "ThreeD") -> None:
        super().__init__(ctx, strategy)
        self.fibre = ctx.grid[FIBRE]

    def aggregate(
        self, A_NK: Sequence[Travelling], H_NF: Tensor, *, moves: TensorName, makes: TensorName
    ) -> Tensor:
        T_NF = super().aggregate(A_NK, H_NF, moves=moves, makes=makes)
        sizes = [len(self.layout.rows_of(self.row_number, k)) for k in range(self.layout.fibres)]
        return self.fibre.reduce_scatter(T_NF, sizes=sizes, tensor=makes)

    def sum_of_layers(self, Y: Tensor) -> Tensor:
        return self.fibre.all_reduce(Y, tensor=TensorName.DW)


class ThreeD(TwoD):
    """CAGNET's 3D algorithm, for any grid whose columns have a feature each."""

    name = "cagnet-3d"
    axes = (ROW, COL, FIBRE)

    @property
    def layout(self) -> Split3D:
        rows, cols, fibres = (self.grid[axis] for axis in self.axes)
        return Split3D(self.facts.vertices, rows, cols, fibres, self.params.block)

    def layer(self, at: Coordinates) -> int:
        return at[FIBRE]

    def operators(self, ctx: Context) -> SplitSumma:
        return SplitSumma(ctx, self)

    def published(self) -> list[Published]:
        """Section IV-D5, which speaks of cubic grids."""
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

    def moved(self, at: Coordinates) -> list[Moved]:
        """As in 2D within the layer, and a reduce-scatter of the partial products."""
        partial = len(self.layout.block(at[ROW]))
        return [*super().moved(at), Moved(Op.REDUCE_SCATTER, FIBRE, partial, sums=True)]

    def _put_weight_gradient(self, words: Words, layer: int, f_in: int, f_out: int, at: Coordinates) -> None:
        super()._put_weight_gradient(words, layer, f_in, f_out, at)
        if self.params.weight_gradient == "summa":
            rows = balanced(f_in, self.grid[ROW])[at[ROW]]
            part = len(rows) * len(self.columns(at, f_out))
            words.put(BACKWARD, layer, Op.ALL_REDUCE, FIBRE, TensorName.DW, part)
