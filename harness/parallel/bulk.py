"""Samples of many batches at once, by products of matrices (Tripathy, Yelick and Buluc; their section 4, Algorithm 1).

Layer by layer, from the batch outwards: P = Q A, whose rows are distributions; entries sampled of each; extraction.
Samplers differ in what Q is and in what is extracted. Batches stand one below the other in every matrix, and what is
drawn for one is a function of seed, epoch, batch and layer, so it does not change with what stands beside it.

    GraphSAGE   Q has a row a vertex, and one nonzero in each. Sampled rows are the adjacency, but for empty columns.
    LADIES      Q has a row a batch, and a nonzero for each of its vertices. Sampled columns of A's rows are extracted.
    FastGCN     Q has one row, of ones: all batches draw from one distribution, whatever their neighbours.

A product with a selection is a gather of rows (`harness.kernels.its`). In the mean, a sampled matrix multiplies as A:
GraphSAGE's entries are divided by s / degree; what LADIES or FastGCN took t times of s with chance p, by s p / t.
Without replacement the latter holds nearly and not exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from harness.kernels import Csr, index_dtype
from harness.kernels.compact import expected
from harness.kernels.extract import Places, columns, counted, join, renumber, squares, sum_rows
from harness.kernels.its import draw_masses, draw_rows, keys_of
from harness.kernels.spgemm import select_rows
from harness.kernels.stack import Stack, one_batch, one_of, stacked
from harness.ledger import Ledger, Phase
from harness.parallel.batches import Batches
from harness.strategy import MiniBatch

Sampler = Literal["graphsage", "ladies", "fastgcn"]
Distribution = Literal["counts", "norms"]


class Layer(NamedTuple):
    """One layer of all batches: stacked matrices, the vertices of their rows, and those of their columns."""

    A: Csr
    outputs: Stack
    inputs: Stack


class Graph(Protocol):
    """The graph that is sampled from: the products with it, and the sums of what several ranks have of them."""

    A: Csr
    """Its rows that are on this rank."""
    places: Places
    ledger: Ledger

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        """So many entries of each row of a selection (`harness.kernels.its.draw_rows`)."""

    def rows(self, stack: Stack) -> Csr:
        """The rows of a selection, or this rank's share of them; the others are empty."""

    def popularity(self, summed: Callable[[Csr, Stack], Csr]) -> Csr:
        """The masses of a batch of all vertices, in one row; they are summed once."""

    def sum(self, P: Csr, stack: Stack) -> Csr:
        """Masses, added up over the shares."""

    def put_together(self, A: Csr, stack: Stack) -> Csr:
        """Rows, each of which one rank has."""


@dataclass(frozen=True)
class Bulk:
    """How samples are drawn."""

    seed: int
    sampler: Sampler
    sizes: tuple[int, ...]
    """Of the batch's own neighbours first: neighbours of a vertex, or vertices of a layer."""
    distribution: Distribution = "counts"
    """A vertex with e neighbours in the batch has mass e^2 (equation 1); or the sum of its squares in A (LADIES')."""
    replacement: bool = True
    """LADIES and FastGCN: whether a vertex may be taken twice."""

    def draw(
        self, graph: Graph, epoch: int, numbers: Sequence[int], batches: Sequence[Tensor]
    ) -> list[Layer]:
        """All layers of some of an epoch's batches, that of the input first."""
        layers: list[Layer] = []
        outputs = stacked(batches)
        for hop, size in enumerate(self.sizes):
            keys = keys_of([(self.seed, epoch, number, len(self.sizes) - 1 - hop) for number in numbers])
            step = self._node_wise if self.sampler == "graphsage" else self._layer_wise
            layers.insert(0, step(graph, outputs, size, keys))
            outputs = layers[0].inputs
        return layers

    def _node_wise(self, graph: Graph, outputs: Stack, size: int, keys: Tensor) -> Layer:
        S = graph.draw(outputs, size, keys)
        with graph.ledger.turn_to(Phase.EXTRACT):
            A, inputs = renumber(S, outputs, graph.places)
        return Layer(A, outputs, inputs)

    def _layer_wise(self, graph: Graph, outputs: Stack, size: int, keys: Tensor) -> Layer:
        with graph.ledger.turn_to(Phase.DISTRIBUTE):
            R = graph.rows(outputs)
            P = self.masses(graph, R, outputs)
        chosen = draw_masses(P, size, keys, replacement=self.replacement)
        with graph.ledger.turn_to(Phase.EXTRACT):
            inputs = join(outputs, chosen, graph.places)
            A = graph.put_together(columns(R, outputs, inputs, chosen, graph.places), outputs)
        return Layer(A, outputs, inputs)

    def masses(self, graph: Graph, R: Csr, outputs: Stack) -> Csr:
        """P: of every batch, the mass of every vertex that can be drawn."""
        if self.sampler == "ladies":
            return self._squared(graph.sum(self._summed(R, outputs), outputs))
        everyone = self._squared(graph.popularity(self._summed))
        return select_rows(everyone, torch.zeros(outputs.batches, dtype=torch.int64))

    def _summed(self, R: Csr, stack: Stack) -> Csr:
        return sum_rows(R, stack, counted if self.distribution == "counts" else squares)

    def _squared(self, P: Csr) -> Csr:
        return P._replace(val=P.val.square()) if self.distribution == "counts" else P


