"""Samplers: draw the vertices and the entries of A in a mini-batch, as functions of seed, group and step.

A sampler draws from a graph, wherever its rows are (`graph_placement`). GraphSAGE's sampler draws training vertices,
neighbours of each, and neighbours of those. GraphSAINT's sampler draws vertices by importance and takes all edges
between them. The sampler that draws many mini-batches together is in `bulk`.

Legend: q the probability of one draw of a vertex, p the probability that a vertex is in a sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harness.base.device import can_run_triton, is_on_gpu, upload
from harness.base.ranges import split_evenly_part
from harness.base.validation import Frozen
from harness.kernels import Csr, row_indices, to_device
from harness.kernels.csr import index_dtype, relabel_columns
from harness.kernels.induced import induced_submatrix
from harness.kernels.parts import expected_distinct, nonempty_columns
from harness.kernels.random import Purpose, Seed, derive_key, random_bits_numba, uniform
from harness.kernels.shuffle import random_permutation
from harness.ledger import TensorName
from harness.strategies.sampling import vectorised
from harness.strategies.sampling.neighbour_loops import (
    count_sampled,
    draw_neighbours,
    find_frontier,
    sort_by_position,
)
from harness.strategy import LONG, MiniBatch

MAX_FANOUT = 1 << 12
"""A row must have fewer draws, because the counter of a random number has 12 bits for them."""

Fanouts = tuple[Annotated[int, Field(ge=1, lt=MAX_FANOUT)], ...]


class FanoutParams(Frozen):
    """The parameters of neighbour samplers."""

    fanouts: Fanouts = Field((15, 10, 5), min_length=1, examples=[[3, 2]])
    """Neighbours drawn per vertex, for each hop from the batch; the last fan-out applies to all further hops."""


class DrawKey(NamedTuple):
    """The key of a draw: the group, step and layer of a mini-batch."""

    group: int
    step: int
    layer: int


class DrawRows(Protocol):
    """Draws some entries of rows of A, which belong to `vertices`."""

    def __call__(self, A: Csr, rows: Tensor, vertices: Tensor, key: DrawKey) -> Csr: ...


class GraphView(Protocol):
    """The graph as the sampler of one rank sees it."""

    A: Csr
    """The rows of A on this rank."""
    start: int
    """The vertex of the first row."""

    def sample_rows(self, draw: DrawRows, vertices: Tensor, key: DrawKey) -> Csr:
        """Sample the rows of some vertices, in their order. The rank that has a row draws from it."""


class Sampler(ABC):
    """Draws mini-batches. A mini-batch does not depend on the rank that draws it, nor on what else is drawn."""

    @abstractmethod
    def steps(self, targets: int) -> int:
        """Return the number of training steps in an epoch, given the number of target vertices."""

    @abstractmethod
    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """Return the mini-batch of a step and group (`harness.strategy.Strategy.mini_batch`)."""

    def prepare_for(self, graph: GraphView) -> "Sampler":
        """Return a sampler that is prepared for this graph; by default, the sampler itself."""
        return self

    @property
    def identity(self) -> Hashable:
        """A key that is equal for samplers that draw the same mini-batches of the same graph."""
        return self

    def held_tensors(self) -> list[tuple[TensorName, Tensor]]:
        """Return the tensors that were prepared for the graph."""
        return []

    def memory(self, vertices: int) -> dict[TensorName, int]:
        """Return the bytes of these tensors, by formula."""
        return {}

    def host_tensors(self) -> list[Tensor]:
        """Return the tensors of a library's copy of the graph, which stays on the host."""
        return []

    def target_probabilities(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        """Return the probability (float64) that each vertex is in the output of a group's mini-batch."""
        raise NotImplementedError(f"{type(self).__name__} does not know the probabilities of its vertices")

    def fanouts_per_hop(self) -> Sequence[int] | None:
        """Return the fan-out of each hop; None if vertices do not draw neighbours independently."""
        return None

    @property
    def steps_per_bulk(self) -> int:
        """The number of steps whose mini-batches are drawn together; 0 if they are drawn one by one."""
        return 0

    def expected_shapes(self, A: Csr, targets: Tensor) -> MiniBatch:
        """Return the expected shapes of a mini-batch of these targets, if several are drawn together."""
        raise NotImplementedError(f"{type(self).__name__} draws one mini-batch at a time")


@dataclass(frozen=True)
class Neighbours(Sampler):
    """Draws some targets, neighbours of each, and neighbours of those (GraphSAGE).

    An epoch visits each target once, in a new random order. Each layer draws again. A vertex's self-loop is always kept
    unscaled, and the other entries are rescaled, so that a layer's aggregation is unbiased.
    """

    seed: int
    size: int
    """The number of targets in a mini-batch."""
    fanouts: Sequence[int]
    layers: int
    groups: int
    own: bool = False
    """Whether a group trains on its own range of the targets; otherwise all targets are shuffled among the groups."""

    def steps(self, targets: int) -> int:
        return max(1, -(-targets // (self.size * self.groups)))

    def fanouts_per_hop(self) -> list[int]:
        return fanout_per_hop(self.fanouts, self.layers)

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """Layers are drawn from the output back to the input."""
        vertices = [move_to_entries(self.targets(step, group, targets), graph.A)]
        matrices: list[Csr] = []
        for layer in reversed(range(self.layers)):
            sample = graph.sample_rows(self.draw, vertices[0], DrawKey(group, step, layer))
            frontier, A = renumber_columns(sample, vertices[0])
            vertices.insert(0, frontier)
            matrices.insert(0, A)
        return MiniBatch(vertices, matrices)

    def draw(self, A: Csr, rows: Tensor, vertices: Tensor, key: DrawKey) -> Csr:
        fanout = self.fanouts_per_hop()[self.layers - 1 - key.layer]
        return sample_neighbours(A, rows, vertices, fanout, (self.seed, *key), loops=True)

    def targets(self, step: int, group: int, targets: Tensor) -> Tensor:
        """Return the targets of a mini-batch. An epoch divides them evenly among steps and groups."""
        steps = self.steps(len(targets))
        epoch, turn = divmod(step, steps)
        candidates = self.group_targets(group, targets)
        shares, number = (steps, turn) if self.own else (steps * self.groups, turn * self.groups + group)
        share = split_evenly_part(len(candidates), shares, number)
        if targets.is_meta:
            return candidates[share.start : share.stop]
        seed = (self.seed, epoch, group) if self.own else (self.seed, epoch)
        return candidates[order_targets(seed, len(candidates))[share.start : share.stop]]

    def group_targets(self, group: int, targets: Tensor) -> Tensor:
        """Return all targets that a group may train on."""
        if not self.own:
            return targets
        part = split_evenly_part(len(targets), self.groups, group)
        return targets[part.start : part.stop]

    def target_probabilities(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        p = torch.zeros(vertices, dtype=torch.float64)
        batches = self.steps(len(targets)) * (1 if self.own else self.groups)
        p[self.group_targets(group, targets)] = 1 / batches
        return p


@lru_cache(maxsize=1)
def order_targets(seed: Seed, targets: int) -> Tensor:
    """Return the order of the targets in an epoch, `random_order`. All its steps share it: the last one is kept.

    It is computed without torch, so that a replay does not count it for the first rank only.
    """
    bits = random_bits_numba(np.arange(targets), *derive_key(seed, Purpose.SAMPLE))
    return torch.from_numpy(np.argsort(bits, kind="stable"))


def fanout_per_hop(fanouts: Sequence[int], layers: int) -> list[int]:
    """Return the fan-out of each hop; the last applies to all further hops."""
    return [fanouts[min(hop, len(fanouts) - 1)] for hop in range(layers)]


def renumber_columns(A: Csr, rows: Tensor) -> tuple[Tensor, Csr]:
    """Return the frontier, the vertices of A's rows followed by its other filled columns, and A renumbered.

    The columns of the renumbered matrix are positions in the frontier, which a compiled loop looks up on a CPU. With
    shapes only, each row has its self-loop, and its other entries are spread evenly over all columns.
    """
    if A.val.is_meta:
        others = max(A.cols - len(rows), 0)
        draws = max(A.nnz - len(rows), 0) * others // max(A.cols, 1)
        frontier = A.col.new_empty(len(rows) + expected_distinct(others, draws), dtype=torch.int64)
        return frontier, A._replace(cols=len(frontier))
    if not is_on_gpu(A.val):
        return _renumber_compiled(A, rows)
    frontier = torch.cat([rows, nonempty_columns(A, rows)])
    ascending, order = frontier.sort()
    col = order[torch.searchsorted(ascending, A.col.long())]
    return frontier, relabel_columns(A, col, len(frontier))


def _renumber_compiled(A: Csr, rows: Tensor) -> tuple[Tensor, Csr]:
    rowptr, col, val = as_arrays(A)
    frontier, where = find_frontier(col, rows.numpy(), A.cols)
    out_col = torch.empty(A.nnz, dtype=index_dtype(len(frontier)))
    out_val = torch.empty_like(A.val)
    sort_by_position((rowptr, col, val), where, (out_col.numpy(), out_val.numpy()))
    return torch.from_numpy(frontier), Csr(A.rowptr, out_col, out_val, len(frontier))


def move_to_entries(x: Tensor, A: Csr) -> Tensor:
    """Move a host tensor to the device of A's entries; with shapes only, return it unchanged."""
    return x if A.val.is_meta else upload(x, A.val.device)


def sample_neighbours(
    A: Csr, rows: Tensor, vertices: Tensor, fanout: int, seed: Seed, *, loops: bool = False
) -> Csr:
    """Draw `fanout` neighbours of each vertex without replacement, each set of neighbours equally likely.

    Return entries of A[rows], rescaled so that a product with the sample is an unbiased estimate of the product with
    A[rows]. `vertices` are the vertices of the rows. With `loops`, self-loops are always kept unscaled, and the other
    entries are drawn. Rows of at most `fanout` entries are taken whole. The draw from a row is a function of the seed,
    its vertex and its length, so every rank that has the row draws the same entries, whatever the other rows are.
    Floyd's algorithm makes the work for a row proportional to the fan-out, not to the row's length. A compiled loop
    runs on a CPU. On a GPU, Triton's kernels (`triton_sampling`) or tensor operations (`vectorised`) give equal bits.
    Tested in tests/sampling/test_neighbours.py against the definition in Python, and the frequency of every set on tiny
    rows.
    """
    assert 0 < fanout < MAX_FANOUT, fanout
    most = fanout + loops
    if A.val.is_meta:  # rows of equal length
        return allocate_rows(A, len(rows), len(rows) * min(most, -(-A.nnz // max(A.rows, 1))))
    key = derive_key(seed, Purpose.SAMPLE)
    if is_on_gpu(A.val):
        return _sample_on_gpu(A, rows, vertices, fanout, key, loops=loops)
    sample = allocate_rows(A, len(rows), count_sampled(A.rowptr.numpy(), rows.numpy(), most))
    first, second = (np.uint64(word) for word in key)
    options = fanout, loops, first, second
    entries = draw_neighbours(as_arrays(A), (rows.numpy(), vertices.numpy()), options, as_arrays(sample))
    return sample._replace(col=sample.col[:entries], val=sample.val[:entries])


def _sample_on_gpu(
    A: Csr, rows: Tensor, vertices: Tensor, fanout: int, key: tuple[int, int], *, loops: bool
) -> Csr:
    """Sample with Triton's kernels if they can run and handle this draw, else with tensor operations."""
    if can_run_triton():
        from harness.strategies.sampling import triton_sampling

        if triton_sampling.can_draw(A, fanout):
            return triton_sampling.draw_neighbours(A, rows, vertices, fanout, key, loops=loops)
    spans = vectorised.find_spans(A, rows, vertices if loops else None)

    def choose(which: Tensor, of: Tensor) -> Tensor:
        return vectorised.choose_by_floyd(vertices.index_select(0, which), of, fanout, key)

    return vectorised.draw_entries(A, spans, fanout, choose)


def allocate_rows(A: Csr, rows: int, entries: int) -> Csr:
    """Allocate a matrix for some rows of A with this many entries, which a compiled loop fills."""
    return Csr(A.rowptr.new_zeros(rows + 1), A.col.new_empty(entries), A.val.new_empty(entries), A.cols)


def as_arrays(matrix: Sequence[Any]) -> tuple[Any, ...]:
    """Return the tensors of a matrix or a stack as NumPy arrays, for a compiled loop."""
    return tuple(part.numpy() for part in matrix if isinstance(part, Tensor))


class VertexProbabilities(NamedTuple):
    """The probabilities of GraphSAINT's vertices."""

    q: Tensor
    cumulative: Tensor
    """The running sum of q."""
    p: Tensor
    """p = 1 - (1 - q)^B, for B draws."""
    mean: float
    """The mean of p."""


@dataclass(frozen=True)
class NodesByImportance(Sampler):
    """GraphSAINT's node sampler: draws vertices with large columns more often, and weights them less.

    Vertices are drawn `size` times with replacement, with probabilities proportional to the squared norms of their
    columns of A. The authors estimate the frequencies of vertices and edges from many samples; here they have a closed
    form. An epoch draws about as many vertices as the graph has. The host computes the probabilities of vertices,
    because sums and logarithms differ between devices, so a GPU draws the same vertices and edges. The probabilities of
    edges, which scale the values, are computed on the device of A, and may differ in the last bit.
    """

    seed: int
    size: int
    layers: int
    groups: int
    vertices: int
    probabilities: VertexProbabilities | None = None

    def steps(self, targets: int) -> int:
        return -(-self.vertices // (self.size * self.groups))

    def prepare_for(self, graph: GraphView) -> Self:
        A = graph.A
        q = column_shares(to_device(A, "cpu"))
        p = self._at_least_once(q)
        q_there, cumulative, p_there = (move_to_entries(x, A) for x in (q, q.cumsum(0), p))
        probabilities = VertexProbabilities(q_there, cumulative, p_there, float(p.mean()))
        return replace(self, probabilities=probabilities)

    def held_tensors(self) -> list[tuple[TensorName, Tensor]]:
        return [(TensorName.CHANCE, each) for each in self.probabilities or () if isinstance(each, Tensor)]

    def memory(self, vertices: int) -> dict[TensorName, int]:
        return {TensorName.CHANCE: 3 * LONG * vertices}

    def draw(self, step: int, group: int) -> Tensor:
        """Draw the distinct vertices of a sample, in ascending order."""
        cumulative = self._prepared.cumulative
        numbers = torch.arange(self.size, device=cumulative.device)
        darts = uniform((self.seed, group, step), Purpose.SAMPLE, numbers) * cumulative[-1]
        S: Tensor = torch.searchsorted(cumulative, darts, right=True).clamp(max=len(cumulative) - 1).unique()
        return S

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """Return the subgraph of a sample; entries are divided by the probability of their column, given their row."""
        A, S = graph.A, self.draw(step, group)
        *_, p, mean = self._prepared
        A_S = induce_subgraph(A, S)
        if not A.val.is_meta:
            row, col = row_indices(A_S), A_S.col.long()
            conditional = torch.where(row == col, 1.0, self.pair_probability(S[row], S[col]) / p[S[row]])
            A_S = A_S._replace(val=A_S.val / conditional.to(A_S.val.dtype))
        return MiniBatch([S] * (self.layers + 1), [A_S] * self.layers, mean / p[S])

    def pair_probability(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the probability that two different vertices are in a sample: p_u + p_v - P(at least one of them)."""
        q, _, p, _ = self._prepared
        return p[u] + p[v] - self._at_least_once(q[u] + q[v])

    @property
    def _prepared(self) -> VertexProbabilities:
        assert self.probabilities is not None, "prepare the sampler for a graph first, with `prepare_for`"
        return self.probabilities

    def _at_least_once(self, q: Tensor) -> Tensor:
        """Return the probability of at least one draw, 1 - (1 - q)^B, accurately for small q."""
        return -torch.expm1(self.size * torch.log1p(-q.clamp(max=1 - 1e-15)))


def column_shares(A: Csr) -> Tensor:
    """Return the share of each column in the sum of A's squared entries; with shapes only, equal shares."""
    if A.val.is_meta:
        return torch.full((A.cols,), 1 / max(A.cols, 1), dtype=torch.float64)
    squares = torch.zeros(A.cols, dtype=torch.float64)
    squares.index_add_(0, A.col.long(), A.val.double().square())
    return squares / squares.sum()


def induce_subgraph(A: Csr, S: Tensor) -> Csr:
    """Return the subgraph of a square A that some vertices induce, in ascending order."""
    return induced_submatrix(A, S, S, 0, 1.0)


@dataclass(frozen=True)
class BatchSchedule:
    """The assignment of targets to mini-batches. An epoch visits each target once, in a new random order.

    A step trains one batch of each group. The last batch may be short, and in the last step some groups may have none.
    """

    seed: int
    size: int
    groups: int
    targets: int

    @property
    def count(self) -> int:
        """The number of batches in an epoch."""
        return -(-self.targets // self.size)

    @property
    def steps(self) -> int:
        """The number of steps in an epoch; at least one, even without targets."""
        return max(1, -(-self.count // self.groups))

    def locate_batch(self, step: int, group: int) -> tuple[int, int]:
        """Return the epoch of a step and the number of a group's batch in it; batches from `count` on are empty."""
        epoch, turn = divmod(step, self.steps)
        return epoch, turn * self.groups + group

    def batch_targets(self, epoch: int, number: int, targets: Tensor) -> Tensor:
        """Return the targets of a batch."""
        places = range(min(number * self.size, self.targets), min((number + 1) * self.size, self.targets))
        if targets.is_meta or not places:
            return targets[places.start : places.stop]
        return targets[random_permutation(self.seed, Purpose.SAMPLE, self.targets, epoch).values_at(places)]
