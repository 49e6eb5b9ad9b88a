"""Serial training: one rank, plain torch, no communication. The reference that every strategy is held against.

Legend: N vertices, F features in, H features out. T = A H is the aggregated input.
"""

from torch import Tensor

from harness.ledger import AxisName, Phase, TensorName
from harness.parallel.rows import RowOperators, RowStrategy
from harness.strategy import Context, Coordinates, Counts, Promise, Words


class PlainTorch(RowOperators):
    """One block of rows, the whole graph; autograd writes the backward."""

    def __init__(self, ctx: Context, strategy: "Serial") -> None:
        super().__init__(ctx, strategy, over=(AxisName.P,))
        self.A_NN = ctx.adjacency(self.rows, self.rows)
        self.A_T_NN = ctx.transposed(self.rows, self.rows)
        self.combine_first = ctx.spec.model.order == "combine_first"

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.combine_first:
                return self._aggregate(self.kernels.gemm(H_NF, W_FH, TensorName.T), TensorName.Z)
            return self.kernels.gemm(self._aggregate(H_NF, TensorName.T), W_FH, TensorName.Z)

    def _aggregate(self, H_NF: Tensor, makes: TensorName) -> Tensor:
        return self.kernels.aggregate(self.A_NN, self.A_T_NN, H_NF, makes)


class Serial(RowStrategy):
    """One rank that holds everything."""

    name = "serial"
    promise = Promise.EXACT
    parts = True
    models = ("gcn", "sage")

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        return [{AxisName.P: 1}] if ranks == 1 else []

    def operators(self, ctx: Context) -> PlainTorch:
        return PlainTorch(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return Words(self.grid)
