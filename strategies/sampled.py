"""Data-parallel training on sampled parts of the graph: GraphSAGE's neighbours and GraphSAINT's nodes.

Every rank has the whole graph, draws mini-batches of its own and adds up gradients with the others; on one rank it is
serial mini-batch training. They are what uniform vertex sampling is held against, on the same model.

Legend: N vertices of a layer's output, K of its input, which begin with those; F features in, H features out.
"""

from abc import abstractmethod
from typing import ClassVar, Protocol, Self

from pydantic import Field
from torch import Tensor

from harness.kernels import Csr
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.parallel.importance import NodeSampler, column_shares
from harness.parallel.minibatches import BatchOperators, BatchStrategy
from harness.parallel.neighbourhood import Fanouts, Neighbourhood
from harness.strategy import (
    LONG,
    Context,
    Coordinates,
    Counts,
    MiniBatch,
    Piece,
    Promise,
)
from harness.validation import Frozen

D = AxisName.D


class Sampler(Protocol):
    """Draws mini-batches of one graph."""

    def held(self) -> list[Tensor]:
        """What it keeps of the graph, all of eight bytes."""

    def mini_batch(self, step: int, group: int, A: Csr, layers: int, targets: Tensor) -> MiniBatch:
        """That of a step and group (`harness.strategy.Strategy.mini_batch`)."""


class OnParts(BatchOperators):
    """One rank's operators."""

    def __init__(self, ctx: Context, strategy: "DataParallel") -> None:
        super().__init__(ctx, strategy, over=(), everyone=ctx.grid[D])
        self.A = ctx.adjacency(self.rows, self.rows)
        self.graph, self.targets = ctx.source(self.rows, self.rows), ctx.targets()
        self.sampler = strategy.sampler(self.graph)
        for tensor in self.sampler.held():
            ctx.hold(TensorName.CHANCE, tensor)

    def of_step(self, step: int) -> Self:
        with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.A):
            layers = self.model.layers
            batch = self.sampler.mini_batch(step, self.group, self.graph, layers, self.targets)
            X_KF = self.X.index_select(0, batch.vertices[0].to(self.device))
            return self.on(step, batch, X_KF, self.answers.on(batch.vertices[-1].to(self.device)))

    def aggregate_all(self, H_NF: Tensor) -> Tensor:
        return self.kernels.spmm(self.A, H_NF, TensorName.T)


class DataParallel(BatchStrategy):
    """A replica of everything on every rank of one axis."""

    promise = Promise.ESTIMATOR
    axes: ClassVar[tuple[AxisName, ...]] = (D,)
    partitioned_over = None

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

    def multiplied(self, at: Coordinates) -> list[Piece]:
        everyone = self.rows(at)
        return [Piece(everyone, everyone)]


class SageParams(Frozen):
    fanout: int = Field(10, ge=1, le=1000, examples=[10, 2])
    """Neighbours that are drawn of a vertex in every layer."""


class NeighbourSampling(DataParallel):
    """A mini-batch is of so many training vertices, and of neighbours of theirs."""

    models = ("gcn", "sage")

    @property
    @abstractmethod
    def fanouts(self) -> Fanouts:
        """Neighbours of a vertex."""

    @property
    def neighbourhood(self) -> Neighbourhood:
        return Neighbourhood(self.spec.seed, self.spec.training.batch, self.fanouts, self.groups)

    @property
    def steps(self) -> int:
        return self.neighbourhood.steps(self.facts.trained_on(self.spec.protocol))


class GraphSage(NeighbourSampling):
    """Neighbours drawn by the harness."""

    name = "graphsage"
    Params = SageParams
    params: SageParams

    @property
    def fanouts(self) -> Fanouts:
        return (self.params.fanout,)

    def sampler(self, A: Csr) -> Neighbourhood:
        return self.neighbourhood


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
