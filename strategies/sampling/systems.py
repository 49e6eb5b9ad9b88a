"""The systems that sample, each a row of one table: a sampler, the graph, the features, and what is under way early.

| system | sampler | graph | features, and what is kept of others | prefetch |
| --- | --- | --- | --- | --- |
| graphsage | neighbours | everyone | everyone | |
| graphsaint-node | nodes by importance | everyone | everyone | |
| distdgl | neighbours | block rows | block rows, nothing | |
| salient | neighbours | everyone or block rows | block rows, the likeliest | features |
| massivegnn | neighbours | block rows | block rows, an evicting buffer | features |
| quiver | neighbours | everyone | block rows, the most popular | features |
| bulk-sage, bulk-ladies | bulks of neighbours, of layers | everyone or 1.5D | 1.5D, perhaps the likeliest | k batches |
| pyg (`pyg`) | PyG's own | everyone | everyone | |
| cluster-gcn (`clusters`) | some clusters of a part | a rank's own part | a rank's own part | |

None is its authors' code: they are the idea of each, on one sampler, one model and one way to send, so that two runs
differ in the idea alone (docs/strategies/baselines.md and bulk-sampling.md).
"""

from typing import ClassVar, Literal

from pydantic import Field

from harness.ledger import AxisName
from harness.strategy import Promise
from harness.validation import Frozen
from strategies.sampling.bulk import Algorithm1, Bulk, Distribution
from strategies.sampling.caches import AtBoundary, Likeliest, Popular
from strategies.sampling.features import FromOwners, Local
from strategies.sampling.graph_15d import BlockRows15D
from strategies.sampling.graph_at import BlockRows, Everyone
from strategies.sampling.matrices import MOST
from strategies.sampling.sampler import Deal, FanoutParams, Neighbours, NodesByImportance, hops_of
from strategies.sampling.trainer import Parts, Sampled

D, ROW, COL = AxisName.D, AxisName.ROW, AxisName.COL


def neighbours(system: Sampled, fanouts: tuple[int, ...], *, own: bool = False) -> Neighbours:
    """The sampler of neighbours for a system, on targets of a rank's own or on any."""
    spec = system.spec
    return Neighbours(spec.seed, spec.training.batch, fanouts, spec.model.layers, system.groups, own)


# Everything on every rank of one axis: on one rank, serial mini-batch training. Uniform vertex sampling is held
# against these, on the same model.


class SageParams(Frozen):
    fanout: int = Field(10, ge=1, le=1000, examples=[10, 2])
    """Neighbours that are drawn of a vertex in every layer."""


class GraphSage(Sampled):
    """GraphSAGE's neighbours in data parallel."""

    name = "graphsage"
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None
    Params = SageParams
    params: SageParams

    def compose(self) -> Parts:
        return Parts(neighbours(self, (self.params.fanout,)), Everyone(), Local())


class GraphSaintNode(Sampled):
    """GraphSAINT's node sampling by importance; a mini-batch is of so many draws."""

    name = "graphsaint-node"
    models = ("gcn",)
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None

    def compose(self) -> Parts:
        spec, n = self.spec, self.facts.vertices
        sampler = NodesByImportance(spec.seed, spec.training.batch, spec.model.layers, self.groups, n)
        return Parts(sampler, Everyone(), Local())


# Neighbours on a partitioned graph, in the manner of known systems: a part of the vertices a rank.


class SamplingParams(FanoutParams):
    """The parameters of all of these systems."""

    targets: Literal["own", "any"] = "own"
    """A rank trains on the training vertices of its part, or on any, as `graphsage` does: the same mini-batches."""

    @property
    def own(self) -> bool:
        return self.targets == "own"


class DistDgl(Sampled):
    """DistDGL (Zheng et al., IA3'20): neighbours and features from their owners, nothing kept.

    It is what the caches of SALIENT++ and MassiveGNN are held against. It is not DGL: a rank is trainer and server in
    one, and all ask each other in common calls. DistDGL has servers beside the trainers, which answer remote calls and
    share memory with the trainers of their machine.
    """

    name = "distdgl"
    Params = SamplingParams
    params: SamplingParams

    def compose(self) -> Parts:
        sampler = neighbours(self, self.params.fanouts, own=self.params.own)
        return Parts(sampler, BlockRows(), FromOwners())


class KeepingParams(SamplingParams):
    """The parameters of systems with a cache."""

    share: float = Field(0.1, ge=0, examples=[0.0, 0.7])
    """Rows of others that a rank keeps, as a share of the rows that each had if all had as many."""
    prefetch: bool = True
    """The features of a mini-batch are under way while the one before it is trained on."""


class SalientParams(KeepingParams):
    """The parameters of a cache, and of the graph's placement."""

    graph: Literal["replicated", "partitioned"] = "replicated"
    """On every rank, or a part's rows on the rank of the part."""


class Salient(Sampled):
    """SALIENT++ (Kaler et al., MLSys'23): a static cache of the rows that are likeliest to be needed.

    The graph is on every rank as theirs is, or partitioned, to be held against `distdgl`. It is not the authors' code,
    which splits features by the same chances between a GPU's memory and the host's, and prepares several mini-batches
    ahead.
    """

    name = "salient"
    Params = SalientParams
    params: SalientParams

    def compose(self) -> Parts:
        params = self.params
        graph = Everyone() if params.graph == "replicated" else BlockRows()
        sampler = neighbours(self, params.fanouts, own=params.own)
        return Parts(sampler, graph, FromOwners(Likeliest(params.share)), params.prefetch)


