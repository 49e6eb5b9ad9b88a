"""BNS-GCN-style boundary sampling (Wan et al., MLSys'22): a part trains with a sample of the rows at its boundary.

In every epoch, each part draws a fraction p of the rows that it needs of each other part, and multiplies only by these,
scaled by 1/p. With p = 1 this is an exact halo exchange; with p = 0, parts ignore each other. The first layer does not
sample: A X is computed once, before training, with the whole boundary (`precompute`). Differences from the authors'
code:

- the number of rows is rounded stochastically; the authors round down and never sample a small boundary;
- the scale is 1/p; the authors scale by the fraction that was drawn;
- gradients are summed by plain all-reduces.

Legend as in `partition_parallel`.
"""

from itertools import permutations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harness.base.device import upload
from harness.kernels import Csr, transpose
from harness.kernels.csr import take
from harness.kernels.parts import build_scatter_matrix, sample_rows
from harness.kernels.random import Purpose, random_bits, uniform
from harness.ledger import TensorName
from harness.strategies.halo.partition_parallel import (
    Exchange,
    LayerPart,
    LocalGraph,
    P,
    PartitionParallel,
    PartOperators,
)
from harness.strategy import (
    Context,
    Coordinates,
    Counts,
    DenseBatch,
    DenseGraph,
    MessageParams,
    Promise,
    ReferenceSampler,
    csr_bytes,
)
from harness.strategy.parallel.halo import Boundary, Halo, offset_positions

# A sample of the boundary: the rows that one part sends to another in a step.
#
# Both ranks draw the sample, so no list is sent. The number of rows is p b, rounded up or down at random, so that its
# mean is p b even where p b is below one. The rows are drawn without replacement. A row is drawn with probability p for
# any b, so 1/p times the drawn rows is unbiased.

Pair = tuple[int, int]
"""The receiving part and the owner."""


def sample_size(seed: int, step: int, pair: Pair, boundary: int, rate: float) -> int:
    """Return the number of boundary rows that are sent."""
    whole = int(rate * boundary)
    last = torch.tensor([boundary])
    up = float(uniform((seed, step, *pair), Purpose.SAMPLE, last)) < rate * boundary - whole
    return min(whole + up, boundary)


def draw_sample(seed: int, step: int, pair: Pair, boundary: int, rate: float) -> Tensor:
    """Draw the numbers of the sampled rows, in ascending order."""
    size = sample_size(seed, step, pair, boundary, rate)
    drawn = random_bits((seed, step, *pair), Purpose.SAMPLE, range(boundary))
    return torch.argsort(drawn, stable=True)[:size].sort().values


class BoundaryReference(ReferenceSampler):
    """A fraction p of the rows that a part needs of another, rounded up or down at random, and scaled by 1/p."""

    def draw_epoch(self) -> list[list[DenseBatch]]:
        A, p, everyone = self.A.copy(), self.params.p, np.ones(self.n, dtype=bool)
        parts = [slice(part.start, part.stop) for part in self.strategy.blocks()]
        for rows, cols in permutations(parts, 2):
            boundary = np.flatnonzero(self.entries[rows, cols].any(axis=0))
            size = int(p * len(boundary) + self.rng.random())
            factor = np.zeros(cols.stop - cols.start)
            factor[self.rng.choice(boundary, size, replace=False)] = 1 / (p or 1)
            A[rows, cols] *= factor
        samples = [A if layer in self.strategy.exchanging_layers else self.A for layer in range(self.layers)]
        return [[DenseBatch([everyone] * (self.layers + 1), samples)]]


