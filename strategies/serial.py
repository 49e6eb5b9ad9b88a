"""Serial training: one rank, plain torch, no communication. Every strategy is compared with this reference.

Legend: N vertices, F features in, H features out. T = A H is the aggregated input; in attention, T = H W.
"""

from torch import Tensor

from harness.ledger import AxisName, Phase, TensorName
from harness.parallel.row_attention import attend_rows, build_edges
from harness.parallel.row_strategy import RowOperators, RowStrategy
from harness.strategy import Context, Coordinates, Counts, Promise, Words, csr_bytes, turned_bytes


class PlainTorch(RowOperators):
    """Convolutions on one block of rows, the whole graph; autograd derives the backward pass."""

    def __init__(self, ctx: Context, strategy: "Serial") -> None:
        super().__init__(ctx, strategy, over=(AxisName.P,))
        self.A_NN = ctx.blocks.adjacency(self.rows, self.rows)
        self.A_T_NN = ctx.blocks.adjacency(self.rows, self.rows, transposed=True)
        self.combine_first = ctx.spec.model.order == "combine_first"

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.combine_first:
                return self._aggregate(self.kernels.gemm(H_NF, W_FH, TensorName.T), TensorName.Z)
            return self.kernels.gemm(self._aggregate(H_NF, TensorName.T), W_FH, TensorName.Z)

    def _aggregate(self, H_NF: Tensor, makes: TensorName) -> Tensor:
        return self.kernels.aggregate(self.A_NN, self.A_T_NN, H_NF, makes)


class PlainAttention(RowOperators):
    """Attention of each vertex over its neighbours and itself."""

    def __init__(self, ctx: Context, strategy: "Serial") -> None:
        super().__init__(ctx, strategy, over=(AxisName.P,))
        self.edges = build_edges(ctx.blocks.host_block(self.rows, self.rows), ctx.memory.hold_matrix)

    def attend(self, layer: int, H_NF: Tensor, W_FH: Tensor, a_2H: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            T_NH = self.kernels.gemm(H_NF, W_FH, TensorName.T)
            return attend_rows(self, layer, self.edges, T_NH, a_2H)


class Serial(RowStrategy):
    """Trains on one rank that holds the whole graph."""

    name = "serial"
    paper = "the reference: one rank, the whole graph"
    promise = Promise.EXACT
    parts = True
    recomputes = True
    models = ("gcn", "sage", "gat")

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        return [{AxisName.P: 1}] if ranks == 1 else []

    def operators(self, ctx: Context) -> PlainTorch | PlainAttention:
        return (PlainAttention if self.spec.model.kind == "gat" else PlainTorch)(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return Words(self.grid, self.recomputed)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """With attention, A and its transpose, with places in A as values."""
        held, (n, nonzeros) = super().memory(at, counts), (self.facts.vertices, self.facts.nonzeros)
        if self.spec.model.kind == "gat":
            held[TensorName.A] = csr_bytes(n, nonzeros, self.spec.precision) + turned_bytes(n, nonzeros)
        return held
