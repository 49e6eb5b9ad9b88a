"""One rank's operators of bulk sampling: Algorithm 1's samples, features from the grid column, the model on both.

Letters as in `bulk`.
"""

from typing import Self

import torch
from torch import Tensor

from harness.kernels import block
from harness.ledger import Op, Phase, TensorName
from harness.parallel.bulk import Drawn, WholeGraph
from harness.parallel.feature_store import FeatureStore
from harness.parallel.minibatches import BatchOperators, on_the_host
from harness.ranges import balanced
from harness.strategy import Context, Piece
from strategies.bulk.scheme import COL, ROW, BulkScheme


class Sampling(BatchOperators):
    """Batches are this rank's own; a grid column has all features once, a grid row the same ones."""

    def __init__(self, ctx: Context, strategy: BulkScheme) -> None:
        super().__init__(ctx, strategy, over=(ROW,), everyone=ctx.grid.axis((ROW, COL)))
        everyone = range(ctx.facts.vertices)
        self.row, self.col, self.blocks = ctx.grid[ROW], ctx.grid[COL], strategy.blocks()
        self.A = on_the_host(ctx.source(everyone, everyone))
        self.A_held = ctx.adjacency(everyone, everyone)
        self.labels = ctx.training_labels(Piece(everyone, range(ctx.facts.classes)))
        graph = WholeGraph(self.A)
        ctx.hold(TensorName.INDEX, graph.places.where)
        self.drawn = Drawn(strategy.bulk, strategy.batches, graph, ctx.targets(), strategy.params.bulk)
        self.store = FeatureStore(self.X, self.blocks, self.row)

    def of_step(self, step: int) -> Self:
        with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.A):
            batch = self.drawn.take(step, self.group)
        with self.ledger.phase(Phase.FETCH):
            X_KF = self.store.fetch(
                batch.vertices[0],
                lambda: [self.drawn.alone(step, rank).vertices[0] for rank in self.row.ranks],
            )
            with self.ledger.op(Op.COPY, tensor=TensorName.A):
                answers = self.answers.on(batch.vertices[-1].to(self.device), self.labels)
                return self.on(step, batch, X_KF, answers)

    def aggregate_all(self, H_NF: Tensor) -> Tensor:
        """CAGNET's 1.5D product: this column's share of the block rows of H, then the sum over the grid row."""
        T_NF = torch.zeros_like(H_NF)
        for q in balanced(self.row.size, self.col.size)[self.col.index]:
            K, shape = self.blocks[q], (len(self.blocks[q]), H_NF.shape[1])
            H_KF = self.row.broadcast(H_NF, root=q, shape=shape, tensor=TensorName.H)
            self.kernels.spmm(block(self.A_held, self.rows, K), H_KF, TensorName.T, add_to=T_NF)
        return self.col.all_reduce(T_NF, tensor=TensorName.T)