class Bns(PartitionParallel):
    """Boundary node sampling, for any number of parts up to the number of vertices."""

    name = "bns-gcn"
    paper = "BNS-GCN (MLSys 2022)"
    promise = Promise.EXACT

    class Params(MessageParams):
        """The sampling rate, precomputation and overlap."""

        p: float = Field(1.0, ge=0, le=1, examples=[0.5, 0.1, 0.0])
        """The fraction of the boundary that is sent in an epoch."""
        precompute: bool = True
        """A X is computed once, before training, if features never change: the authors' --use-pp."""
        overlap: bool = False
        """A rank multiplies by its own rows while the rows of others are in flight."""

    params: Params
    reference_sampler = BoundaryReference

    @property
    def precompute(self) -> bool:
        return self.params.precompute

    @property
    def is_sampling(self) -> bool:
        """True if any layer multiplies by a sample."""
        return self.params.p < 1 and len(self.exchanging_layers) > 0

    def is_owner_computes(self) -> bool:
        """Return False when sampling, which leaves out entries of A."""
        return not self.is_sampling

    @property
    def effective_promise(self) -> Promise:
        """An estimator when sampling, except for attention and p = 0, which are biased."""
        if not self.is_sampling:
            return Promise.EXACT
        estimates = self.params.p > 0 and self.spec.model.kind != "gat"
        return Promise.ESTIMATOR if estimates else Promise.APPROXIMATE

    def operators(self, ctx: Context) -> PartOperators:
        graph = LocalGraph(ctx, self.blocks())
        sample = BoundarySampler(self, graph).draw_part if self.is_sampling else None
        return PartOperators(
            ctx, self, graph.build_layers(), Exchange(overlap=self.params.overlap), sample=sample
        )

    def exchanged_rows(self, boundary: Boundary, epoch: int) -> list[tuple[int, int]]:
        own = boundary.own
        arriving = (self.sample_size(epoch, own, owner, b) for owner, b in boundary.incoming_rows().items())
        leaving = (self.sample_size(epoch, other, own, b) for other, b in boundary.outgoing_rows().items())
        return [(sum(arriving), sum(leaving))] * len(self.shapes)

    def sample_size(self, step: int, receiver: int, owner: int, boundary: int) -> int:
        return sample_size(self.spec.seed, step, (receiver, owner), boundary, self.params.p)

    def draw_rows(self, step: int, receiver: int, owner: int, boundary: int) -> Tensor:
        return draw_sample(self.spec.seed, step, (receiver, owner), boundary, self.params.p)

    def effective_adjacency(self, graph: DenseGraph, layer: int, step: int | None) -> Tensor:
        """Return A with the columns outside the diagonal blocks scaled by 1/p if drawn, and by 0 if not.

        The first layer multiplies by A if A X is computed once.
        """
        if step is None or layer not in self.exchanging_layers:
            return graph.A
        estimate = graph.A.clone()
        for (i, rows), (j, cols) in permutations(enumerate(self.blocks()), 2):
            block = slice(rows.start, rows.stop), slice(cols.start, cols.stop)
            boundary = graph.entries[block].any(dim=0).nonzero()[:, 0]
            scale = torch.zeros(len(cols), dtype=estimate.dtype)
            scale[boundary[self.draw_rows(step, i, j, len(boundary))]] = 1 / (self.params.p or 1)
            estimate[block] *= scale
        return estimate

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes held, with the host's matrices of the samples of attention."""
        held = super().memory(at, counts)
        if self.is_sampling and self.spec.model.kind == "gat" and self.spec.machine.device == "cpu":
            rows, boundary, precision = self.rows(at), self.boundary(at, counts), self.spec.precision
            arriving = sum(boundary.incoming_rows().values())
            held[TensorName.A] += csr_bytes(len(rows), counts.nonzeros(rows, rows), precision)
            held[TensorName.A] += boundary.compact_bytes(precision)
            held[TensorName.A] += csr_bytes(arriving, boundary.nonzeros(), precision)
        return held


class BoundarySampler:
    """Draws one rank's part of the graph for each training step."""

    def __init__(self, strategy: Bns, graph: LocalGraph) -> None:
        self.strategy, self.graph = strategy, graph
        if strategy.spec.model.kind == "gat":  # the others hold the same matrices for evaluation
            for part in (*graph.A_NN[:3], *graph.A_NK[:3], *graph.A_KN[:3]):
                graph.ctx.memory.hold_on_host(TensorName.A, part)

    def draw_part(self, step: int) -> LayerPart:
        """Return the part with only the drawn rows of the boundary. Its matrices are not held."""
        graph, ctx = self.graph, self.graph.ctx
        A_KN, halo = self.draw_halo(step)
        S_NM = build_scatter_matrix(halo.send_rows, len(graph.rows), ctx.dtype)
        return LayerPart(graph.build_matrices(transpose(A_KN), A_KN, ctx.memory.to_device), halo, S_NM)

    def draw_halo(self, step: int) -> tuple[Csr, Halo]:
        """Return A_KN of the sample, on the host and scaled by 1/p, and the halo."""
        halo, own = self.graph.halo, self.graph.ctx.at[P]
        sent = [self.strategy.draw_rows(step, other, own, b) for other, b in enumerate(halo.send)]
        received = [self.strategy.draw_rows(step, own, owner, b) for owner, b in enumerate(halo.receive)]
        scale = 1 / (self.strategy.params.p or 1)
        A_KN = sample_rows(self.graph.A_KN, offset_positions(received, halo.receive), scale)
        leaving = take(halo.send_rows, upload(offset_positions(sent, halo.send), halo.send_rows.device))
        return A_KN, Halo(leaving, [len(each) for each in sent], [len(each) for each in received])
