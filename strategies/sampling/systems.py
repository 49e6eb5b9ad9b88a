"""The systems that sample. Each is a row of one table: a sampler, the graph, the features, and the prefetching.

| system | sampler | graph | features, and the rows of others in a cache | prefetch |
| --- | --- | --- | --- | --- |
| graphsage | neighbours | replicated | replicated | |
| graphsaint-node | nodes by importance | replicated | replicated | |
| distdgl | neighbours | partitioned | partitioned, no cache | perhaps features |
| salient | neighbours | replicated or partitioned | partitioned, the likeliest | draws if replicated, and features |
| massivegnn | neighbours | partitioned | partitioned, an evicting buffer | features |
| quiver | neighbours | replicated | partitioned, the most popular | draws and features |
| bulk-sage, bulk-ladies | neighbours, layers, in bulk | replicated or 1.5D | 1.5D, perhaps the likeliest | k batches |
| pyg (`pyg`) | PyG's own | replicated | replicated | |
| cluster-gcn (`clusters`) | some clusters of a part | a rank's own part | a rank's own part | |

None of these is its authors' code. Each is the idea of a system, on one sampler, one model and one way to send, so that
two runs differ in the idea alone (docs/strategies/baselines.md and bulk-sampling.md).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from harness.ledger import AxisName
from harness.strategies.sampling.bulk import Algorithm1, Bulk, Distribution
from harness.strategies.sampling.caches import AtBoundary, Likeliest, Popular
from harness.strategies.sampling.composition import Composition, SampledStrategy
from harness.strategies.sampling.features import LocalFeatures, PartitionedFeatures
from harness.strategies.sampling.graph_15d import PartitionedGraph15D
from harness.strategies.sampling.graph_placement import PartitionedGraph, ReplicatedGraph
from harness.strategies.sampling.matrices import MAX_DARTS
from harness.strategies.sampling.sampler import Deal, FanoutParams, NodesByImportance, hops_of
from harness.strategy import MessageParams, Promise
from harness.validation import Frozen

D, ROW, COL = AxisName.D, AxisName.ROW, AxisName.COL


# Graph and features on every rank of one axis: on one rank, this is serial mini-batch training. Uniform vertex sampling
# is compared with these two, on the same model.


class SageParams(Frozen):
    fanout: int = Field(10, ge=1, le=1000, examples=[10, 2])
    """Neighbours drawn per vertex, in every layer."""


class GraphSage(SampledStrategy):
    """GraphSAGE's neighbours in data parallel."""

    name = "graphsage"
    paper = "GraphSAGE (NeurIPS 2017)"
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None
    Params = SageParams
    params: SageParams

    def compose(self) -> Composition:
        return Composition(self.neighbours((self.params.fanout,)), ReplicatedGraph(), LocalFeatures())


class GraphSaintNode(SampledStrategy):
    """GraphSAINT's node sampling by importance; a mini-batch consists of `training.batch` draws."""

    name = "graphsaint-node"
    paper = "GraphSAINT (ICLR 2020)"
    models = ("gcn", "gat")
    unweighted = (
        "it draws vertices by the squares of a normalised adjacency, of which none is empty or negative"
    )
    untrained: ClassVar[Mapping[str, str]] = {
        "sage": "a vertex that is no neighbour of another has an empty column in the mean over neighbours, and would "
        "never be drawn"
    }
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None

    def compose(self) -> Composition:
        spec, n = self.spec, self.facts.vertices
        sampler = NodesByImportance(spec.seed, spec.training.batch, spec.model.layers, self.groups, n)
        return Composition(sampler, ReplicatedGraph(), LocalFeatures())


# Neighbours on a partitioned graph, in the manner of known systems: one part of the vertices per rank.


class SamplingParams(FanoutParams, MessageParams):
    """The parameters of all of these systems."""

    targets: Literal["own", "any"] = "own"
    """A rank trains on the training vertices of its part; or on any, in the same mini-batches as `graphsage`."""

    @property
    def own(self) -> bool:
        return self.targets == "own"


class DistDglParams(SamplingParams):
    """The parameters of the system without a cache."""

    prefetch: bool = False
    """Fetch the features of a mini-batch while the rank trains on the one before; its draw is waited for."""


