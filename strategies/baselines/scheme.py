"""Neighbour sampling in data parallel, features in block rows: what the systems of this family have in common.

Every rank trains a copy of the model on mini-batches of its own; gradients are averaged over all of a step. A vertex'
neighbours are drawn by whoever has its row of the graph, features come from whoever has them. Systems differ in who has
the graph, and in what a rank keeps of the features of others.

Legend: N vertices of this rank's part, over the axis p; K of a mini-batch's input.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.parallel.asking import inside
from harness.parallel.fetching import FetchingStrategy
from harness.parallel.fetching_operators import FetchingOperators
from harness.parallel.neighbourhood import FanoutParams, Neighbourhood, fanout_of
from harness.parallel.owned import OwnedRows
from harness.strategy import Context, Coordinates, MiniBatch, Promise, Words
from harness.validation import Frozen

P = AxisName.P
FORWARD = Direction.FORWARD


class SamplingParams(FanoutParams):
    """What all of them have."""

    targets: Literal["own", "any"] = "own"
    """A rank trains on the training vertices of its part, or on any, as `graphsage` does: the same mini-batches."""


class SamplingScheme(FetchingStrategy):
    """A part of the vertices a rank, for any number of ranks up to the number of vertices."""

    promise = Promise.ESTIMATOR
    axes: ClassVar[tuple[AxisName, ...]] = (P,)
    Params: ClassVar[type[Frozen]] = SamplingParams
    params: SamplingParams

    @property
    def replicated(self) -> bool:
        """Whether the graph is on every rank, or a part's rows on the rank of the part."""
        return False

    @property
    def groups(self) -> int:
        return self.grid[P]

    @property
    def neighbourhood(self) -> Neighbourhood:
        spec, params = self.spec, self.params
        own = params.targets == "own"
        return Neighbourhood(spec.seed, spec.training.batch, params.fanouts, self.groups, own)

    @property
    def steps(self) -> int:
        return self.neighbourhood.steps(self.facts.trained_on(self.spec.protocol))

    @property
    def fanouts(self) -> list[int]:
        """Hop by hop."""
        return [fanout_of(self.params.fanouts, hop) for hop in range(self.spec.model.layers)]

    def chances(self, group: int, targets: Tensor) -> Tensor:
        """Of every vertex to be in a mini-batch's output; float64."""
        p, neighbourhood = torch.zeros(self.facts.vertices, dtype=torch.float64), self.neighbourhood
        p[neighbourhood.targets_of(group, targets)] = neighbourhood.chance(len(targets))
        return p

    def held(self, at: Coordinates) -> range:
        return range(self.facts.vertices) if self.replicated else self.rows(at)

    def peers(self, at: Coordinates) -> list[int]:
        return list(range(self.groups))

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        return self.neighbourhood.mini_batch(step, group, A, self.spec.model.layers, targets)

    def operators(self, ctx: Context) -> "Sampling":
        return Sampling(ctx, self)

    def say_sampling(self, words: Words, at: Coordinates, A: Csr, targets: Tensor, epoch: int) -> None:
        """Layer by layer which rows are asked for; how long those are that come, their columns and values."""
        if self.replicated:
            return
        own, here = self.rows(at), at[P]
        for step in range(epoch * self.steps, (epoch + 1) * self.steps):
            batches = [self.mini_batch(step, group, A, targets) for group in range(self.groups)]
            for layer in range(self.spec.model.layers):
                asked = [inside(batch.vertices[layer + 1], own) for batch in batches]
                absent = ~asked[here]
                entries = int(batches[here].A[layer].rowptr.diff()[absent].sum())
                others = sum(int(mine.sum()) for group, mine in enumerate(asked) if group != here)
                lengths = self.groups + int(absent.sum())
                words.put(FORWARD, -1, Op.ALL_TO_ALL, P, TensorName.COUNT, lengths)
                words.put(FORWARD, -1, Op.ALL_TO_ALL, P, TensorName.INDEX, others + entries)
                words.put(FORWARD, -1, Op.ALL_TO_ALL, P, TensorName.A, entries)


class Sampling(FetchingOperators):
    """One rank's operators."""

    strategy: SamplingScheme

    def __init__(self, ctx: Context, strategy: SamplingScheme) -> None:
        super().__init__(ctx, strategy)
        self.graph = ctx.source(self.held, range(ctx.facts.vertices))
        if not strategy.replicated:
            self.owned = OwnedRows(
                self.graph,
                self.blocks,
                self.holders,
                strategy.neighbourhood,
                self.model.layers,
                self.elsewhere,
            )

    def sample(self, step: int) -> MiniBatch:
        if self.strategy.replicated:
            return self.strategy.mini_batch(step, self.group, self.graph, self.targets)
        others = self.drawn(step) if self.elsewhere is not None else []
        return self.owned.mini_batch(step, self.targets, others)
