"""ClusterGCN-style training (Chiang et al., KDD'19), a cluster a rank: edges between clusters are left out.

In a training step every part is a graph of its own, with weights normalised by the degrees that are left; nothing of H
travels. All clusters are trained at once, one a rank, and their gradients added up: the form in which G3 compares it.
It is approximate, and not the authors' code, which draws several clusters a batch. Evaluation uses the whole graph.

Legend as in `rows`.
"""

import torch
from torch import Tensor

from harness.kernels import Csr
from harness.kernels.csr import row_of, take
from harness.ledger import TensorName
from harness.parallel.halo import Boundary
from harness.strategy import WORD, Context, Coordinates, Counts, Promise
from strategies.halo.rows import PartRows, PartScheme


class Cluster(PartScheme):
    """A cluster a rank, for any number of ranks up to the number of vertices."""

    name = "cluster-gcn"
    promise = Promise.APPROXIMATE
    models = ("gcn",)

    def operators(self, ctx: Context) -> "ClusterRows":
        return ClusterRows(ctx, self)

    def travelling(self, boundary: Boundary, epoch: int) -> tuple[int, int]:
        return 0, 0

    def multiplier(self, A: Tensor, layer: int, step: int) -> Tensor:
        """The diagonal blocks of A, each normalised by itself."""
        clusters = torch.zeros_like(A)
        for rows in self.blocks():
            here = slice(rows.start, rows.stop)
            edges = (A[here, here] != 0).to(A.dtype)
            root = edges.sum(dim=1).rsqrt()
            clusters[here, here] = root[:, None] * edges * root
        return clusters

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Other values at the same places of A_NN."""
        held, rows = super().memory(at, counts), self.rows(at)
        values = sum(counts.nonzeros(rows, rows, transposed=side) for side in self.sides())
        held[TensorName.A] += WORD[self.spec.precision] * values
        return held


class ClusterRows(PartRows):
    """The whole graph where it is asked for, this rank's cluster alone in a training step."""

    def __init__(self, ctx: Context, strategy: Cluster) -> None:
        super().__init__(ctx, strategy)
        root_N = self.part.A_NN.rowptr.diff().to(ctx.dtype).rsqrt()
        self.C_NN = ctx.hold_matrix(_weighted(self.part.A_NN, root_N))
        self.C_T_NN = (
            ctx.hold_matrix(_weighted(self.part.A_T_NN, root_N)) if ctx.facts.directed else self.C_NN
        )

    def aggregate(self, layer: int, H_NF: Tensor) -> Tensor:
        if self.step is None:
            return super().aggregate(layer, H_NF)
        return self.kernels.aggregate(self.C_NN, self.C_T_NN, H_NF, TensorName.T)


def _weighted(A: Csr, root_N: Tensor) -> Csr:
    """The entry (i, j) becomes root[i] root[j]."""
    return A._replace(val=take(root_N, row_of(A)) * take(root_N, A.col))
