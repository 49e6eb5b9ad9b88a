"""One rank's operators of bulk sampling: Algorithm 1's samples, features from the grid column, the model on both.

Letters as in `bulk`.
"""

from collections.abc import Sequence

from torch import Tensor

from harness.kernels.stack import Stack
from harness.ledger import TensorName
from harness.parallel.bulk import Drawn, WholeGraph, together
from harness.parallel.fetching_operators import FetchingOperators
from harness.parallel.partitioned import PartitionedGraph
from harness.ranges import balanced
from harness.strategy import Context, MiniBatch
from strategies.bulk.scheme import COL, ROW, BulkScheme


class Sampling(FetchingOperators):
    """Batches are this rank's own; a grid column has all features once, a grid row the same ones."""

    strategy: BulkScheme

    def __init__(self, ctx: Context, strategy: BulkScheme) -> None:
        super().__init__(ctx, strategy)
        self.row, self.col = ctx.grid[ROW], ctx.grid[COL]
        self.stages = balanced(self.row.size, self.col.size)[self.col.index]
        self.bulks = self._bulks(ctx)
        ctx.hold(TensorName.INDEX, self.bulks.graph.places.where)

    def _bulks(self, ctx: Context) -> Drawn:
        """By each rank for itself, or by the ranks of a grid row together."""
        strategy, targets = self.strategy, self.targets
        A = ctx.source(self.held, range(ctx.facts.vertices))
        bulk, batches, at_once = strategy.bulk, strategy.batches, strategy.params.bulk
        if not strategy.partitioned:
            return Drawn(bulk, batches, WholeGraph(A, self.ledger), targets, at_once, [self.group])
        graph = PartitionedGraph(A, self.blocks, self.row, self.col, self.elsewhere)
        before = self._foresee if self.elsewhere else None
        return Drawn(bulk, batches, graph, targets, at_once, strategy.together(ctx.at[ROW]), before)

    def sample(self, step: int) -> MiniBatch:
        return self.bulks.take(step, self.group)

    def aggregate_all(self, H_NF: Tensor) -> Tensor:
        """CAGNET's 1.5D product: this column's share of the block rows of H, then the sum over the grid row."""
        return self.col.all_reduce(super().aggregate_all(H_NF), tensor=TensorName.T)

    def _foresee(self, steps: range) -> None:
        """In a replay: what every grid row samples in a bulk, from the batch outwards."""
        bulks, graph = self.bulks, self.bulks.graph
        assert self.elsewhere is not None
        assert isinstance(graph, PartitionedGraph)
        whole = WholeGraph(self.elsewhere)
        layers = [
            together(bulks.bulk, bulks.batches, whole, bulks.targets, steps, self.strategy.together(row))
            for row in range(self.row.size)
        ]
        hops: list[Sequence[Stack]] = [
            [each[hop].outputs for each in layers] for hop in reversed(range(len(layers[0])))
        ]
        graph.others = iter(hops)
