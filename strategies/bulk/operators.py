"""One rank's operators of bulk sampling: Algorithm 1's samples, features from the grid column, the model on both.

Letters as in `bulk`.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from harness.kernels import Csr, block
from harness.kernels.stack import Stack
from harness.ledger import Op, Phase, TensorName
from harness.parallel.bulk import Drawn, WholeGraph, alone, together
from harness.parallel.feature_store import FeatureStore
from harness.parallel.minibatches import BatchOperators
from harness.parallel.partitioned import PartitionedGraph
from harness.ranges import balanced
from harness.strategy import Context, Piece
from strategies.bulk.scheme import COL, ROW, BulkScheme


class Sampling(BatchOperators):
    """Batches are this rank's own; a grid column has all features once, a grid row the same ones."""

    def __init__(self, ctx: Context, strategy: BulkScheme) -> None:
        super().__init__(ctx, strategy, over=(ROW,), everyone=ctx.grid.axis((ROW, COL)))
        everyone = range(ctx.facts.vertices)
        self.row, self.col, self.blocks = ctx.grid[ROW], ctx.grid[COL], strategy.blocks()
        self.held = strategy.held(ctx.at)
        self.A = ctx.adjacency(self.held, everyone)
        self.labels = ctx.training_labels(Piece(everyone, range(ctx.facts.classes)))
        self.strategy, self.elsewhere = strategy, ctx.elsewhere()
        self.drawn = self._drawn(ctx, ctx.source(self.held, everyone), ctx.targets())
        ctx.hold(TensorName.INDEX, self.drawn.graph.places.where)
        self.store = FeatureStore(self.X, self.blocks, self.row)

    def _drawn(self, ctx: Context, A: Csr, targets: Tensor) -> Drawn:
        """By each rank for itself, or by the ranks of a grid row together."""
        bulk, batches, at_once = self.strategy.bulk, self.strategy.batches, self.strategy.params.bulk
        if not self.strategy.partitioned:
            return Drawn(bulk, batches, WholeGraph(A), targets, at_once, [self.group])
        graph = PartitionedGraph(A, self.blocks, self.row, self.col, self.elsewhere)
        before = self._foresee if self.elsewhere else None
        return Drawn(bulk, batches, graph, targets, at_once, self.strategy.together(ctx.at[ROW]), before)

    def of_step(self, step: int) -> Self:
        with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.A):
            batch = self.drawn.take(step, self.group)
        with self.ledger.phase(Phase.FETCH):
            X_KF = self.store.fetch(batch.vertices[0], lambda: self._inputs(step))
            with self.ledger.op(Op.COPY, tensor=TensorName.A):
                answers = self.answers.on(batch.vertices[-1].to(self.device), self.labels)
                return self.on(step, batch, X_KF, answers)

    def aggregate_all(self, H_NF: Tensor) -> Tensor:
        """CAGNET's 1.5D product: this column's share of the block rows of H, then the sum over the grid row."""
        T_NF, start = torch.zeros_like(H_NF), self.held.start
        rows = range(self.rows.start - start, self.rows.stop - start)
        for q in balanced(self.row.size, self.col.size)[self.col.index]:
            K, shape = self.blocks[q], (len(self.blocks[q]), H_NF.shape[1])
            H_KF = self.row.broadcast(H_NF, root=q, shape=shape, tensor=TensorName.H)
            self.kernels.spmm(block(self.A, rows, K), H_KF, TensorName.T, add_to=T_NF)
        return self.col.all_reduce(T_NF, tensor=TensorName.T)

    # What other ranks do, in a replay.

    def _inputs(self, step: int) -> list[Tensor]:
        """The vertices whose features the ranks of the grid column need."""
        drawn = self.drawn
        graph = WholeGraph(self.elsewhere) if self.elsewhere and self.strategy.partitioned else drawn.graph
        return [
            alone(drawn.bulk, drawn.batches, graph, drawn.targets, step, rank).vertices[0]
            for rank in self.row.ranks
        ]

    def _foresee(self, steps: range) -> None:
        """What every grid row samples in a bulk, from the batch outwards."""
        drawn, graph = self.drawn, self.drawn.graph
        assert self.elsewhere is not None
        assert isinstance(graph, PartitionedGraph)
        whole = WholeGraph(self.elsewhere)
        layers = [
            together(drawn.bulk, drawn.batches, whole, drawn.targets, steps, self.strategy.together(row))
            for row in range(self.row.size)
        ]
        hops: list[Sequence[Stack]] = [
            [each[hop].outputs for each in layers] for hop in reversed(range(len(layers[0])))
        ]
        graph.others = iter(hops)
