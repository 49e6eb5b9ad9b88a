"""Samplers: the vertices and the entries of A that a mini-batch has, as functions of seed, group and step.

A sampler draws from a graph and does not know where the graph is (`graph_at`). GraphSAGE's takes some training
vertices, some neighbours of each, and some neighbours of those; GraphSAINT's takes vertices by their importance, and
all edges between them. The samplers of many mini-batches at once are in `bulk`.

Legend: q the probability of one draw of a vertex, p that of being in a sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, Protocol, Self

import torch
from pydantic import Field
from torch import Tensor

from harness.kernels import Csr, from_coo, row_of
from harness.kernels.induced import induced_pair, mark, places
from harness.kernels.parts import filled_columns
from harness.kernels.random import Purpose, Seed, key_of, shuffled, uniform
from harness.kernels.shuffle import shuffle
from harness.ledger import TensorName
from harness.ranges import balanced
from harness.strategy import LONG, MiniBatch
from harness.validation import Frozen

MOST = 1 << 12
"""Neighbours that can be drawn of a row: its part of the counters."""

Fanouts = tuple[Annotated[int, Field(ge=1, lt=MOST)], ...]


class FanoutParams(Frozen):
    """The parameters of every sampler of neighbours."""

    fanouts: Fanouts = Field((15, 10, 5), min_length=1, examples=[[3, 2]])
    """Neighbours that are drawn of a vertex, in the batch's own neighbourhood first; the last for all beyond."""


class At(NamedTuple):
    """The place of a draw: whose mini-batch, of which step, in which layer."""

    group: int
    step: int
    layer: int


class DrawRows(Protocol):
    """Draws some of the entries of these rows of A, which are those of these vertices."""

    def __call__(self, A: Csr, rows: Tensor, vertices: Tensor, at: At) -> Csr: ...


class Graph(Protocol):
    """The graph as samplers see it."""

    A: Csr
    """The rows of A that are on this rank."""
    start: int
    """The vertex of the first of them."""

    def drawn(self, draw: DrawRows, vertices: Tensor, at: At) -> Csr:
        """The rows of some vertices, in their order, as drawn by the rank that has them."""


