"""my-strategy: block rows of the graph. Correct on one rank; the steps marked "To do" make it correct on several.

Legend: N this rank's vertices; F features in, H features out. T = A H, Z = T W.
"""

from collections.abc import Sequence

from harness.ledger import AxisName, Direction, Op, TensorName
from harness.parallel.row_strategy import RowOperators, RowStrategy, dense_bytes
from harness.strategy import Context, Coordinates, Counts, Promise, Words
from torch import Tensor

P = AxisName.P


class MyStrategyOperators(RowOperators):
    """The operators of one rank: `RowOperators` has all except the product with A."""

    def __init__(self, ctx: Context, strategy: "MyStrategy") -> None:
        super().__init__(ctx, strategy, over=(P,))
        # To do 2: the columns of all vertices that this rank's rows of A have nonzeros in.
        self.A_NN = ctx.blocks.adjacency(self.rows, self.rows)
        self.A_T_NN = ctx.blocks.adjacency(self.rows, self.rows, transposed=True)

    def aggregate(self, layer: int, H_NF: Tensor, makes: TensorName) -> Tensor:
        """Return A H. To do 2: gather the rows of H that other ranks hold (`self.over.gather`, whose
        `sizes` are the rows of each rank: blocks differ by one row)."""
        return self.kernels.aggregate(self.A_NN, self.A_T_NN, H_NF, makes)

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """To do 1: every rank has the gradient of its own rows; sum them (`reduce_all_gradients`)."""


class MyStrategy(RowStrategy):
    """Splits rows over any number of ranks, up to the number of vertices."""

    name = "my-strategy"
    promise = Promise.EXACT
    has_model_parts = True
    models = ("gcn", "sage")

    def operators(self, ctx: Context) -> MyStrategyOperators:
        return MyStrategyOperators(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """To do 3: the words of every call of an axis, row by row, and the one word of the loss."""
        words = Words(self.grid)
        words.add(Direction.FORWARD, -1, Op.ALL_REDUCE, P, TensorName.LOSS, 1)
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """To do 4: the bytes of A and of its transpose as this rank holds them."""
        rows = self.rows(at)
        matrix = self.matrix_bytes(len(rows), counts.nonzeros(rows, rows))
        return {TensorName.A: matrix * len(self.transposed_options()), **dense_bytes(self, at)}
