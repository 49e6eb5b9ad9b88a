"""The sampling systems. Each is a row of this table: a sampler, the graph, the features, and prefetching.

| system | sampler | graph | features, and the rows of others in a cache | prefetch |
| --- | --- | --- | --- | --- |
| graphsage | neighbours | replicated | replicated | |
| graphsaint-node | nodes by importance | replicated | replicated | |
| distdgl | neighbours | partitioned | partitioned, no cache | optionally features |
| salient | neighbours | replicated or partitioned | partitioned, likely rows | draws if replicated, and features |
| massivegnn | neighbours | partitioned | partitioned, an evicting buffer | features |
| quiver | neighbours | replicated | partitioned, popular rows | draws and features |
| bulk-sage, bulk-ladies | neighbours, layers, in bulk | replicated or 1.5D | 1.5D, optionally likely rows | k batches |
| pyg (`pyg`) | PyG's | replicated | replicated | |
| cluster-gcn (`clusters`) | some clusters of a part | a rank's own part | a rank's own part | |

None of these is the authors' code. Each implements a system's idea with the same samplers, models and communication, so
that two runs differ only in the idea (docs/strategies/baselines.md and bulk-sampling.md).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from harness.base.validation import Frozen
from harness.ledger import AxisName
from harness.strategies.sampling.bulk import Algorithm1, Bulk, Distribution
from harness.strategies.sampling.caches import EvictingPolicy, LikelyPolicy, PopularPolicy
from harness.strategies.sampling.composition import Composition, SampledStrategy
from harness.strategies.sampling.features import LocalFeatures, PartitionedFeatures
from harness.strategies.sampling.graph_15d import PartitionedGraph15D
from harness.strategies.sampling.graph_placement import PartitionedGraph, ReplicatedGraph
from harness.strategies.sampling.matrices import MAX_DARTS
from harness.strategies.sampling.reference_samplers import (
    BulkSageReference,
    LadiesReference,
    NeighbourReference,
    NodeReference,
)
from harness.strategies.sampling.sampler import BatchSchedule, FanoutParams, NodesByImportance, fanout_per_hop
from harness.strategy import MessageParams, Promise

D, ROW, COL = AxisName.D, AxisName.ROW, AxisName.COL


# Graph and features replicated over one axis; on one rank this is serial mini-batch training. These two are the
# baselines for uniform vertex sampling, on the same model.


class SageParams(Frozen):
    fanout: int = Field(10, ge=1, le=1000, examples=[10, 2])
    """Neighbours drawn per vertex, in every layer."""


class GraphSage(SampledStrategy):
    """GraphSAGE's neighbour sampling in data parallel."""

    name = "graphsage"
    paper = "GraphSAGE (NeurIPS 2017)"
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None
    Params = SageParams
    params: SageParams
    reference_sampler = NeighbourReference

    def compose(self) -> Composition:
        return Composition(self.neighbours((self.params.fanout,)), ReplicatedGraph(), LocalFeatures())


class GraphSaintNode(SampledStrategy):
    """GraphSAINT's node sampling by importance; a mini-batch consists of `training.batch` draws."""

    name = "graphsaint-node"
    paper = "GraphSAINT (ICLR 2020)"
    models = ("gcn", "gat")
    edge_weights_refusal = (
        "it draws vertices by the squares of a normalised adjacency, without negative entries"
    )
    model_refusals: ClassVar[Mapping[str, str]] = {
        "sage": "a vertex that is not a neighbour of any other has an empty column in the mean over neighbours, and "
        "would never be drawn"
    }
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None
    reference_sampler = NodeReference

    def compose(self) -> Composition:
        spec, n = self.spec, self.facts.vertices
        sampler = NodesByImportance(spec.seed, spec.training.batch, spec.model.layers, self.groups, n)
        return Composition(sampler, ReplicatedGraph(), LocalFeatures())


# Neighbour sampling on a partitioned graph, as in known systems: one part of the vertices per rank.


class SamplingParams(FanoutParams, MessageParams):
    """The parameters of systems with a partitioned graph."""

    targets: Literal["own", "any"] = "own"
    """A rank trains on the training vertices of its part; or on any, with the same mini-batches as `graphsage`."""

    @property
    def own(self) -> bool:
        return self.targets == "own"


