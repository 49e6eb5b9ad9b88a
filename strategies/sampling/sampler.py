"""Samplers: the vertices and the entries of A in a mini-batch, as functions of seed, group and step.

A sampler draws from a graph, wherever its rows are (`graph_placement`). GraphSAGE's sampler takes some training
vertices, some neighbours of each, and some neighbours of those. GraphSAINT's sampler takes vertices by their
importance, and all edges between them. The sampler that draws many mini-batches at once is in `bulk`.

Legend: q the probability of one draw of a vertex, p the probability that a vertex is in a sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harness.device import is_on_gpu, upload
from harness.kernels import Csr, row_indices, to_device
from harness.kernels.csr import relabel_columns
from harness.kernels.induced import induced_pair
from harness.kernels.parts import nonempty_columns
from harness.kernels.random import Purpose, Seed, derive_key, random_order, uniform
from harness.kernels.shuffle import random_permutation
from harness.ledger import TensorName
from harness.ranges import split_evenly_part
from harness.strategies.sampling import vectorised
from harness.strategies.sampling.compiled import draw_neighbours
from harness.strategy import LONG, MiniBatch
from harness.validation import Frozen

MAX_FANOUT = 1 << 12
"""The draws of a row must be fewer: the counter of a random number has 12 bits for them."""

Fanouts = tuple[Annotated[int, Field(ge=1, lt=MAX_FANOUT)], ...]


class FanoutParams(Frozen):
    """The parameters of every sampler of neighbours."""

    fanouts: Fanouts = Field((15, 10, 5), min_length=1, examples=[[3, 2]])
    """Neighbours drawn per vertex, hop by hop from the batch outwards; the last fan-out holds for all hops beyond."""


class DrawKey(NamedTuple):
    """The key of a draw: the group and the step of the mini-batch, and the layer."""

    group: int
    step: int
    layer: int


class DrawRows(Protocol):
    """Draws some of the entries of these rows of A, which belong to these vertices."""

    def __call__(self, A: Csr, rows: Tensor, vertices: Tensor, key: DrawKey) -> Csr: ...


class GraphView(Protocol):
    """The graph as the sampler of one rank sees it."""

    A: Csr
    """The rows of A on this rank."""
    start: int
    """The vertex of the first row."""

    def sampled_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        """The rows of some vertices, in their order; the rank that has a row draws from it."""


class Sampler(ABC):
    """A way to draw mini-batches; a mini-batch is the same on whichever rank and beside whatever else it is drawn."""

    @abstractmethod
    def steps(self, targets: int) -> int:
        """The training steps of an epoch, by the number of vertices that may be trained on."""

    @abstractmethod
    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """The mini-batch of a step and group (`harness.strategy.Strategy.mini_batch`)."""

    def on(self, graph: GraphView) -> "Sampler":
        """The sampler with everything prepared that this graph needs; by default, the sampler itself."""
        return self

    @property
    def identity(self) -> Hashable:
        """Equal for samplers that draw the same mini-batches of the same graph."""
        return self

    def held(self) -> list[tuple[TensorName, Tensor]]:
        """The tensors that were prepared for the graph."""
        return []

    def memory(self, vertices: int) -> dict[TensorName, int]:
        """The bytes of these tensors, by formula."""
        return {}

    def chances(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        """The chance of every vertex to be in the output of a group's mini-batch; float64."""
        raise NotImplementedError(f"{type(self).__name__} states no chances")

    def hops(self) -> Sequence[int] | None:
        """The fan-outs hop by hop; None where a vertex draws no neighbours of its own."""
        return None

    @property
    def at_once(self) -> int:
        """The steps of an epoch whose mini-batches are drawn at once; 0 where each is drawn by itself."""
        return 0

    def expected(self, A: Csr, targets: Tensor) -> MiniBatch:
        """The shapes of a mini-batch of these targets, where several are drawn at once."""
        raise NotImplementedError(f"{type(self).__name__} draws one mini-batch at a time")


