"""ClusterGCN-style training (Chiang et al., KDD'19): a mini-batch is some clusters of the graph, drawn anew and joined.

The graph is cut into many clusters, the same number for each rank. In a step, a rank joins some of its own clusters,
drawn at random: edges between joined clusters are kept, all others are cut, and weights are normalised by the degrees
that are left. An epoch visits every cluster once. No row of H travels in training; evaluation exchanges halos. Results
are approximate. The authors' code differs: it runs on one device, draws from all clusters, and strengthens the
diagonal.

Legend: N this rank's vertices, K the vertices of others that its evaluation needs, S the vertices of a mini-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from harness.kernels import Csr
from harness.kernels.attention import attend
from harness.kernels.csr import row_indices, take, to_device
from harness.kernels.parts import hstack
from harness.ledger import TensorName
from harness.models.gat import compute_scores, concatenate_heads, split_heads
from harness.parallel.halo import build_block_row
from harness.parallel.label_loss import LabelLoss
from harness.strategies.sampling.composition import Composition, P, SampledStrategy
from harness.strategies.sampling.features import Holdings, LocalFeatures, LocalStore
from harness.strategies.sampling.graph_placement import BlockLayout, OwnSubgraph, Rank
from harness.strategies.sampling.sampler import Deal, GraphView, Sampler, beside_entries, induced_on
from harness.strategy import Coordinates, Counts, MiniBatch, Promise
from harness.validation import Frozen


class ClusterParams(Frozen):
    clusters: int = Field(16, ge=1, examples=[1, 5])
    """Clusters of every rank. With one, all ranks train on their whole part in every step, as G3 compares it."""


class Cluster(SampledStrategy):
    """Clusters for any number of ranks up to the number of vertices."""

    name = "cluster-gcn"
    paper = "Cluster-GCN (KDD 2019)"
    promise = Promise.APPROXIMATE
    unweighted = "it normalises the subgraph of a mini-batch anew, by the degrees in it"
    Params = ClusterParams
    params: ClusterParams

    @classmethod
    def parts_of_block(cls, params: Frozen) -> int:
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
        at_once = round(self.spec.training.batch * len(clusters) / self.facts.vertices)
        deal = Deal(seed, max(1, at_once), 1, self.params.clusters)
        sampler = JoinedClusters(deal, clusters, model.layers, model.kind)
        return Composition(sampler, OwnSubgraph(), OwnFeatures(self.spec.precision))


@dataclass(frozen=True)
class JoinedClusters(Sampler):
    """Some of a rank's clusters: as many as have training.batch vertices in the mean, and at least one."""

    deal: Deal
    """The deal of a rank's clusters to its steps."""
    clusters: Sequence[range]
    """The clusters of all ranks, one rank after the other."""
    layers: int
    kind: str

    def steps(self, targets: int) -> int:
        return self.deal.steps

    def drawn(self, step: int, group: int) -> Tensor:
        """The vertices of a mini-batch, ascending."""
        own = torch.arange(group * self.deal.targets, (group + 1) * self.deal.targets)
        joined = self.deal.of(*self.deal.number(step, 0), own).sort().values
        spans = [self.clusters[number] for number in joined]
        return torch.cat([torch.arange(span.start, span.stop) for span in spans])

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        S = beside_entries(self.drawn(step, group), graph.A)
        A_SS = _normalised(induced_on(graph.A, S - graph.start), self.kind)
        return MiniBatch([S] * (self.layers + 1), [A_SS] * self.layers)


@dataclass(frozen=True)
class OwnFeatures(LocalFeatures):
    """The features of a rank's own vertices; evaluation exchanges the halo."""

    precision: str

    def on(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> "HaloStore":
        return HaloStore(rank, X_NF, labels)

    def holdings(self, layout: BlockLayout, at: Coordinates, counts: Counts) -> Holdings:
        """The block A_NK, and the indices of the rows that leave."""
        boundary = layout.boundary(at, counts)
        leaving = sum(boundary.outgoing_rows().values())
        return Holdings(numbers=leaving, matrix_bytes=boundary.compact_bytes(self.precision))


class HaloStore(LocalStore):
    """The rows of one rank, and the halo of its part."""

    def __init__(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> None:
        super().__init__(rank, X_NF, labels)
        layout, self.over = rank.layout, rank.holders
        member = layout.member(rank.ctx.at)
        self.row = build_block_row(rank.ctx, layout.blocks, member, range(len(layout.blocks)))

    def aggregate(self, A: Csr, H_NF: Tensor) -> Tensor:
        kernels = self.ctx.kernels
        H_KF = self.row.halo.exchange(self.over, kernels, H_NF, TensorName.H).now()
        return kernels.spmm(self.row.A_NK, H_KF, TensorName.T, add_to=kernels.spmm(A, H_NF, TensorName.T))

    def attend(self, A: Csr, T_QNF: Tensor, a_2H: Tensor) -> Tensor:
        """Z over the entries of both blocks, which stand beside each other."""
        T_KH = self.row.halo.exchange(
            self.over, self.ctx.kernels, concatenate_heads(T_QNF), TensorName.T
        ).now()
        T_QVF = torch.cat([T_QNF, split_heads(T_KH, len(T_QNF))], dim=1)
        A_NV = to_device(hstack([to_device(each, "cpu") for each in (A, self.row.A_NK)]), T_QNF.device)
        return attend(A_NV, compute_scores(T_QNF, a_2H[0]), compute_scores(T_QVF, a_2H[1]), T_QVF)[1]


def _normalised(A_SS: Csr, kind: str) -> Csr:
    """The subgraph weighted by d_i^-1/2 d_j^-1/2, loops included; or, for SAGE, by the mean over the neighbours."""
    if A_SS.val.is_meta:
        return A_SS
    degree, row = A_SS.rowptr.diff(), row_indices(A_SS)
    if kind == "sage":
        neighbours = (row != A_SS.col).to(A_SS.val.dtype)
        return A_SS._replace(val=neighbours / take((degree - 1).clamp(min=1), row))
    root = 1 / degree.to(A_SS.val.dtype).sqrt()  # both are rounded correctly on every device; rsqrt is not
    return A_SS._replace(val=take(root, row) * take(root, A_SS.col))
