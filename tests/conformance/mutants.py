"""Strategies with one mistake each, of the kinds that authors make. The kit must see every one.

Half of them leave the words right, which is why words never replace equality.
"""

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import dropout

from harness.comm.call import Call, CompletedCall, Pending
from harness.kernels import Csr
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.strategies.cagnet.oned import OneD, WholeRows
from harness.strategies.cagnet.twod import Summa, TwoD
from harness.strategies.composed import Compose
from harness.strategies.distgnn import CopiedRows, DistGnn
from harness.strategies.halo.adaqp import AdaQP, QuantizedOperators
from harness.strategies.halo.bns import Bns, BoundarySampler
from harness.strategies.halo.neutronstar import Choice, NeutronStar
from harness.strategies.halo.partition_parallel import (
    Exchange,
    LayerPart,
    LocalGraph,
    PartMatrices,
    PartOperators,
)
from harness.strategies.halo.pipegcn import Pipe, StaleExchange
from harness.strategies.sampling.composition import Composition
from harness.strategies.sampling.features import FetchedRows, FetchingStore, PartitionedFeatures
from harness.strategies.sampling.graph_placement import Rank
from harness.strategies.sampling.systems import DistDgl
from harness.strategies.sancus import Sancus
from harness.strategies.scalegnn.fourd import FourD, Samples
from harness.strategies.scalegnn.scalegnn import ScaleGNN
from harness.strategy import IGNORED, LONG, Context, Coordinates, Counts, Once, Words, compute_every_time
from harness.strategy.models import Part, SplitAccuracy
from harness.strategy.parallel.label_loss import LabelLoss


class LostSumRows(WholeRows):
    """Every rank keeps its own share of the weight gradient."""

    def __init__(self, ctx: Context, strategy: OneD) -> None:
        super().__init__(ctx, strategy)
        axis, real = self.over, self.over.all_reduce

        def all_reduce(x: Tensor, *, tensor: TensorName, **more: object) -> Tensor:
            return x if tensor is TensorName.DW else real(x, tensor=tensor, **more)  # type: ignore[arg-type]

        self.over = _Changed(axis, all_reduce=all_reduce)  # type: ignore[assignment]


class _Changed:
    """An axis with some calls replaced."""

    def __init__(self, axis: object, **calls: object) -> None:
        self._axis = axis
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> object:
        return getattr(self._axis, name)


class WrongTransposeRows(WholeRows):
    """A where A^T belongs: right on every undirected graph."""

    def __init__(self, ctx: Context, strategy: OneD) -> None:
        super().__init__(ctx, strategy)
        self.A_T_NK = self.A_NK


class LocalMeanRows(WholeRows):
    """The mean over this rank's training vertices instead of everybody's."""

    def __init__(self, ctx: Context, strategy: OneD) -> None:
        super().__init__(ctx, strategy)
        mine = max(int((self.label_loss.labels != IGNORED).sum()), 1)
        self.label_loss = replace(self.label_loss, denominator=mine)


class EveryLabelRows(WholeRows):
    """Trains on the test vertices too."""

    def __init__(self, ctx: Context, strategy: OneD) -> None:
        super().__init__(ctx, strategy)
        every = torch.stack(list(self.label_loss.splits.values())).amax(dim=0)
        self.label_loss = replace(self.label_loss, labels=every)