@dataclass(frozen=True)
class Neighbours(Sampler):
    """Some targets, some neighbours of each, some neighbours of those (GraphSAGE).

    An epoch goes through the targets once, in an order of its own. Each layer draws anew. A vertex's own loop is always
    kept as it is, and the other entries are rescaled, so that a layer's aggregation has the right mean.
    """

    seed: int
    size: int
    """The targets of a mini-batch."""
    fanouts: Sequence[int]
    layers: int
    groups: int
    own: bool = False
    """A group trains on its own stretch of the targets; otherwise a shuffle of all targets is dealt to all groups."""

    def steps(self, targets: int) -> int:
        return max(1, -(-targets // (self.size * self.groups)))

    def hops(self) -> list[int]:
        return hops_of(self.fanouts, self.layers)

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """Layers are drawn from the output back to the input."""
        vertices = [beside_entries(self.targets(step, group, targets), graph.A)]
        matrices: list[Csr] = []
        for layer in reversed(range(self.layers)):
            sample = graph.sampled_rows(self.draw, vertices[0], DrawKey(group, step, layer))
            frontier, A = renumbered(sample, vertices[0])
            vertices.insert(0, frontier)
            matrices.insert(0, A)
        return MiniBatch(vertices, matrices)

    def draw(self, A: Csr, rows: Tensor, vertices: Tensor, key: DrawKey) -> Csr:
        fanout = self.hops()[self.layers - 1 - key.layer]
        return sampled_neighbours(A, rows, vertices, fanout, (self.seed, *key), loops=True)

    def targets(self, step: int, group: int, targets: Tensor) -> Tensor:
        """The targets of a mini-batch; those of an epoch are shared out evenly among steps and groups."""
        steps = self.steps(len(targets))
        epoch, turn = divmod(step, steps)
        candidates = self.targets_of(group, targets)
        shares, number = (steps, turn) if self.own else (steps * self.groups, turn * self.groups + group)
        share = split_evenly_part(len(candidates), shares, number)
        if targets.is_meta:
            return candidates[share.start : share.stop]
        seed = (self.seed, epoch, group) if self.own else (self.seed, epoch)
        order = random_order(seed, Purpose.SAMPLE, range(len(candidates)))
        return candidates[order[share.start : share.stop]]

    def targets_of(self, group: int, targets: Tensor) -> Tensor:
        """All targets that a group may train on."""
        if not self.own:
            return targets
        stretch = split_evenly_part(len(targets), self.groups, group)
        return targets[stretch.start : stretch.stop]

    def chances(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        p = torch.zeros(vertices, dtype=torch.float64)
        p[self.targets_of(group, targets)] = 1 / (self.steps(len(targets)) * (1 if self.own else self.groups))
        return p


def hops_of(fanouts: Sequence[int], layers: int) -> list[int]:
    """The fan-outs hop by hop; the last holds for all hops beyond."""
    return [fanouts[min(hop, len(fanouts) - 1)] for hop in range(layers)]


def renumbered(A: Csr, rows: Tensor) -> tuple[Tensor, Csr]:
    """The frontier, which is the vertices of A's rows and then those of its other filled columns; and A renumbered.

    The columns of the renumbered matrix are positions in the frontier.
    """
    beyond = nonempty_columns(A, rows)
    if A.val.is_meta:
        frontier = beyond.new_empty(min(len(rows) + len(beyond), A.cols))
        return frontier, A._replace(cols=len(frontier))
    frontier = torch.cat([rows, beyond])
    ascending, order = frontier.sort()
    col = order[torch.searchsorted(ascending, A.col.long())]
    return frontier, relabel_columns(A, col, len(frontier))


def beside_entries(x: Tensor, A: Csr) -> Tensor:
    """A tensor of the host where the entries of A are; of shapes alone, it stays."""
    return x if A.val.is_meta else upload(x, A.val.device)


def sampled_neighbours(
    A: Csr, rows: Tensor, vertices: Tensor, fanout: int, seed: Seed, *, loops: bool = False
) -> Csr:
    """`fanout` neighbours of each vertex without replacement, every set of neighbours being equally likely.

    Returns some of the entries of A[rows], rescaled so that a product with the sample has the mean of the product with
    A[rows]; `vertices` are the numbers of the rows' vertices. With `loops`, an entry in the column of its own row's
    vertex is always kept as it is, and the draw is among the others. Rows of no more than `fanout` entries stay whole.
    The draw from a row is a function of the seed, of the number of its vertex and of the row's length. So every rank
    that has the row draws the same entries, whichever other rows stand beside it. Floyd's algorithm draws, so the work
    for a row is proportional to the fan-out and not to the row's length. A compiled loop runs on a CPU, and tensor
    operations on a GPU (`vectorised`), with equal bits.
    Verifier (tests/sampling/test_neighbours.py): the definition in Python, and the frequency of every set on tiny rows.
    """
    assert 0 < fanout < MAX_FANOUT, fanout
    most = fanout + loops
    if A.val.is_meta:  # as if all rows of A were of equal length
        return unfilled(A, len(rows), len(rows) * min(most, -(-A.nnz // max(A.rows, 1))))
    key = derive_key(seed, Purpose.SAMPLE)
    if is_on_gpu(A.val):
        spans = vectorised.spans_of(A, rows, vertices if loops else None)
        return vectorised.draw_entries(
            A,
            spans,
            fanout,
            lambda which, of: vectorised.choose_by_floyd(vertices.index_select(0, which), of, fanout, key),
        )
    lengths = A.rowptr.index_select(0, rows + 1) - A.rowptr.index_select(0, rows)
    sample = unfilled(A, len(rows), int(lengths.clamp(max=most).sum()))
    first, second = (np.uint64(word) for word in key)
    how = fanout, loops, first, second
    entries = draw_neighbours(arrays(A), (rows.numpy(), vertices.numpy()), how, arrays(sample))
    return sample._replace(col=sample.col[:entries], val=sample.val[:entries])


def unfilled(A: Csr, rows: int, entries: int) -> Csr:
    """A matrix for some rows of A, with room for so many entries; a compiled loop fills it."""
    return Csr(A.rowptr.new_zeros(rows + 1), A.col.new_empty(entries), A.val.new_empty(entries), A.cols)


def arrays(matrix: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors of a matrix or a stack as arrays, for a compiled loop."""
    return tuple(part.numpy() for part in matrix if isinstance(part, Tensor))


class Shares(NamedTuple):
    """The chances of GraphSAINT's vertices."""

    q: Tensor
    cumulative: Tensor
    """The running sum of q."""
    p: Tensor
    """p = 1 - (1 - q)^B, for B draws."""
    mean: float
    """The mean of p."""


@dataclass(frozen=True)
class NodesByImportance(Sampler):
    """GraphSAINT's node sampler: vertices with large columns are drawn more often, and weigh less once drawn.

    A vertex is drawn in proportion to the squares of its column of A, `size` times, with replacement. The authors count
    in many samples beforehand how often a vertex and an edge occur; these frequencies have a closed form. An epoch has
    about as many draws as the graph has vertices. The host computes the chances of vertices, since sums and logarithms
    differ between devices, so a GPU draws the same vertices and edges. The chances of edges, which scale the values,
    are computed where A is, and may differ in the last bit.
    """

    seed: int
    size: int
    layers: int
    groups: int
    vertices: int
    shares: Shares | None = None

    def steps(self, targets: int) -> int:
        return -(-self.vertices // (self.size * self.groups))

    def on(self, graph: GraphView) -> Self:
        A = graph.A
        q = column_shares(to_device(A, "cpu"))
        p = self._at_least_once(q)
        q_there, cumulative, p_there = (beside_entries(x, A) for x in (q, q.cumsum(0), p))
        return replace(self, shares=Shares(q_there, cumulative, p_there, float(p.mean())))

    def held(self) -> list[tuple[TensorName, Tensor]]:
        return [(TensorName.CHANCE, each) for each in self.shares or () if isinstance(each, Tensor)]

    def memory(self, vertices: int) -> dict[TensorName, int]:
        return {TensorName.CHANCE: 3 * LONG * vertices}

    def draw(self, step: int, group: int) -> Tensor:
        """The vertices of the sample, ascending, each once."""
        cumulative = self._known.cumulative
        numbers = torch.arange(self.size, device=cumulative.device)
        darts = uniform((self.seed, group, step), Purpose.SAMPLE, numbers) * cumulative[-1]
        S: Tensor = torch.searchsorted(cumulative, darts, right=True).clamp(max=len(cumulative) - 1).unique()
        return S

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """The subgraph on a sample; an entry is divided by the chance of its column, given its row."""
        A, S = graph.A, self.draw(step, group)
        *_, p, mean = self._known
        A_S = induced_on(A, S)
        if not A.val.is_meta:
            row, col = row_indices(A_S), A_S.col.long()
            chance = torch.where(row == col, 1.0, self.both(S[row], S[col]) / p[S[row]])
            A_S = A_S._replace(val=A_S.val / chance.to(A_S.val.dtype))
        return MiniBatch([S] * (self.layers + 1), [A_S] * self.layers, mean / p[S])

    def both(self, u: Tensor, v: Tensor) -> Tensor:
        """The chance that two different vertices are in one sample: p_u + p_v minus the chance of either."""
        q, _, p, _ = self._known
        return p[u] + p[v] - self._at_least_once(q[u] + q[v])

    @property
    def _known(self) -> Shares:
        assert self.shares is not None, "a sampler by importance is prepared for a graph first"
        return self.shares

    def _at_least_once(self, q: Tensor) -> Tensor:
        """The chance of at least one draw, 1 - (1 - q)^B; exact for small q too."""
        return -torch.expm1(self.size * torch.log1p(-q.clamp(max=1 - 1e-15)))


def column_shares(A: Csr) -> Tensor:
    """The share of each column of A in the sum of the squares of its entries; of shapes alone, equal shares."""
    if A.val.is_meta:
        return torch.full((A.cols,), 1 / max(A.cols, 1), dtype=torch.float64)
    squares = torch.zeros(A.cols, dtype=torch.float64)
    squares.index_add_(0, A.col.long(), A.val.double().square())
    return squares / squares.sum()


def induced_on(A: Csr, S: Tensor) -> Csr:
    """The subgraph of a square A on some of its vertices, ascending."""
    return induced_pair(A, S, S, 0, 1.0)[0]


@dataclass(frozen=True)
class Deal:
    """The deal of targets to mini-batches: an epoch goes through the targets once, in an order of its own.

    A step trains a batch of every group. The last batch may be short, and in the last step some groups may have none.
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
        """The steps of an epoch; one even if nothing is to be trained on."""
        return max(1, -(-self.count // self.groups))

    def number(self, step: int, group: int) -> tuple[int, int]:
        """The epoch of a step, and the number of a group's batch in the epoch; batches from `count` on are empty."""
        epoch, turn = divmod(step, self.steps)
        return epoch, turn * self.groups + group

    def of(self, epoch: int, number: int, targets: Tensor) -> Tensor:
        """The targets of a batch."""
        dealt = range(min(number * self.size, self.targets), min((number + 1) * self.size, self.targets))
        if targets.is_meta or not dealt:
            return targets[dealt.start : dealt.stop]
        return targets[random_permutation(self.seed, Purpose.SAMPLE, self.targets, epoch).values_at(dealt)]
