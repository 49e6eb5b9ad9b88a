"""Serial training on one rank, in plain PyTorch and without communication: the reference for all other strategies.

Legend: N vertices, F features in, H features out. T = A H is the aggregated input; in attention, T = H W.
"""

from torch import Tensor

from harness.ledger import AxisName, Phase, TensorName
from harness.strategy import Context, Coordinates, Counts, Promise, Words, csr_bytes, transposed_index_bytes
from harness.strategy.parallel.row_attention import attend_rows, build_edges
from harness.strategy.parallel.row_strategy import RowOperators, RowStrategy


class PlainTorch(RowOperators):
    """Convolutions on the whole graph; autograd derives the backward pass."""

    def __init__(self, ctx: Context, strategy: "Serial") -> None:
        super().__init__(ctx, strategy, over=(AxisName.P,))
        self.A_NN = ctx.blocks.adjacency(self.rows, self.rows)
        self.A_T_NN = ctx.blocks.adjacency(self.rows, self.rows, transposed=True)

    def aggregate(self, layer: int, H_NF: Tensor, makes: TensorName) -> Tensor:
        return self.kernels.aggregate(self.A_NN, self.A_T_NN, H_NF, makes)


class PlainAttention(RowOperators):
    """Attention of each vertex over its neighbours and itself."""

    def __init__(self, ctx: Context, strategy: "Serial") -> None:
        super().__init__(ctx, strategy, over=(AxisName.P,))
        self.edges = build_edges(ctx.blocks.host_adjacency(self.rows, self.rows), ctx.memory.hold_matrix)

    def attend(self, layer: int, H_NF: Tensor, W_FH: Tensor, a_2H: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            T_NH = self.kernels.gemm(H_NF, W_FH, TensorName.T)
            return attend_rows(self, layer, self.edges, T_NH, a_2H)


class Serial(RowStrategy):
    """Trains on one rank that holds the whole graph."""

    name = "serial"
    paper = "the reference: one rank, the whole graph"
    promise = Promise.EXACT
    has_model_parts = True
    can_recompute = True
    models = ("gcn", "sage", "gat")

    @classmethod
    def grids(cls, ranks: int) -> list[dict[AxisName, int]]:
        return [{AxisName.P: 1}] if ranks == 1 else []

    def operators(self, ctx: Context) -> PlainTorch | PlainAttention:
        return (PlainAttention if self.spec.model.kind == "gat" else PlainTorch)(ctx, self)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return Words(self.grid, self.recomputed_layers)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes held. For attention, A has a transpose whose values are positions in A."""
        held, (n, nonzeros) = super().memory(at, counts), (self.facts.vertices, self.facts.nonzeros)
        if self.spec.model.kind == "gat":
            held[TensorName.A] = csr_bytes(n, nonzeros, self.spec.precision) + transposed_index_bytes(
                n, nonzeros
            )
        return held