class Sampler(ABC):
    """A way to draw mini-batches; the same whichever rank draws, and whatever else is drawn beside."""

    @abstractmethod
    def steps(self, targets: int) -> int:
        """The training steps of an epoch, by the number of vertices that may be trained on."""

    @abstractmethod
    def mini_batch(self, step: int, group: int, graph: Graph, targets: Tensor) -> MiniBatch:
        """The mini-batch of a step and group (`harness.strategy.Strategy.mini_batch`)."""

    def on(self, graph: Graph) -> "Sampler":
        """The sampler with what it prepares for this graph; itself, where that is nothing."""
        return self

    def held(self) -> list[tuple[TensorName, Tensor]]:
        """The tensors that it keeps of the graph."""
        return []

    def memory(self, vertices: int) -> dict[TensorName, int]:
        """The bytes of these, by formula."""
        return {}

    def chances(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        """The chance of every vertex to be in the output of a group's mini-batch; float64."""
        raise NotImplementedError(f"{type(self).__name__} states no chances")

    def hops(self) -> Sequence[int] | None:
        """The fan-outs hop by hop; None, where a vertex draws no neighbours of its own."""
        return None

    @property
    def at_once(self) -> int:
        """The steps of an epoch whose mini-batches are drawn at once; 0, where each is drawn by itself."""
        return 0

    def expected(self, A: Csr, targets: Tensor) -> MiniBatch:
        """The shapes of a mini-batch of these targets, where several are drawn at once."""
        raise NotImplementedError(f"{type(self).__name__} draws one mini-batch at a time")


@dataclass(frozen=True)
class Neighbours(Sampler):
    """Some targets, some neighbours of each, some neighbours of those (GraphSAGE).

    An epoch goes through the targets once, in an order of its own. Each layer draws anew; a vertex's own loop is
    always there, as it is, and the other entries are rescaled, so that a layer's aggregation has the right mean.
    """

    seed: int
    size: int
    """The targets of a mini-batch."""
    fanouts: Sequence[int]
    layers: int
    groups: int
    own: bool = False
    """A group trains its stretch of the targets, ascending; or whatever comes in an order of all of them."""

    def steps(self, targets: int) -> int:
        return max(1, -(-targets // (self.size * self.groups)))

    def hops(self) -> list[int]:
        return hops_of(self.fanouts, self.layers)

    def mini_batch(self, step: int, group: int, graph: Graph, targets: Tensor) -> MiniBatch:
        """From the output back to the input, layer by layer."""
        vertices, matrices = [self.targets(step, group, targets)], list[Csr]()
        for layer in reversed(range(self.layers)):
            drawn = graph.drawn(self.draw, vertices[0], At(group, step, layer))
            reached, A = renumbered(drawn, vertices[0])
            vertices.insert(0, reached)
            matrices.insert(0, A)
        return MiniBatch(vertices, matrices)

    def draw(self, A: Csr, rows: Tensor, vertices: Tensor, at: At) -> Csr:
        fanout = self.hops()[self.layers - 1 - at.layer]
        return neighbours(A, rows, vertices, fanout, (self.seed, *at), loops=True)

    def targets(self, step: int, group: int, targets: Tensor) -> Tensor:
        """The targets of a step, shared out evenly among steps and groups."""
        steps = self.steps(len(targets))
        epoch, turn = divmod(step, steps)
        mine = self.targets_of(group, targets)
        shares, number = (steps, turn) if self.own else (steps * self.groups, turn * self.groups + group)
        share = balanced(len(mine), shares)[number]
        if targets.is_meta:
            return mine[share.start : share.stop]
        seed = (self.seed, epoch, group) if self.own else (self.seed, epoch)
        order = shuffled(seed, Purpose.SAMPLE, range(len(mine)))
        return mine[order[share.start : share.stop]]

    def targets_of(self, group: int, targets: Tensor) -> Tensor:
        """All targets that a group may train on."""
        if not self.own:
            return targets
        stretch = balanced(len(targets), self.groups)[group]
        return targets[stretch.start : stretch.stop]

    def chances(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        p = torch.zeros(vertices, dtype=torch.float64)
        p[self.targets_of(group, targets)] = self.chance(len(targets))
        return p

    def chance(self, targets: int) -> float:
        """The chance of a target to be in a mini-batch of a group that may train on it."""
        return 1 / (self.steps(targets) * (1 if self.own else self.groups))


def hops_of(fanouts: Sequence[int], layers: int) -> list[int]:
    """The fan-outs hop by hop; the last holds for all beyond."""
    return [fanouts[min(hop, len(fanouts) - 1)] for hop in range(layers)]


def renumbered(A: Csr, rows: Tensor) -> tuple[Tensor, Csr]:
    """The vertices in whose columns A has entries, those of its rows first; and A with its columns by their places."""
    filled = filled_columns(A)
    if A.val.is_meta:
        reached = filled.new_empty(min(len(rows) + len(filled), A.cols))
        return reached, A._replace(cols=len(reached))
    reached = torch.cat([rows, filled[~torch.isin(filled, rows)]])
    ascending, order = reached.sort()
    col = order[torch.searchsorted(ascending, A.col.long())]
    return reached, from_coo(row_of(A), col, A.val, (A.rows, len(reached)))


def neighbours(
    A: Csr, rows: Tensor, vertices: Tensor, fanout: int, seed: Seed, *, loops: bool = False
) -> Csr:
    """So many neighbours of each vertex, without replacement, every set of them as likely as any other.

    Some of the entries of A[rows], rescaled so that a product with it has the mean of one with A[rows]; `vertices` are
    the numbers of the rows' vertices. With `loops`, an entry in the column of its own row's vertex is always there, as
    it is, and the draw is among the others. Rows of no more than `fanout` entries stay whole. What is drawn of a row is
    a function of the seed, of the number of its vertex and of how many entries the row has: whoever has the row draws
    the same, whichever other rows stand beside it. Floyd's algorithm, so the work of a row is that of what is drawn and
    not of its length. On a CPU only.
    Verifier (tests/sampling/test_neighbours.py): the definition in Python, and the frequency of every set on tiny rows.
    """
    assert 0 < fanout < MOST, fanout
    if A.val.is_meta:
        return _of_equal_rows(A, len(rows), fanout + loops)
    import numpy as np

    from strategies.sampling.compiled import draw_neighbours

    longest = A.rowptr.index_select(0, rows + 1) - A.rowptr.index_select(0, rows)
    most = int(longest.clamp(max=fanout + loops).sum())
    drawn = Csr(
        torch.zeros(len(rows) + 1, dtype=torch.int64), A.col.new_empty(most), A.val.new_empty(most), A.cols
    )
    first, second = (np.uint64(word) for word in key_of(seed, Purpose.SAMPLE))
    kept = draw_neighbours(
        (A.rowptr.numpy(), A.col.numpy(), A.val.numpy()),
        (rows.numpy(), vertices.numpy()),
        (fanout, loops, first, second),
        (drawn.rowptr.numpy(), drawn.col.numpy(), drawn.val.numpy()),
    )
    return drawn._replace(col=drawn.col[:kept], val=drawn.val[:kept])


def _of_equal_rows(A: Csr, rows: int, most: int) -> Csr:
    """Shapes alone, as if all rows were of equal length."""
    nnz = rows * min(most, -(-A.nnz // max(A.rows, 1)))
    return Csr(A.rowptr.new_empty(rows + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)


class Shares(NamedTuple):
    """The chances of GraphSAINT's vertices."""

    q: Tensor
    upto: Tensor
    """The running sum of q."""
    p: Tensor
    """p = 1 - (1 - q)^B."""


@dataclass(frozen=True)
class NodesByImportance(Sampler):
    """GraphSAINT's node sampler: vertices that many listen to are drawn more often, and count for less when they are.

    A vertex is drawn with a probability in proportion to the squares of its column of A, so many times, with
    replacement. The authors count in many samples beforehand how often a vertex, and how often an edge, is in one; it
    has a closed form. An epoch has about as many draws as there are vertices.
    """

    seed: int
    size: int
    layers: int
    groups: int
    vertices: int
    shares: Shares | None = None

    def steps(self, targets: int) -> int:
        return -(-self.vertices // (self.size * self.groups))

    def on(self, graph: Graph) -> Self:
        q = column_shares(graph.A)
        return replace(self, shares=Shares(q, q.cumsum(0), self._some_of(q)))

    def held(self) -> list[tuple[TensorName, Tensor]]:
        return [(TensorName.CHANCE, each) for each in self.shares or ()]

    def memory(self, vertices: int) -> dict[TensorName, int]:
        return {TensorName.CHANCE: 3 * LONG * vertices}

    def draw(self, step: int, group: int) -> Tensor:
        """The sample, ascending, each vertex once."""
        q, upto, _ = self._known
        drawn = uniform((self.seed, group, step), Purpose.SAMPLE, range(self.size)) * upto[-1]
        S: Tensor = torch.searchsorted(upto, drawn, right=True).clamp(max=len(q) - 1).unique()
        return S

    def mini_batch(self, step: int, group: int, graph: Graph, targets: Tensor) -> MiniBatch:
        """The subgraph on a sample; an entry is divided by the chance of its column once its row is there."""
        A, p, S = graph.A, self._known.p, self.draw(step, group)
        A_S = induced_on(A, S)
        if not A.val.is_meta:
            row, col = row_of(A_S), A_S.col.long()
            chance = torch.where(row == col, 1.0, self.both(S[row], S[col]) / p[S[row]])
            A_S = A_S._replace(val=A_S.val / chance.to(A_S.val.dtype))
        return MiniBatch([S] * (self.layers + 1), [A_S] * self.layers, p.mean() / p[S])

    def both(self, u: Tensor, v: Tensor) -> Tensor:
        """The chance that two different vertices are in one sample."""
        q, _, p = self._known
        return p[u] + p[v] - self._some_of(q[u] + q[v])

    @property
    def _known(self) -> Shares:
        assert self.shares is not None, "a sampler by importance is prepared for a graph first"
        return self.shares

    def _some_of(self, q: Tensor) -> Tensor:
        """The chance of at least one draw, exact for small q too."""
        return -torch.expm1(self.size * torch.log1p(-q.clamp(max=1 - 1e-15)))


def column_shares(A: Csr) -> Tensor:
    """The share of each column of A in the sum of the squares of its entries; of shapes alone, all alike."""
    if A.val.is_meta:
        return torch.full((A.cols,), 1 / max(A.cols, 1), dtype=torch.float64)
    squares = torch.zeros(A.cols, dtype=torch.float64)
    squares.index_add_(0, A.col.long(), A.val.double().square())
    return squares / squares.sum()


def induced_on(A: Csr, S: Tensor) -> Csr:
    """The subgraph of a square A on some of its vertices, ascending."""
    where = places(A.cols, torch.device("cpu"))
    mark(where, S, 1)
    return induced_pair(A, S, S, where, 1, 0, 1.0)[0]


@dataclass(frozen=True)
class Deal:
    """The deal of targets to mini-batches: an epoch goes through them once, in an order of its own.

    A step trains a batch of every group; the last batches may be short, and in the last step some groups may have none.
    """

    seed: int
    size: int
    groups: int
    targets: int

    @property
    def count(self) -> int:
        """The batches of an epoch."""
        return -(-self.targets // self.size)

    @property
    def steps(self) -> int:
        """The steps of an epoch; one even if there is nothing to train on."""
        return max(1, -(-self.count // self.groups))

    def number(self, step: int, group: int) -> tuple[int, int]:
        """The epoch of a step and, in it, the number of a group's batch; from `count` on there is none."""
        epoch, turn = divmod(step, self.steps)
        return epoch, turn * self.groups + group

    def of(self, epoch: int, number: int, targets: Tensor) -> Tensor:
        """The targets of a batch."""
        dealt = range(min(number * self.size, self.targets), min((number + 1) * self.size, self.targets))
        if targets.is_meta or not dealt:
            return targets[dealt.start : dealt.stop]
        return targets[shuffle(self.seed, Purpose.SAMPLE, self.targets, epoch).at(dealt)]
