"""Data-parallel training on sampled parts of the graph: GraphSAGE's neighbours and GraphSAINT's nodes.

Every rank has the whole graph, draws mini-batches of its own and adds up gradients with the others; on one rank it is
serial mini-batch training. They are what uniform vertex sampling is held against, on the same model.

Legend: N vertices of a layer's output, K of its input, which begin with those; F features in, H features out.
"""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

from pydantic import Field
from torch import Tensor

from harness.kernels import Csr, transpose
from harness.kernels.random import Index
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.models import Skip
from harness.parallel.gradients import Gradients
from harness.parallel.importance import NodeSampler, column_shares
from harness.parallel.layers import as_indices
from harness.parallel.neighbourhood import Neighbourhood
from harness.parallel.rows import RowOperators, RowStrategy
from harness.strategy import (
    LONG,
    Context,
    Coordinates,
    Counts,
    MiniBatch,
    Piece,
    Promise,
    Words,
)
from harness.validation import Frozen

D = AxisName.D


class Sampler(Protocol):
    """Draws mini-batches of one graph."""

    def held(self) -> list[Tensor]:
        """What it keeps of the graph, all of eight bytes."""

    def mini_batch(self, step: int, group: int, A: Csr, layers: int, targets: Tensor) -> MiniBatch:
        """That of a step and group (`harness.strategy.Strategy.mini_batch`)."""


class OnParts(RowOperators):
    """One rank's operators: on the whole graph to evaluate, on a sampled part of it in every training step."""

    def __init__(self, ctx: Context, strategy: "DataParallel") -> None:
        super().__init__(ctx, strategy, over=())
        self.everyone, self.group = ctx.grid[D], ctx.at[D]
        self.shares = self.everyone
        self.graph, self.targets = _on_the_host(ctx.source(self.rows, self.rows)), ctx.targets()
        self.sampler = strategy.sampler(self.graph)
        for tensor in self.sampler.held():
            ctx.hold(TensorName.CHANCE, tensor)
        self.A = [ctx.adjacency(self.rows, self.rows)] * self.model.layers
        self.A_T: list[Csr] = []
        self.outputs: list[Index] = [self.rows] * self.model.layers
        self.gradients = Gradients(self.everyone, overlap=False)

    def of_step(self, step: int) -> Self:
        with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.A):
            layers = self.model.layers
            batch = self.sampler.mini_batch(step, self.group, self.graph, layers, self.targets)
            return self._on(batch, step)

    def _on(self, batch: MiniBatch, step: int) -> Self:
        there = copy.copy(self)
        there.step, there.outputs = step, list(batch.vertices[1:])
        there.A = [self._placed(A) for A in batch.A]
        there.A_T = [self._placed(transpose(A)) for A in batch.A]
        there.X = self.X.index_select(0, batch.vertices[0].to(self.device))
        there.answers = self.answers.on(batch.vertices[-1].to(self.device))
        if batch.importance is not None:
            there.answers.weigh(batch.importance.to(device=self.device, dtype=self.X.dtype))
        return there

    def _placed(self, A: Csr) -> Csr:
        return Csr(A.rowptr.to(self.device), A.col.to(self.device), A.val.to(self.device), A.cols)

    def convolve(self, layer: int, H_KF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            A_NK = self.A[layer]
            A_T_KN = self.A_T[layer] if self.A_T else A_NK
            T_NF = self.kernels.aggregate(A_NK, A_T_KN, H_KF, TensorName.T)
            return self.kernels.gemm(T_NF, W_FH, TensorName.Z)

    def rows_of(self, layer: int) -> Tensor:
        return as_indices(self.outputs[layer], self.device).to(self.device)

    def keep(self, layer: int, H_KF: Tensor) -> Skip:
        return Skip(H_KF, H_KF[: self.A[layer].rows])

    def loss(self, Z_NC: Tensor) -> Tensor:
        """The sum over the mini-batches of all ranks, divided by the number of vertices that count in it."""
        with self.ledger.phase(Phase.LOSS):
            with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.COUNT):
                counted = self.answers.counted().to(Z_NC.dtype)
            self.answers.mean_over(self.everyone.all_reduce(counted, tensor=TensorName.COUNT))
            return self.shares.sum(self.answers.share(Z_NC), tensor=TensorName.LOSS)

    def settle(self, weights: Sequence[Tensor]) -> None:
        self.gradients.settle(weights)


def _on_the_host(A: Csr) -> Csr:
    """Samples are drawn there."""
    return Csr(A.rowptr.cpu(), A.col.cpu(), A.val.cpu(), A.cols) if A.val.is_cuda else A


class DataParallel(RowStrategy):
    """A replica of everything on every rank of one axis."""

    promise = Promise.ESTIMATOR
    mini_batches = True
    parts = True
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None

    def refuse(self) -> str | None:
        if self.spec.model.order == "combine_first":
            return "it multiplies (A H) W: use order aggregate_first"
        if self.spec.training.features:
            return "its features are fixed: leave training.features at false"
        return super().refuse()

    @property
    def groups(self) -> int:
        return self.grid[D]

    def rows(self, at: Coordinates) -> range:
        return range(self.facts.vertices)

    def operators(self, ctx: Context) -> OnParts:
        return OnParts(ctx, self)

    @abstractmethod
    def sampler(self, A: Csr) -> Sampler:
        """What draws mini-batches of this graph."""

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        return self.sampler(A).mini_batch(step, group, A, self.spec.model.layers, targets)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Of every step the gradients, and the two numbers of the loss."""
        words, steps = Words(self.grid), self.steps
        words.put(Direction.FORWARD, -1, Op.ALL_REDUCE, D, TensorName.COUNT, steps)
        words.put(Direction.FORWARD, -1, Op.ALL_REDUCE, D, TensorName.LOSS, steps)
        trained = sum(rows * cols for _, _, (rows, cols) in self.weights)
        words.put(Direction.BACKWARD, -1, Op.ALL_REDUCE, D, TensorName.DW, steps * trained)
        return words

    def sides(self) -> list[bool]:
        """A alone: transposes are those of samples."""
        return [False]

    def multiplied(self, at: Coordinates) -> list[Piece]:
        everyone = self.rows(at)
        return [Piece(everyone, everyone)]


class SageParams(Frozen):
    fanout: int = Field(10, ge=1, le=1000, examples=[10, 2])
    """Neighbours that are drawn of a vertex in every layer."""


class GraphSage(DataParallel):
    """Neighbour sampling; a mini-batch is of so many training vertices."""

    name = "graphsage"
    Params = SageParams
    params: SageParams

    @property
    def steps(self) -> int:
        return self._neighbourhood.steps(self.facts.trained_on(self.spec.protocol))

    @property
    def _neighbourhood(self) -> Neighbourhood:
        spec = self.spec
        return Neighbourhood(spec.seed, spec.training.batch, self.params.fanout, self.groups)

    def sampler(self, A: Csr) -> Neighbourhood:
        return self._neighbourhood


class GraphSaintNode(DataParallel):
    """Node sampling by importance; a mini-batch is of so many draws."""

    name = "graphsaint-node"

    @property
    def steps(self) -> int:
        """So many that there are about as many draws as vertices."""
        return -(-self.facts.vertices // (self.spec.training.batch * self.groups))

    def sampler(self, A: Csr) -> NodeSampler:
        return NodeSampler(self.spec.seed, self.spec.training.batch, column_shares(A))

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        return {**super().memory(at, counts), TensorName.CHANCE: 3 * LONG * self.facts.vertices}