class DistDgl(SampledStrategy):
    """DistDGL (Zheng et al., IA3'20): neighbours and features come from their owners, and nothing is cached.

    The caches of SALIENT++ and MassiveGNN are compared with this baseline. DGL itself differs: DistDGL runs servers
    beside the trainers, which answer remote calls and share memory with the trainers of their machine. Here a rank is
    trainer and server in one, and all ranks ask each other in common calls.
    """

    name = "distdgl"
    paper = "DistDGL (IA3 2020)"
    Params = DistDglParams
    params: DistDglParams

    def compose(self) -> Composition:
        params = self.params
        sampler = self.neighbours(params.fanouts, own=params.own)
        return Composition(sampler, PartitionedGraph(), PartitionedFeatures(), params.prefetch)


class KeepingParams(SamplingParams):
    """The parameters of systems with a cache."""

    share: float = Field(0.1, ge=0, examples=[0.0, 0.7])
    """Rows of others that a rank keeps, as a share of the rows per rank if all ranks have equally many."""
    prefetch: bool = True
    """Fetch the features of a mini-batch while the rank trains on the one before, and draw the next where it can."""


class SalientParams(KeepingParams):
    """The parameters of a cache, and of the graph's placement."""

    graph: Literal["replicated", "partitioned"] = "replicated"
    """Every rank has the whole graph; or each rank has the rows of its part."""


class Salient(SampledStrategy):
    """SALIENT++ (Kaler et al., MLSys'23): a static cache of the rows that are likeliest to be needed.

    The graph is replicated as in SALIENT++, or partitioned for a comparison with `distdgl`. The authors' code differs:
    it also splits features by the same chances between a GPU's memory and its host's, and draws and fetches on several
    threads, more than one mini-batch ahead.
    """

    name = "salient"
    paper = "SALIENT++ (MLSys 2023)"
    Params = SalientParams
    params: SalientParams

    def compose(self) -> Composition:
        params = self.params
        graph = ReplicatedGraph() if params.graph == "replicated" else PartitionedGraph()
        sampler = self.neighbours(params.fanouts, own=params.own)
        return Composition(sampler, graph, PartitionedFeatures(Likeliest(params.share)), params.prefetch)


class EvictingParams(KeepingParams):
    """The parameters of the buffer."""

    share: float = Field(0.25, ge=0, le=1, examples=[0.0, 1.0])
    """Rows that a rank keeps, as a share of the rows of others at the boundary of its part."""
    alpha: float = Field(0.05, gt=0, lt=1, examples=[0.5])
    """The part of its score that a cached row loses with every mini-batch that does not need the row."""
    every: int = Field(16, ge=1, examples=[2])
    """Mini-batches between evictions."""


class MassiveGnn(SampledStrategy):
    """MassiveGNN (Sarkar et al., CLUSTER'24): a buffer for the boundary, which evicts rows that were idle for long.

    The authors' code differs: it is part of DistDGL, fetches a row twice that is missed and enters the buffer at once,
    and does not count the misses of a mini-batch with evictions.
    """

    name = "massivegnn"
    paper = "MassiveGNN (CLUSTER 2024)"
    Params = EvictingParams
    params: EvictingParams

    def compose(self) -> Composition:
        params = self.params
        sampler = self.neighbours(params.fanouts, own=params.own)
        buffer = AtBoundary(params.share, params.alpha, params.every)
        return Composition(sampler, PartitionedGraph(), PartitionedFeatures(buffer), params.prefetch)


class Quiver(SampledStrategy):
    """Quiver (Tan et al., 2023): every rank has the graph and the features of popular vertices; sampling sends nothing.

    Quiver itself differs: it samples on GPUs, shares features over NVLink within a machine, and leaves features that no
    GPU holds in the host's memory. Here all ranks are alike.
    """

    name = "quiver"
    paper = "Quiver (2023)"
    Params = KeepingParams
    params: KeepingParams

    def compose(self) -> Composition:
        params = self.params
        sampler = self.neighbours(params.fanouts, own=params.own)
        features = PartitionedFeatures(Popular(params.share))
        return Composition(sampler, ReplicatedGraph(), features, params.prefetch)