class DriftingRows(WholeRows):
    """Replicas of a weight that are not quite the same."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        return super().convolve(layer, H_NF, W_FH * (1 + 1e-6 * self.over.index))


class UnseededRows(WholeRows):
    """Drops entries of H at the whim of the clock."""

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        torch.manual_seed(time.perf_counter_ns())
        return dropout(super().activate(layer, Z_NH), 0.1)


class PeekingRows(WholeRows):
    """Branches on a value, and so has no size before it has data."""

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        H_NH = super().activate(layer, Z_NH)
        return H_NH if float(H_NH.detach().sum()) >= 0 else -H_NH


class EngineAskedRows(WholeRows):
    """Does something else where it believes itself unobserved."""

    def multiply(self, A_NK: Sequence[Csr], H_NF: Tensor, **names: TensorName) -> Tensor:
        T_NF = super().multiply(A_NK, H_NF, **names)
        return super().multiply(A_NK, H_NF, **names) if H_NF.is_meta else T_NF


class MiscountingRows(WholeRows):
    """Finds one more right answer than there is."""

    def evaluate(self, Z_NC: Tensor) -> dict[str, SplitAccuracy]:
        return {name: SplitAccuracy(right + 1, of) for name, (right, of) in super().evaluate(Z_NC).items()}


class Miscounting(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return MiscountingRows(ctx, self)


class LostSum(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return LostSumRows(ctx, self)


class WrongTranspose(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return WrongTransposeRows(ctx, self)


class LocalMean(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return LocalMeanRows(ctx, self)


class EveryLabel(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return EveryLabelRows(ctx, self)


class Drifting(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return DriftingRows(ctx, self)


class Unseeded(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return UnseededRows(ctx, self)


class Peeking(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return PeekingRows(ctx, self)


class EngineAsked(OneD):
    def operators(self, ctx: Context) -> WholeRows:
        return EngineAskedRows(ctx, self)


class WrongFormula(OneD):
    """Forgets that a backward pass broadcasts too, in one layer."""

    def words(self, at: Coordinates, counts: Counts) -> Words:
        words = super().words(at, counts)
        words.add(Direction.BACKWARD, 1, Op.BROADCAST, AxisName.P, TensorName.G, -1)
        return words


class HoldsTwice(OneD):
    """Keeps a second copy of the features that its formula does not know."""

    def operators(self, ctx: Context) -> WholeRows:
        ctx.blocks.features(range(1), range(ctx.facts.features))
        return WholeRows(ctx, self)


class KeepsApart(OneD):
    """Keeps a tensor on the device without a word to the memory of its context."""

    def operators(self, ctx: Context) -> WholeRows:
        rows = WholeRows(ctx, self)
        rows.apart = torch.zeros(3, device=ctx.device)  # type: ignore[attr-defined]
        return rows


KEPT: dict[str, np.ndarray] = {}


class KeepsInModule(OneD):
    """Keeps an array of NumPy in a global variable."""

    def operators(self, ctx: Context) -> WholeRows:
        KEPT["numbers"] = np.zeros(5)
        return WholeRows(ctx, self)


class KeepsBase(OneD):
    """Holds and counts one number, a view of nine."""

    def operators(self, ctx: Context) -> WholeRows:
        ctx.memory.hold(TensorName.INDEX, torch.zeros(9, dtype=torch.int64)[:1])
        return WholeRows(ctx, self)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        return {**super().memory(at, counts), TensorName.INDEX: LONG}


class AcceptsAnything(OneD):
    """Refuses nothing."""

    def refuse(self) -> str | None:
        return None


class RoundedDown(Bns):
    """A share of a small boundary is nothing, and what is drawn is scaled as if it were not."""

    name = "rounded-down"

    def sample_size(self, step: int, receiver: int, owner: int, boundary: int) -> int:
        return int(self.params.p * boundary)

    def draw_rows(self, step: int, receiver: int, owner: int, boundary: int) -> Tensor:
        return super().draw_rows(step, receiver, owner, boundary)[: int(self.params.p * boundary)]


class Unscaled(Bns):
    """What was drawn stands for itself alone."""

    name = "unscaled"
    models = ("gcn",)

    def operators(self, ctx: Context) -> PartOperators:
        graph = LocalGraph(ctx, self.blocks())
        return PartOperators(
            ctx, self, graph.build_layers(), Exchange(), sample=UnscaledSampler(self, graph).draw_part
        )


class UnscaledSampler(BoundarySampler):
    def draw_part(self, step: int) -> LayerPart:
        part = super().draw_part(step)
        A = part.matrices
        assert isinstance(A, PartMatrices)
        A_NK = A.A_NK._replace(val=A.A_NK.val * self.strategy.params.p)
        return part._replace(matrices=A._replace(A_NK=A_NK))


class OwnTransposeRows(CopiedRows):
    """Takes the piece of a symmetric A for symmetric."""

    def __init__(self, ctx: Context, strategy: DistGnn) -> None:
        super().__init__(ctx, strategy)
        if not ctx.facts.directed:
            self.A_T_VV = self.A_VV


class OwnTranspose(DistGnn):
    def operators(self, ctx: Context) -> CopiedRows:
        return OwnTransposeRows(ctx, self)


class DroppedGradients(AdaQP):
    """Gradients that cross a boundary are zeros."""

    def operators(self, ctx: Context) -> QuantizedOperators:
        return DroppedGradientRows(ctx, self, LocalGraph(ctx, self.blocks()))


class DroppedGradientRows(QuantizedOperators):
    def return_gradients(self, layer: int, dH_KF: Tensor) -> Pending[Tensor]:
        return super().return_gradients(layer, torch.zeros_like(dH_KF))


def with_exchange(strategy: Pipe, ctx: Context, kind: type[StaleExchange]) -> PartOperators:
    graph = LocalGraph(ctx, strategy.blocks())
    return PartOperators(ctx, strategy, graph.build_layers(), kind(ctx, strategy, graph.halo))


class WrongSign(Pipe):
    """Late gradients have the wrong sign."""

    def operators(self, ctx: Context) -> PartOperators:
        return with_exchange(self, ctx, WrongSignExchange)


class WrongSignExchange(StaleExchange):
    def issue(
        self, call: Call[Tensor], direction: Direction, layer: int, step: int | None
    ) -> Pending[Tensor]:
        arrived = super().issue(call, direction, layer, step)
        return arrived if direction is Direction.FORWARD else CompletedCall(-arrived.wait())


class SquaredAverage(Pipe):
    """What arrives has the weight 1 - m^2."""

    def operators(self, ctx: Context) -> PartOperators:
        return with_exchange(self, ctx, SquaredAverageExchange)


class SquaredAverageExchange(StaleExchange):
    def issue(
        self, call: Call[Tensor], direction: Direction, layer: int, step: int | None
    ) -> Pending[Tensor]:
        m = self.smoothing[direction]
        if last := self.in_flight.get((direction, layer)):
            self.in_flight[direction, layer] = CompletedCall((1 + m) * last.wait())
        return super().issue(call, direction, layer, step)


class WithoutRecurrence(Pipe):
    """Names no recurrence: its gradients can only be compared with differences."""

    recurrence = None


class OlderRows(Sancus):
    """Rows are an epoch older than the bound."""

    def is_broadcast(self, j: int, layer: int, epoch: int) -> bool:
        turn = (epoch - 1 - j) % (self.params.stale + 2) == 0
        return epoch == 0 or (turn and self.has_changing_input(layer))


class OwnTwiceRows(CopiedRows):
    """Copies add their own partial sums twice, once as a part of those of others."""

    def reduce_copies(self, layer: int, direction: Direction, x_VF: Tensor) -> Tensor:
        total = super().reduce_copies(layer, direction, x_VF)
        if self.delayed and self.step is not None and len(total) == len(x_VF):
            return torch.cat([total[: self.masters], total[self.masters :] + x_VF[self.masters :]])
        return total


class OwnTwice(DistGnn):
    def operators(self, ctx: Context) -> CopiedRows:
        return OwnTwiceRows(ctx, self)


class DoubledProjection(TwoD):
    """The gradient of the input of a projection is doubled on more than two columns."""

    def operators(self, ctx: Context) -> Summa:
        return DoublingSumma(ctx, self)


class DoublingSumma(Summa):
    def linear(self, part: Part, H_NF: Tensor, W: Tensor, layer: int = -1) -> Tensor:
        return super().linear(part, Doubled.apply(H_NF) if self.layout.cols > 2 else H_NF, W, layer)


class Doubled(Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * gradient


class KeptProducts(Compose):
    """A X is computed once although the features are trained."""

    @property
    def precomputes(self) -> bool:
        return self.params.precompute and not self.params.decoupled


class FetchedReplicas(NeutronStar):
    """Rows are fetched, in the run and in the formula, that by the paper's rule are computed here."""

    def choose_replicas(self, A: Csr, once: Once = compute_every_time) -> list[Choice]:
        super().choose_replicas(A, once)  # which also chooses the orders of products
        fetching = copy(self)
        fetching.params = self.params.model_copy(update={"replicas": 0.0})
        return NeutronStar.choose_replicas(fetching, A, once)