class WholeGraph:
    """On one rank: nothing is asked of anybody."""

    def __init__(self, A: Csr, ledger: Ledger | None = None) -> None:
        self.A, self.places = A, Places(A.rows)
        self.ledger = ledger or Ledger(recording=False)
        self._popularity: Csr | None = None

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        return draw_rows(self.A, stack, fanout, keys)

    def rows(self, stack: Stack) -> Csr:
        return select_rows(self.A, stack.vertices)

    def popularity(self, summed: Callable[[Csr, Stack], Csr]) -> Csr:
        if self._popularity is None:
            self._popularity = summed(self.A, one_batch(range(self.A.rows)))
        return self._popularity

    def sum(self, P: Csr, stack: Stack) -> Csr:
        return P

    def put_together(self, A: Csr, stack: Stack) -> Csr:
        return A


def mini_batch(layers: Sequence[Layer], place: int) -> MiniBatch:
    """One of the batches of a bulk."""
    vertices = [layers[0].inputs.of(place), *(layer.outputs.of(place) for layer in layers)]
    return MiniBatch(vertices, [one_of(A, outputs, inputs, place) for A, outputs, inputs in layers])


def expected_batch(bulk: Bulk, A: Csr, targets: Tensor) -> MiniBatch:
    """Of shapes alone: as many entries and vertices as if all rows were alike and all columns as likely."""
    vertices, found = [targets], list[Csr]()
    for size in bulk.sizes:
        rows, all_of = len(vertices[0]), len(vertices[0]) * A.nnz // max(A.rows, 1)
        if bulk.sampler == "graphsage":
            nnz = min(rows * size, all_of)
            drawn = expected(A.cols, nnz)
        else:
            reached = expected(A.cols, all_of)
            drawn = min(size, reached)
            nnz = all_of * drawn // max(reached, 1)
        inputs = rows + round(drawn * (1 - rows / max(A.rows, 1)))
        col = A.col.new_empty(nnz, dtype=index_dtype(inputs))
        found.insert(0, Csr(A.rowptr.new_empty(rows + 1), col, A.val.new_empty(nnz), inputs))
        vertices.insert(0, targets.new_empty(inputs))
    return MiniBatch(vertices, found)


class Drawn:
    """Mini-batches of some groups, those of so many steps drawn at once, step after step."""

    def __init__(
        self,
        bulk: Bulk,
        batches: Batches,
        graph: Graph,
        targets: Tensor,
        at_once: int,
        groups: Sequence[int],
        before: Callable[[range], None] | None = None,
    ) -> None:
        """`before` is told of the steps of every bulk."""
        self.bulk, self.batches, self.graph, self.targets = bulk, batches, graph, targets
        self.at_once = at_once or batches.steps
        self.groups, self._before = groups, before
        self._here: list[Layer] = []
        self._first = -1

    def take(self, step: int, group: int) -> MiniBatch:
        """That of a step; with the first of a bulk come all of it."""
        if self.targets.is_meta:
            return alone(self.bulk, self.batches, self.graph, self.targets, step, group)
        turn = step % self.batches.steps
        first = step - turn % self.at_once
        if first != self._first:
            last = min(first + self.at_once, step - turn + self.batches.steps)
            self._here = self._draw(range(first, last))
            self._first = first
        with self.graph.ledger.turn_to(Phase.EXTRACT):
            return mini_batch(self._here, (step - first) * len(self.groups) + self.groups.index(group))

    def _draw(self, steps: range) -> list[Layer]:
        if self._before:
            self._before(steps)
        return together(self.bulk, self.batches, self.graph, self.targets, steps, self.groups)


def together(
    bulk: Bulk, batches: Batches, graph: Graph, targets: Tensor, steps: range, groups: Sequence[int]
) -> list[Layer]:
    """The mini-batches of some steps of an epoch, of some groups each."""
    named = [batches.number(step, group) for step in steps for group in groups]
    found = [batches.of(epoch, number, targets) for epoch, number in named]
    return bulk.draw(graph, named[0][0], [number for _, number in named], found)


def alone(bulk: Bulk, batches: Batches, graph: Graph, targets: Tensor, step: int, group: int) -> MiniBatch:
    """That of a step and group, drawn by itself."""
    if targets.is_meta:
        return expected_batch(bulk, graph.A, batches.of(*batches.number(step, group), targets))
    return mini_batch(together(bulk, batches, graph, targets, range(step, step + 1), [group]), 0)