# Matrix-based bulk sampling (Tripathy, Yelick and Buluc, MLSys 2024), on P/c rows and c columns of ranks. Batches are
# dealt to all ranks, and each rank samples many of its own at once (Algorithm 1): without sending a word if it has the
# whole graph (section 5.1), by products in 1.5D if it has block rows (section 5.2). Features are in P/c block rows,
# each on the c ranks of a grid row; a batch gets its features in one all-to-all of the grid column (section 6). The
# paper's k is the number of batches that P ranks draw at once, its b is training.batch, its s are the sizes of a layer.
# What the paper leaves open is in docs/strategies/bulk-sampling.md.


class BulkParams(MessageParams):
    """The parameters of all samplers in bulk."""

    bulk: int = Field(16, ge=0, examples=[2, 0])
    """Batches that a rank draws at once, the paper's k over P; 0 draws all batches of an epoch."""
    graph: Literal["replicated", "partitioned"] = "replicated"
    """Every rank has the whole graph (section 5.1), or block rows like those of the features (section 5.2)."""
    cache: float = Field(0.0, ge=0, examples=[0.3])
    """Rows of others that a rank keeps, as a share of a block row; not in the paper."""


def in_bulk(strategy: SampledStrategy, params: BulkParams, algorithm: Algorithm1) -> Composition:
    """The parts of a system that samples in bulk, given its way to draw the layers of stacked batches."""
    spec, targets = strategy.spec, strategy.facts.trained_on(strategy.spec.protocol)
    deal = Deal(spec.seed, spec.training.batch, strategy.groups, targets)
    graph = ReplicatedGraph() if params.graph == "replicated" else PartitionedGraph15D()
    bulk = Bulk(deal, algorithm, params.bulk, mapped=spec.machine.device == "cpu")
    return Composition(bulk, graph, PartitionedFeatures(Likeliest(params.cache)))


class BulkSageParams(FanoutParams, BulkParams):
    """The parameters of a sampler of neighbours, in bulk."""


class BulkSage(SampledStrategy):
    """GraphSAGE's neighbours: a product with any sample is unbiased.

    Attention goes over the drawn entries: a vertex is one of its own neighbours only where its loop was drawn.
    """

    name = "bulk-sage"
    paper = "Distributed matrix-based sampling (MLSys 2024)"
    axes = (ROW, COL)
    partitioned_over = ROW
    Params = BulkSageParams
    params: BulkSageParams

    def compose(self) -> Composition:
        sizes = tuple(hops_of(self.params.fanouts, self.spec.model.layers))
        return in_bulk(self, self.params, Algorithm1(self.spec.seed, "graphsage", sizes))


class LadiesParams(BulkParams):
    size: int = Field(512, ge=1, le=MAX_DARTS, examples=[9])
    """Vertices drawn per layer."""
    distribution: Distribution = "counts"
    """The mass of a vertex: the squared number of neighbours in the batch (equation 1), or the sum of squares."""
    replacement: bool = True
    """Draw a vertex possibly twice, which makes the products unbiased. The paper draws without replacement."""


class BulkLadies(SampledStrategy):
    """LADIES' vertices of a layer: unbiased with replacement, and nearly so without."""

    name = "bulk-ladies"
    paper = "Distributed matrix-based sampling (MLSys 2024)"
    models = ("gcn", "sage")
    unweighted = "it counts chances in squares of entries of at most 1, which weighted ones exceed"
    untrained: ClassVar[Mapping[str, str]] = {
        "gat": "none of a vertex's neighbours need be among the vertices drawn for a layer, and a softmax over no "
        "neighbour has no value"
    }
    axes = (ROW, COL)
    partitioned_over = ROW
    Params = LadiesParams
    params: LadiesParams

    def promised(self) -> Promise:
        return self.promise if self.params.replacement else Promise.APPROXIMATE

    def compose(self) -> Composition:
        params, sizes = self.params, (self.params.size,) * self.spec.model.layers
        algorithm = Algorithm1(self.spec.seed, "ladies", sizes, params.distribution, params.replacement)
        return in_bulk(self, params, algorithm)