class DistDglParams(SamplingParams):
    """The parameters of the system without a cache."""

    prefetch: bool = False
    """Fetch the features of the next mini-batch during training; drawing it is not overlapped."""


class DistDgl(SampledStrategy):
    """DistDGL (Zheng et al., IA3'20): neighbours and features come from their owners, without a cache.

    This is the baseline for the caches of SALIENT++ and MassiveGNN. DGL itself differs: DistDGL runs server processes
    next to the trainers, which answer remote calls and share memory with the trainers on their machine. Here a rank is
    both trainer and server, and all ranks exchange requests in collectives.
    """

    name = "distdgl"
    paper = "DistDGL (IA3 2020)"
    Params = DistDglParams
    params: DistDglParams
    reference_sampler = NeighbourReference

    def compose(self) -> Composition:
        params = self.params
        sampler = self.neighbours(params.fanouts, own=params.own)
        return Composition(sampler, PartitionedGraph(), PartitionedFeatures(), params.prefetch)


class CachingParams(SamplingParams):
    """The parameters of systems with a cache."""

    share: float = Field(0.1, ge=0, examples=[0.0, 0.7])
    """The rows of others that a rank caches, as a share of the average number of rows per rank."""
    prefetch: bool = True
    """Fetch the features of the next mini-batch during training, and draw the one after it if the graph is local."""


class SalientParams(CachingParams):
    """The parameters of a cache, and the graph placement."""

    graph: Literal["replicated", "partitioned"] = "replicated"
    """Every rank has the whole graph; or only the rows of its part."""


class Salient(SampledStrategy):
    """SALIENT++ (Kaler et al., MLSys'23): a static cache of the rows that are most likely to be needed.

    The graph is replicated as in SALIENT++, or partitioned for a comparison with `distdgl`. The authors' code differs:
    it also splits features by the same probabilities between the memory of a GPU and its host, and draws and fetches
    more than one mini-batch ahead, on several threads.
    """

    name = "salient"
    paper = "SALIENT++ (MLSys 2023)"
    Params = SalientParams
    params: SalientParams
    reference_sampler = NeighbourReference

    def compose(self) -> Composition:
        params = self.params
        graph = ReplicatedGraph() if params.graph == "replicated" else PartitionedGraph()
        sampler = self.neighbours(params.fanouts, own=params.own)
        return Composition(sampler, graph, PartitionedFeatures(LikelyPolicy(params.share)), params.prefetch)


class EvictingParams(CachingParams):
    """The parameters of the evicting buffer."""

    share: float = Field(0.25, ge=0, le=1, examples=[0.0, 1.0])
    """The rows that a rank caches, as a share of the rows of others at the boundary of its part."""
    alpha: float = Field(0.05, gt=0, lt=1, examples=[0.5])
    """The fraction of its score that a cached row loses in each mini-batch that does not need it."""
    every: int = Field(16, ge=1, examples=[2])
    """The number of mini-batches between evictions."""


class MassiveGnn(SampledStrategy):
    """MassiveGNN (Sarkar et al., CLUSTER'24): a buffer for boundary rows, which evicts rows that were idle for long.

    The authors' code differs: it is part of DistDGL, fetches a missed row twice if it also enters the buffer, and does
    not count the misses of a mini-batch with evictions.
    """

    name = "massivegnn"
    paper = "MassiveGNN (CLUSTER 2024)"
    Params = EvictingParams
    params: EvictingParams
    reference_sampler = NeighbourReference

    def compose(self) -> Composition:
        params = self.params
        sampler = self.neighbours(params.fanouts, own=params.own)
        buffer = EvictingPolicy(params.share, params.alpha, params.every)
        return Composition(sampler, PartitionedGraph(), PartitionedFeatures(buffer), params.prefetch)


class Quiver(SampledStrategy):
    """Quiver (Tan et al., 2023): replicates the graph and caches the features of popular vertices on every rank.

    Quiver itself differs: it samples on GPUs, shares features over NVLink within a machine, and leaves features that no
    GPU holds in host memory. Here all ranks are treated equally.
    """

    name = "quiver"
    paper = "Quiver (2023)"
    Params = CachingParams
    params: CachingParams
    reference_sampler = NeighbourReference

    def compose(self) -> Composition:
        params = self.params
        sampler = self.neighbours(params.fanouts, own=params.own)
        features = PartitionedFeatures(PopularPolicy(params.share))
        return Composition(sampler, ReplicatedGraph(), features, params.prefetch)