class MiscountingStore(FetchingStore):
    """Counts a row too many in each step."""

    def start_fetch(self, step: int, vertices: Tensor, *, later: bool) -> FetchedRows:
        self.ctx.measured.remote.rows += 1
        return super().start_fetch(step, vertices, later=later)


class MiscountingFeatures(PartitionedFeatures):
    def create_store(self, rank: Rank, X_NF: Tensor, labels: LabelLoss) -> FetchingStore:
        return MiscountingStore(rank, self.policy, X_NF, labels)


class MiscountedRows(DistDgl):
    def compose(self) -> Composition:
        return super().compose()._replace(features=MiscountingFeatures())


class OneSampleForAll(ScaleGNN):
    """Every group trains on the first one's samples."""

    def operators(self, ctx: Context) -> FourD:
        samples = _samples(self, ctx)
        samples.group = 0
        return FourD(samples, samples.whole)


class UnscaledSample(ScaleGNN):
    """Entries off the diagonal stay as they are."""

    def operators(self, ctx: Context) -> FourD:
        samples = _samples(self, ctx)
        samples.sampler = _Changed(samples.sampler, inclusion_probability=1.0)  # type: ignore[assignment, arg-type]
        return FourD(samples, samples.whole)


class UnsettledParts(FourD):
    """Groups keep their gradients to themselves."""

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Nothing."""


class LostGroups(ScaleGNN):
    def operators(self, ctx: Context) -> FourD:
        return _with(self, ctx, UnsettledParts)


class StuckParts(FourD):
    """Every step draws the sample of the first."""

    def for_step(self, step: int) -> Self:
        return super().for_step(0)


class FirstStepOnly(ScaleGNN):
    def operators(self, ctx: Context) -> FourD:
        return _with(self, ctx, StuckParts)


def _samples(strategy: ScaleGNN, ctx: Context) -> Samples:
    return Samples(ctx, strategy, strategy.layout, strategy.sampler, strategy.Params())


def _with(strategy: ScaleGNN, ctx: Context, kind: type[FourD]) -> FourD:
    samples = _samples(strategy, ctx)
    return kind(samples, samples.whole)
