"""ClusterGCN-style training (Chiang et al., KDD'19): a mini-batch joins some randomly drawn clusters of the graph.

The graph is split into many clusters, the same number for each rank. In a step, a rank joins some of its own clusters:
edges between them are kept, all others are cut, and weights are normalised by the remaining degrees. An epoch visits
every cluster once. Training sends no rows of H; evaluation exchanges halos. Results are approximate. The authors' code
differs: it runs on one device, draws from all clusters, and strengthens the diagonal.

Legend: N this rank's vertices, K the vertices of others that its evaluation needs, S the vertices of a mini-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from harness.base.validation import Frozen
from harness.kernels import Csr
from harness.kernels.attention import attend
from harness.kernels.csr import row_indices, take, to_device
from harness.kernels.parts import hstack
from harness.ledger import TensorName
from harness.strategies.sampling.composition import Composition, P, SampledStrategy
from harness.strategies.sampling.features import HeldSizes, LocalFeatures, LocalStore
from harness.strategies.sampling.graph_placement import BlockLayout, OwnSubgraph, Rank
from harness.strategies.sampling.reference_samplers import ClusterReference
from harness.strategies.sampling.sampler import (
    BatchSchedule,
    GraphView,
    Sampler,
    induce_subgraph,
    move_to_entries,
)
from harness.strategy import Coordinates, Counts, MiniBatch, Promise
from harness.strategy.models.gat import compute_scores, concatenate_heads, split_heads
from harness.strategy.parallel.halo import build_block_row
from harness.strategy.parallel.label_loss import LabelLoss


class ClusterParams(Frozen):
    clusters: int = Field(16, ge=1, examples=[1, 5])
    """The number of clusters on each rank. With 1, ranks train on their whole part in every step, as in G3's paper."""


class Cluster(SampledStrategy):
    """Training on clusters, for any number of ranks up to the number of vertices."""

    name = "cluster-gcn"
    paper = "Cluster-GCN (KDD 2019)"
    promise = Promise.APPROXIMATE
    edge_weights_refusal = "it normalises the subgraph of a mini-batch anew, by the degrees in it"
    Params = ClusterParams
    params: ClusterParams
    reference_sampler = ClusterReference

    @classmethod
    def parts_per_block(cls, params: Frozen) -> int:
        assert isinstance(params, ClusterParams)
        return params.clusters

    @property
    def clusters(self) -> list[range]:
        """The clusters of all ranks, one rank after the other."""
        return self.facts.blocks(self.grid[P] * self.params.clusters)

    def blocks(self) -> list[range]:
        clusters, each = self.clusters, self.params.clusters
        return [
            range(clusters[first].start, clusters[first + each - 1].stop)
            for first in range(0, len(clusters), each)
        ]

    def compose(self) -> Composition:
        model, seed, clusters = self.spec.model, self.spec.seed, self.clusters
        joined = round(self.spec.training.batch * len(clusters) / self.facts.vertices)
        schedule = BatchSchedule(seed, max(1, joined), 1, self.params.clusters)
        sampler = JoinedClusters(schedule, clusters, model.layers, model.kind)
        return Composition(sampler, OwnSubgraph(), OwnFeatures(self.spec.precision))


@dataclass(frozen=True)
class JoinedClusters(Sampler):
    """Joins some of a rank's clusters: at least one, with `training.batch` vertices on average."""

    schedule: BatchSchedule
    """The assignment of a rank's clusters to its steps."""
    clusters: Sequence[range]
    """The clusters of all ranks, one rank after the other."""
    layers: int
    kind: str

    def steps(self, targets: int) -> int:
        return self.schedule.steps

    def draw_vertices(self, step: int, group: int) -> Tensor:
        """Return the vertices of a mini-batch, in ascending order."""
        own = torch.arange(group * self.schedule.targets, (group + 1) * self.schedule.targets)
        joined = self.schedule.batch_targets(*self.schedule.locate_batch(step, 0), own).sort().values
        spans = [self.clusters[number] for number in joined]
        return torch.cat([torch.arange(span.start, span.stop) for span in spans])

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        S = move_to_entries(self.draw_vertices(step, group), graph.A)
        A_SS = _normalise_subgraph(induce_subgraph(graph.A, S - graph.start), self.kind)
        return MiniBatch([S] * (self.layers + 1), [A_SS] * self.layers)


@dataclass(frozen=True)
class OwnFeatures(LocalFeatures):
    """The features of a rank's own vertices; evaluation exchanges the halo."""

    precision: str

    def create_store(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "HaloStore":
        return HaloStore(rank, X_NF, labels)

    def held_sizes(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> HeldSizes:
        """Return the sizes of the block A_NK and of the indices of sent rows."""
        boundary = layout.boundary(at, counts)
        leaving = sum(boundary.outgoing_rows().values())
        return HeldSizes(numbers=leaving, matrix_bytes=boundary.compact_bytes(self.precision))


class HaloStore(LocalStore):
    """The rows of one rank, and the halo of its part."""

    def __init__(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> None:
        super().__init__(rank, X_NF, labels)
        layout, self.over = rank.layout, rank.holders
        member = layout.member(rank.ctx.at)
        self.row = build_block_row(rank.ctx, layout.blocks, member, range(len(layout.blocks)))

    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        H, T = TensorName.H, TensorName.T
        return self.row.multiply(self.over, self.ctx.kernels, H_NF, moves=H, makes=T, overlap=False)

    def attend(self, A: Csr, T_QNF: Tensor, a_2H: Tensor) -> Tensor:
        """Return Z over the entries of both blocks, which are concatenated."""
        T_NH = concatenate_heads(T_QNF)
        T_KH = self.row.halo.exchange(self.over, self.ctx.kernels, T_NH, TensorName.T).now()
        T_QVF = torch.cat([T_QNF, split_heads(T_KH, len(T_QNF))], dim=1)
        A_NV = to_device(hstack([to_device(each, "cpu") for each in (A, self.row.A_NK)]), T_QNF.device)
        return attend(A_NV, compute_scores(T_QNF, a_2H[0]), compute_scores(T_QVF, a_2H[1]), T_QVF)[1]


def _normalise_subgraph(A_SS: Csr, kind: str) -> Csr:
    """Weight the subgraph by d_i^-1/2 d_j^-1/2, self-loops included; for SAGE, by the mean over the neighbours."""
    if A_SS.val.is_meta:
        return A_SS
    degree, row = A_SS.rowptr.diff(), row_indices(A_SS)
    if kind == "sage":
        neighbours = (row != A_SS.col).to(A_SS.val.dtype)
        return A_SS._replace(val=neighbours / take((degree - 1).clamp(min=1), row))
    root = 1 / degree.to(A_SS.val.dtype).sqrt()  # both are rounded correctly on every device; rsqrt is not
    return A_SS._replace(val=take(root, row) * take(root, A_SS.col))