class EvictingParams(KeepingParams):
    """The parameters of the buffer."""

    share: float = Field(0.25, ge=0, le=1, examples=[0.0, 1.0])
    """Rows that a rank keeps, as a share of those of others at the boundary of its part."""
    alpha: float = Field(0.05, gt=0, lt=1, examples=[0.5])
    """How fast a row that is kept loses its score."""
    every: int = Field(16, ge=1, examples=[2])
    """Mini-batches between evictions."""


class MassiveGnn(Sampled):
    """MassiveGNN (Sarkar et al., CLUSTER'24): a buffer at the boundary that evicts what was long not asked for.

    It is not the authors' code, which sits in DistDGL: there a row that is missed and comes into the buffer at once is
    fetched twice, and misses of a mini-batch with evictions are not counted.
    """

    name = "massivegnn"
    Params = EvictingParams
    params: EvictingParams

    def compose(self) -> Parts:
        params = self.params
        sampler = neighbours(self, params.fanouts, own=params.own)
        buffer = AtBoundary(params.share, params.alpha, params.every)
        return Parts(sampler, BlockRows(), FromOwners(buffer), params.prefetch)


class Quiver(Sampled):
    """Quiver (Tan et al., 2023): the graph on every rank, the features of popular vertices too; sampling says nothing.

    It is not Quiver, which samples on GPUs, shares features over NVLink within a machine, and leaves those of no GPU in
    the host's memory; ranks are all alike here.
    """

    name = "quiver"
    Params = KeepingParams
    params: KeepingParams

    def compose(self) -> Parts:
        params = self.params
        sampler = neighbours(self, params.fanouts, own=params.own)
        return Parts(sampler, Everyone(), FromOwners(Popular(params.share)), params.prefetch)


# Matrix-based bulk sampling (Tripathy, Yelick and Buluc, MLSys 2024), on P/c rows and c columns of ranks. Batches are
# dealt to all ranks, who sample theirs, many at once (Algorithm 1): without a word where each has the graph (section
# 5.1), by products in 1.5D where it has block rows (section 5.2). Features are in P/c block rows, each on the c ranks
# of a grid row; a batch's come in one all-to-all of the grid column (section 6). The paper's k is the batches that P
# ranks draw at once, its b training.batch, its s the sizes of a layer. What it leaves open is said in
# docs/strategies/bulk-sampling.md.


class BulkParams(Frozen):
    """The parameters of all samplers in bulk."""

    bulk: int = Field(16, ge=0, examples=[2, 0])
    """Batches that a rank draws at once, the paper's k over P; 0 draws those of an epoch."""
    graph: Literal["replicated", "partitioned"] = "replicated"
    """On every rank (section 5.1), or in block rows as the features are (section 5.2)."""
    cache: float = Field(0.0, ge=0, examples=[0.3])
    """Rows of others that a rank keeps, as a share of a block row; not in the paper."""


def in_bulk(system: Sampled, params: BulkParams, how: Algorithm1) -> Parts:
    """The parts of a system that samples in bulk."""
    spec, targets = system.spec, system.facts.trained_on(system.spec.protocol)
    deal = Deal(spec.seed, spec.training.batch, system.groups, targets)
    graph = Everyone() if params.graph == "replicated" else BlockRows15D()
    return Parts(Bulk(deal, how, params.bulk), graph, FromOwners(Likeliest(params.cache)))


class BulkSageParams(FanoutParams, BulkParams):
    """The parameters of a sampler of neighbours, in bulk."""


class BulkSage(Sampled):
    """GraphSAGE's neighbours: a product with every sample is unbiased."""

    name = "bulk-sage"
    axes: ClassVar[tuple[AxisName, ...]] = (ROW, COL)
    partitioned_over = ROW
    Params = BulkSageParams
    params: BulkSageParams

    def compose(self) -> Parts:
        sizes = tuple(hops_of(self.params.fanouts, self.spec.model.layers))
        return in_bulk(self, self.params, Algorithm1(self.spec.seed, "graphsage", sizes))


class LadiesParams(BulkParams):
    size: int = Field(512, ge=1, le=MOST, examples=[9])
    """Vertices that are drawn in a layer."""
    distribution: Distribution = "counts"
    """By the squared number of neighbours in the batch (equation 1), or by the sum of squares of their weights."""
    replacement: bool = True
    """Whether a vertex may be drawn twice, which makes the products unbiased. The paper draws without."""


class BulkLadies(Sampled):
    """LADIES' vertices of a layer: unbiased with replacement, and nearly so without."""

    name = "bulk-ladies"
    axes: ClassVar[tuple[AxisName, ...]] = (ROW, COL)
    partitioned_over = ROW
    Params = LadiesParams
    params: LadiesParams

    def promised(self) -> Promise:
        return self.promise if self.params.replacement else Promise.APPROXIMATE

    def compose(self) -> Parts:
        params, sizes = self.params, (self.params.size,) * self.spec.model.layers
        how = Algorithm1(self.spec.seed, "ladies", sizes, params.distribution, params.replacement)
        return in_bulk(self, params, how)
