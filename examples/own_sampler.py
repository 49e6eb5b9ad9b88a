"""A custom sampler: a data-parallel system whose mini-batches are random walks on the graph.

harness check examples/own_sampler.py:WalkBatches --quick
harness run --strategy examples/own_sampler.py:WalkBatches --dataset tiny-sbm --ranks 2 --set training.batch=64
"""

from dataclasses import dataclass

from torch import Tensor

from harness.kernels.induced import induced_submatrix
from harness.kernels.random import Purpose, integers
from harness.kernels.shuffle import sample_distinct
from harness.ledger import AxisName
from harness.strategies.sampling.composition import Composition, SampledStrategy
from harness.strategies.sampling.features import LocalFeatures
from harness.strategies.sampling.graph_placement import GraphView, ReplicatedGraph
from harness.strategies.sampling.sampler import Sampler
from harness.strategy import MiniBatch, Promise


@dataclass(frozen=True)
class Walks(Sampler):
    """Samples `size` / 2 walks of one step each: random vertices, and a neighbour of each."""

    seed: int
    size: int
    layers: int
    groups: int
    vertices: int

    def steps(self, targets: int) -> int:
        return -(-self.vertices // (self.size * self.groups))

    def draw(self, step: int, group: int, graph: GraphView) -> Tensor:
        """Return the distinct vertices of the sample, ascending: a function of the seed, the group and the step."""
        key = (self.seed, group, step)
        starts = sample_distinct(key, self.vertices, max(1, self.size // 2))
        if graph.A.val.is_meta:
            return starts
        starts = starts.to(graph.A.val.device)
        first, last = graph.A.rowptr[starts], graph.A.rowptr[starts + 1]
        numbers = integers(key, Purpose.SAMPLE, range(len(starts)), high=1 << 30).to(starts.device)
        return graph.A.col[first + numbers % (last - first)].long().unique()

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        S = self.draw(step, group, graph)
        A_S = induced_submatrix(graph.A, S, S, 0, 1.0)
        return MiniBatch([S] * (self.layers + 1), [A_S] * self.layers)


class WalkBatches(SampledStrategy):
    """Random walks on a replicated graph. Entries are not rescaled by their probabilities, so the result is biased."""

    name = "walk-batches"
    promise = Promise.APPROXIMATE
    models = ("gcn",)
    axes = (AxisName.D,)
    partitioned_over = None

    def compose(self) -> Composition:
        spec, n = self.spec, self.facts.vertices
        walks = Walks(spec.seed, spec.training.batch, spec.model.layers, self.groups, n)
        return Composition(walks, ReplicatedGraph(), LocalFeatures())