# Matrix-based bulk sampling (Tripathy, Yelick and Buluc, MLSys 2024), on P/c rows and c columns of ranks. Batches are
# divided among all ranks, and each rank samples many of its own together (Algorithm 1): without communication if the
# graph is replicated (section 5.1), by 1.5D products if it is split into block rows (section 5.2). Features are in P/c
# block rows, each on the c ranks of a grid row; a batch fetches its features in one all-to-all of the grid column
# (section 6). The paper's k is the number of batches that P ranks draw together, its b is training.batch, and its s are
# the sizes of a layer. docs/strategies/bulk-sampling.md lists the choices that the paper leaves open.


class BulkParams(MessageParams):
    """The parameters of all bulk samplers."""

    bulk: int = Field(16, ge=0, examples=[2, 0])
    """The number of batches that a rank draws together, the paper's k over P; 0 for all batches of an epoch."""
    graph: Literal["replicated", "partitioned"] = "replicated"
    """Every rank has the whole graph (section 5.1), or block rows like those of the features (section 5.2)."""
    cache: float = Field(0.0, ge=0, examples=[0.3])
    """The rows of others that a rank caches, as a share of a block row; not in the paper."""


def compose_bulk(strategy: SampledStrategy, params: BulkParams, algorithm: Algorithm1) -> Composition:
    """Return the parts of a bulk-sampling system, given the algorithm that draws the layers of stacked batches."""
    spec, targets = strategy.spec, strategy.facts.count_trained_vertices(strategy.spec.protocol)
    schedule = BatchSchedule(spec.seed, spec.training.batch, strategy.groups, targets)
    graph = ReplicatedGraph() if params.graph == "replicated" else PartitionedGraph15D()
    bulk = Bulk(schedule, algorithm, params.bulk, mapped=spec.machine.device == "cpu")
    return Composition(bulk, graph, PartitionedFeatures(LikelyPolicy(params.cache)))


class BulkSageParams(FanoutParams, BulkParams):
    """The parameters of bulk neighbour sampling."""


class BulkSage(SampledStrategy):
    """GraphSAGE's neighbour sampling, whose products are unbiased.

    Attention goes over the drawn entries, so a vertex attends to itself only if its self-loop was drawn.
    """

    name = "bulk-sage"
    paper = "Distributed matrix-based sampling (MLSys 2024)"
    axes = (ROW, COL)
    partitioned_over = ROW
    Params = BulkSageParams
    params: BulkSageParams
    reference_sampler = BulkSageReference

    def compose(self) -> Composition:
        sizes = tuple(fanout_per_hop(self.params.fanouts, self.spec.model.layers))
        return compose_bulk(self, self.params, Algorithm1(self.spec.seed, "graphsage", sizes))


class LadiesParams(BulkParams):
    size: int = Field(512, ge=1, le=MAX_DARTS, examples=[9])
    """The number of vertices drawn per layer."""
    distribution: Distribution = "counts"
    """The mass of a vertex: the squared number of neighbours in the batch (equation 1), or the sum of squares."""
    replacement: bool = True
    """Draw with replacement, which makes the products unbiased. The paper draws without replacement."""


class BulkLadies(SampledStrategy):
    """LADIES' layer-wise sampling: unbiased with replacement, and approximately so without."""

    name = "bulk-ladies"
    paper = "Distributed matrix-based sampling (MLSys 2024)"
    models = ("gcn", "sage")
    edge_weights_refusal = "its probabilities assume entries of at most 1, which weighted edges can exceed"
    model_refusals: ClassVar[Mapping[str, str]] = {
        "gat": "a vertex may have no neighbour among the vertices drawn for a layer, and a softmax over no neighbours "
        "is undefined"
    }
    axes = (ROW, COL)
    partitioned_over = ROW
    Params = LadiesParams
    params: LadiesParams
    reference_sampler = LadiesReference

    @property
    def effective_promise(self) -> Promise:
        return self.promise if self.params.replacement else Promise.APPROXIMATE

    def compose(self) -> Composition:
        params, sizes = self.params, (self.params.size,) * self.spec.model.layers
        algorithm = Algorithm1(self.spec.seed, "ladies", sizes, params.distribution, params.replacement)
        return compose_bulk(self, params, algorithm)
