"""ClusterGCN-style training (Chiang et al., KDD'19): a mini-batch is some clusters of the graph, drawn anew and joined.

The graph is cut into many clusters, as many for each rank. In a step a rank joins some of its own, drawn at random:
edges between these are there, all others are not, and weights are normalised by the degrees that are left. An epoch
comes to every cluster once. Nothing of H travels in training; evaluation exchanges halos. It is approximate, and not
the authors' code: that has one device, draws from all clusters, and strengthens the diagonal.

Legend: N this rank's vertices, K those of others that it needs to evaluate, S those of a mini-batch.
"""

from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from harness.kernels import Csr
from harness.kernels.csr import row_of, take
from harness.kernels.induced import induced_pair, mark, places
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.parallel.batches import Batches
from harness.parallel.halo import block_row
from harness.parallel.minibatches import BatchOperators, BatchStrategy
from harness.strategy import Context, Coordinates, Counts, MiniBatch, Piece, Promise
from harness.validation import Frozen

P = AxisName.P


class ClusterParams(Frozen):
    clusters: int = Field(16, ge=1, examples=[1, 5])
    """Of every rank. With one, all ranks train on their whole part in every step, as G3 compares it."""


class Cluster(BatchStrategy):
    """Clusters for any number of ranks up to the number of vertices."""

    name = "cluster-gcn"
    promise = Promise.APPROXIMATE
    models = ("gcn", "sage")
    Params = ClusterParams
    params: ClusterParams

    @classmethod
    def parts_of_block(cls, params: Frozen) -> int:
        assert isinstance(params, ClusterParams)
        return params.clusters

    @property
    def groups(self) -> int:
        return self.grid[P]

    @property
    def clusters(self) -> list[range]:
        """Those of all ranks, one rank after the other."""
        return self.facts.blocks(self.grid[P] * self.params.clusters)

    def blocks(self) -> list[range]:
        clusters, each = self.clusters, self.params.clusters
        return [
            range(clusters[first].start, clusters[first + each - 1].stop)
            for first in range(0, len(clusters), each)
        ]

    @property
    def batches(self) -> Batches:
        """Of a rank's clusters: so many at once as have training.batch vertices in the mean, one at least."""
        at_once = round(self.spec.training.batch * len(self.clusters) / self.facts.vertices)
        return Batches(self.spec.seed, max(1, at_once), 1, self.params.clusters)

    @property
    def steps(self) -> int:
        return self.batches.steps

    def drawn(self, step: int, group: int) -> Tensor:
        """The vertices of a mini-batch, ascending."""
        first, batches = group * self.params.clusters, self.batches
        own = torch.arange(first, first + self.params.clusters)
        joined = batches.of(*batches.number(step, 0), own).sort().values
        spans = [self.clusters[number] for number in joined]
        return torch.cat([torch.arange(span.start, span.stop) for span in spans])

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        return self.joined(self.drawn(step, group), A, 0)

    def joined(self, S: Tensor, A: Csr, start: int) -> MiniBatch:
        """The subgraph on some vertices, where A begins with those at `start`."""
        layers, where = self.spec.model.layers, places(A.cols, S.device)
        mark(where, S - start, 1)
        A_SS, _ = induced_pair(A, S - start, S - start, where, 1, 0, 1.0)
        return MiniBatch([S] * (layers + 1), [_normalised(A_SS, self.spec.model.kind)] * layers)

    def operators(self, ctx: Context) -> "ClusterRows":
        return ClusterRows(ctx, self)

    def multiplied(self, at: Coordinates) -> list[Piece]:
        return [Piece(self.rows(at), self.rows(at))]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """What of A is at its own vertices, and the boundary."""
        held, boundary = super().memory(at, counts), self.boundary(at, counts)
        held[TensorName.A] += boundary.compact_bytes(self.spec.precision)
        return {**held, TensorName.INDEX: boundary.index_bytes()}


class ClusterRows(BatchOperators):
    """The whole graph where it is asked for, some of this rank's clusters in a training step."""

    def __init__(self, ctx: Context, strategy: Cluster) -> None:
        super().__init__(ctx, strategy, over=(P,), everyone=ctx.grid[P])
        self.strategy = strategy
        self.row = block_row(ctx, strategy.blocks(), ctx.at[P], range(strategy.groups))
        self.A_NN = ctx.source(self.rows, self.rows)

    def of_step(self, step: int) -> Self:
        with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.A):
            S = self.strategy.drawn(step, self.group)
            batch = self.strategy.joined(S, self.A_NN, self.rows.start)
            here = (S - self.rows.start).to(self.device)
            return self.on(step, batch, self.X.index_select(0, here), self.answers.on(here))

    def aggregate_all(self, H_NF: Tensor) -> Tensor:
        H_KF = self.row.halo.exchange(self.over, self.kernels, H_NF, TensorName.H).now()
        T_NF = self.kernels.spmm(self.row.A_NN, H_NF, TensorName.T)
        return self.kernels.spmm(self.row.A_NK, H_KF, TensorName.T, add_to=T_NF)


def _normalised(A_SS: Csr, kind: str) -> Csr:
    """By the degrees in the subgraph: roots of those of both ends, loops included; or a mean over the neighbours."""
    if A_SS.val.is_meta:
        return A_SS
    degree, row = A_SS.rowptr.diff(), row_of(A_SS)
    if kind == "sage":
        neighbours = (row != A_SS.col).to(A_SS.val.dtype)
        return A_SS._replace(val=neighbours / take((degree - 1).clamp(min=1), row))
    root = degree.to(A_SS.val.dtype).rsqrt()
    return A_SS._replace(val=take(root, row) * take(root, A_SS.col))
