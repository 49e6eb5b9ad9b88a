"""ScaleGNN: mini-batches on a grid of D x X x Y x Z ranks, drawn without communication (sections III and IV).

Each of D groups trains on its own samples, split over X x Y x Z ranks as Plexus splits the whole graph; the roles R, S
and T rotate from layer to layer (`harness.strategy.parallel.roles`). A rank holds its blocks of the whole graph,
samples from them, and evaluates on them. All groups train the same weights, and their gradients are summed.

Legend: N sampled vertices over R, K over S, F features in over T, H features out over S, C classes.
The paper's A_S, X_h, H_agg, X_conv are our A, H, T, Z: T = A H, Z = T W. G = dL/dZ, dT = G W^T, dW = T^T G,
dH = A^T dT.

docs/strategies/scalegnn.md lists the choices that the paper leaves open.
"""

from typing import ClassVar

import numpy as np
from torch import Tensor

from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.strategies.scalegnn.fourd import FourD, Samples, ScaleGNNParams
from harness.strategy import (
    Context,
    Coordinates,
    Counts,
    DenseBatch,
    MiniBatch,
    Piece,
    Promise,
    ReferenceSampler,
    Strategy,
    Words,
    csr_bytes,
)
from harness.strategy.models import Weight
from harness.strategy.parallel.roles import LayerShare
from harness.strategy.parallel.rotating_layers import add_words
from harness.strategy.parallel.rotating_layout import CUBE, RotatingLayout, X, Y, Z
from harness.strategy.parallel.row_strategy import dense_bytes
from harness.strategy.parallel.uniform import UniformSampler, find_places

D = AxisName.D
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class UniformReference(ReferenceSampler):
    """Vertices drawn uniformly without replacement, and all edges between them, divided by their probability."""

    def draw_epoch(self) -> list[list[DenseBatch]]:
        steps = -(-self.n // (self.batch * self.groups))
        return [[self.draw_batch() for _ in range(self.groups)] for _ in range(steps)]

    def draw_batch(self) -> DenseBatch:
        """Keep the diagonal; divide other entries by the probability of a vertex, given another (equation 23)."""
        S, is_loop = self.rng.choice(self.n, self.batch, replace=False), np.eye(self.batch, dtype=bool)
        scale = (self.n - 1) / max(self.batch - 1, 1)
        return self.make_subgraph(S, self.A[np.ix_(S, S)] * np.where(is_loop, 1, scale))


class ScaleGNN(Strategy):
    """Uniform vertex sampling and three-dimensional products, on any grid."""

    name = "scalegnn"
    paper = "ScaleGNN (2026)"
    promise = Promise.ESTIMATOR
    mini_batches = True
    has_model_parts = True
    can_recompute = True
    combine_first_refusal = (
        "its section IV-C aggregates and then combines, and the axes rotate to the next layer's layout only in "
        "this order"
    )
    models = ("gcn", "sage")
    axes: ClassVar[tuple[AxisName, ...]] = (D, X, Y, Z)
    slowest_first = (D, *CUBE)
    Params = ScaleGNNParams
    params: ScaleGNNParams
    reference_sampler = UniformReference

    def refuse(self) -> str | None:
        if self.spec.training.features:
            return "its features are fixed: leave training.features at false"
        if self.spec.dataset.permutation == "double":
            return (
                "a sample has one order of the vertices, and a double permutation has two: use single or none"
            )
        return self.too_many_ranks()

    @property
    def groups(self) -> int:
        return self.grid[D]

    @property
    def steps(self) -> int:
        """The number of steps that draw about as many vertices as the graph has."""
        return -(-self.facts.vertices // (self.sampler.size * self.groups))

    @property
    def sampler(self) -> UniformSampler:
        return UniformSampler(self.spec.seed, self.facts.vertices, self.spec.training.batch)

    @property
    def layout(self) -> RotatingLayout:
        return RotatingLayout(self.grid, self.facts, self.shapes, projection=self.spec.model.projection)

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        return self.sampler.mini_batch(step, group, A, self.spec.model.layers)

    def weight_piece(self, weight: Weight, at: Coordinates) -> Piece:
        return self.layout.weight(weight, at)

    def input_piece(self, at: Coordinates) -> Piece:
        return self.layout.input(at)

    def output_piece(self, at: Coordinates) -> Piece:
        return self.layout.output(at)

    def operators(self, ctx: Context) -> FourD:
        samples = Samples(ctx, self, self.layout, self.sampler, self.params)
        return FourD(samples, samples.whole)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Return the words of an epoch's steps. Sampling sends nothing."""
        words = Words(self.grid, self.recomputed_layers)
        for step in range(epoch * self.steps, (epoch + 1) * self.steps):
            S = self.sampler.sample(step, at[D])
            sampled = {axis: len(find_places(S, self.layout.row_cuts()[axis][at[axis]])) for axis in CUBE}
            self._add_step(words, at, sampled)
        return words

    def _add_step(self, words: Words, at: Coordinates, sampled: dict[AxisName, int]) -> None:
        """Add the words of a step, given the number of sampled vertices in this rank's block of each axis."""
        for layer, share in enumerate(self.layout.shares(at)):
            self._add_layer(words, layer, share, sampled)
        add_words(words, self.layout, self.weights, at, sampled, residual=self.spec.model.residual)
        down, across = self.layout.output_axes
        words.add(FORWARD, -1, Op.ALL_REDUCE, (D, down), TensorName.COUNT, 1)
        if self.facts.task == "single-label":
            words.add(FORWARD, -1, Op.ALL_REDUCE, across, TensorName.LOSS, 2 * sampled[down])
        words.add(FORWARD, -1, Op.ALL_REDUCE, (D, down, across), TensorName.LOSS, 1)
        for weight in self.weights:
            rows, cols = self.weight_piece(weight, at)
            words.add(BACKWARD, -1, Op.ALL_REDUCE, D, TensorName.DW, len(rows) * len(cols))

    def _add_layer(self, words: Words, layer: int, share: LayerShare, sampled: dict[AxisName, int]) -> None:
        R, S, T = share.roles
        N, K, F, H = sampled[R], sampled[S], len(share.F), len(share.H)
        words.add(FORWARD, layer, Op.ALL_REDUCE, S, TensorName.T, N * F)
        words.add(FORWARD, layer, Op.ALL_REDUCE, T, TensorName.Z, N * H)
        words.add(BACKWARD, layer, Op.ALL_REDUCE, R, TensorName.DW, F * H)
        if layer > 0 or self.spec.model.projection:
            words.add(BACKWARD, layer, Op.ALL_REDUCE, S, TensorName.DT, N * F)
            words.add(BACKWARD, layer, Op.ALL_REDUCE, R, TensorName.DH, K * F)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the blocks of A of up to three layers, features, labels and weights."""
        blocks, precision = {(share.N, share.K) for share in self.layout.shares(at)}, self.spec.precision
        return {
            TensorName.A: sum(csr_bytes(len(N), counts.nonzeros(N, K), precision) for N, K in blocks),
            **dense_bytes(self, at),
        }
