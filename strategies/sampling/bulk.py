"""Samples of many batches at once, by products of matrices (Tripathy, Yelick and Buluc; their section 4, Algorithm 1).

Layer by layer, from the batch outwards: P = Q A, whose rows are distributions; entries sampled of each; extraction.
Samplers differ in what Q is and in what is extracted. Batches stand one below the other in every matrix, and what is
drawn for one is a function of seed, epoch, batch and layer, so it does not change with what stands beside it.

    GraphSAGE   Q has a row a vertex, and one nonzero in each. Sampled rows are the adjacency, but for empty columns.
    LADIES      Q has a row a batch, and a nonzero for each of its vertices. Sampled columns of A's rows are extracted.
    FastGCN     Q has one row, of ones: all batches draw from one distribution, whatever their neighbours.

A product with a selection is a gather of rows (`matrices`). In the mean, a sampled matrix multiplies as A: GraphSAGE's
entries are divided by s / degree; what LADIES or FastGCN took t times of s with chance p, by s p / t. Without
replacement the latter holds nearly and not exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from harness.kernels import Csr, index_dtype
from harness.kernels.parts import expected, select_rows
from harness.ledger import Ledger, Phase, TensorName
from harness.strategy import LONG, MiniBatch
from strategies.sampling.matrices import (
    Places,
    Stack,
    columns,
    counted,
    draw_masses,
    join,
    keys_of,
    one_of,
    renumber,
    squares,
    stacked,
    sum_rows,
)
from strategies.sampling.sampler import Deal, Graph, Sampler

Kind = Literal["graphsage", "ladies", "fastgcn"]
Distribution = Literal["counts", "norms"]


class Layer(NamedTuple):
    """One layer of all batches: stacked matrices, the vertices of their rows, and those of their columns."""

    A: Csr
    outputs: Stack
    inputs: Stack


Summed = Callable[[Csr, Stack], Csr]
"""Sums the masses of stacked rows batch by batch, a row each."""


@runtime_checkable
class BulkGraph(Graph, Protocol):
    """The graph as bulks see it: products with it, and the sums of what several ranks have of them."""

    ledger: Ledger
    together: Sequence[int]
    """The groups whose batches this rank draws at once."""

    def begin(self, steps: range) -> None:
        """A bulk of these steps is drawn next."""

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        """So many entries of each row of a selection (`matrices.draw_rows`)."""

    def rows(self, stack: Stack) -> Csr:
        """The rows of a selection, or this rank's share of them; the others are empty."""

    def popularity(self, summed: Summed) -> Csr:
        """The masses of a batch of all vertices, in one row; they are summed once."""

    def sum(self, R: Csr, stack: Stack, summed: Summed) -> Csr:
        """The masses of the rows of a selection, batch by batch, added up over the shares."""

    def put_together(self, A: Csr, stack: Stack) -> Csr:
        """Rows, each of which one rank has."""


@dataclass(frozen=True)
class Algorithm1:
    """How the layers of stacked batches are drawn."""

    seed: int
    kind: Kind
    sizes: tuple[int, ...]
    """Of the batch's own neighbours first: neighbours of a vertex, or vertices of a layer."""
    distribution: Distribution = "counts"
    """A vertex with e neighbours in the batch has mass e^2 (equation 1); or the sum of its squares in A (LADIES')."""
    replacement: bool = True
    """LADIES and FastGCN: whether a vertex may be taken twice."""

    @property
    def layer_wise(self) -> bool:
        return self.kind != "graphsage"

    def draw(
        self, graph: BulkGraph, places: Places, epoch: int, numbers: Sequence[int], batches: Sequence[Tensor]
    ) -> list[Layer]:
        """All layers of some of an epoch's batches, that of the input first."""
        layers: list[Layer] = []
        outputs = stacked(batches)
        for hop, size in enumerate(self.sizes):
            last = len(self.sizes) - 1 - hop
            keys = keys_of([(self.seed, epoch, number, last) for number in numbers])
            step = self._layer_wise if self.layer_wise else self._node_wise
            layers.insert(0, step(graph, places, outputs, size, keys))
            outputs = layers[0].inputs
        return layers

    def _node_wise(self, graph: BulkGraph, places: Places, outputs: Stack, size: int, keys: Tensor) -> Layer:
        S = graph.draw(outputs, size, keys)
        with graph.ledger.turn_to(Phase.EXTRACT):
            A, inputs = renumber(S, outputs, places)
        return Layer(A, outputs, inputs)

    def _layer_wise(self, graph: BulkGraph, places: Places, outputs: Stack, size: int, keys: Tensor) -> Layer:
        with graph.ledger.turn_to(Phase.DISTRIBUTE):
            R = graph.rows(outputs)
            P = self.masses(graph, R, outputs)
        chosen = draw_masses(P, size, keys, replacement=self.replacement)
        with graph.ledger.turn_to(Phase.EXTRACT):
            inputs = join(outputs, chosen, places)
            A = graph.put_together(columns(R, outputs, inputs, chosen, places), outputs)
        return Layer(A, outputs, inputs)

    def masses(self, graph: BulkGraph, R: Csr, outputs: Stack) -> Csr:
        """P: of every batch, the mass of every vertex that can be drawn."""
        if self.kind == "ladies":
            return self._squared(graph.sum(R, outputs, self._summed))
        everyone = self._squared(graph.popularity(self._summed))
        return select_rows(everyone, torch.zeros(outputs.batches, dtype=torch.int64))

    def _summed(self, R: Csr, stack: Stack) -> Csr:
        return sum_rows(R, stack, counted if self.distribution == "counts" else squares)

    def _squared(self, P: Csr) -> Csr:
        return P._replace(val=P.val.square()) if self.distribution == "counts" else P

    def expected(self, A: Csr, targets: Tensor) -> MiniBatch:
        """Shapes alone: as many entries and vertices as if all rows were alike and all columns as likely."""
        vertices, matrices = [targets], list[Csr]()
        for size in self.sizes:
            rows, all_of = len(vertices[0]), len(vertices[0]) * A.nnz // max(A.rows, 1)
            if self.layer_wise:
                reached = expected(A.cols, all_of)
                drawn = min(size, reached)
                nnz = all_of * drawn // max(reached, 1)
            else:
                nnz = min(rows * size, all_of)
                drawn = expected(A.cols, nnz)
            inputs = rows + round(drawn * (1 - rows / max(A.rows, 1)))
            col = A.col.new_empty(nnz, dtype=index_dtype(inputs))
            matrices.insert(0, Csr(A.rowptr.new_empty(rows + 1), col, A.val.new_empty(nnz), inputs))
            vertices.insert(0, targets.new_empty(inputs))
        return MiniBatch(vertices, matrices)


@dataclass(frozen=True)
class Bulk(Sampler):
    """Batches of a deal, sampled by Algorithm 1."""

    deal: Deal
    how: Algorithm1
    bulk: int = 1
    """The steps whose batches a rank draws at once; 0, those of an epoch."""

    def steps(self, targets: int) -> int:
        return self.deal.steps

    @property
    def at_once(self) -> int:
        return self.bulk or self.deal.steps

    def expected(self, A: Csr, targets: Tensor) -> MiniBatch:
        return self.how.expected(A, targets)

    def hops(self) -> Sequence[int] | None:
        return None if self.how.layer_wise else self.how.sizes

    def chances(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        p = torch.zeros(vertices, dtype=torch.float64)
        p[targets] = 1 / max(self.deal.count, 1)
        return p

    def on(self, graph: Graph) -> "Bulks":
        return Bulks(self, Places(graph.A.cols))

    def mini_batch(self, step: int, group: int, graph: Graph, targets: Tensor) -> MiniBatch:
        return self.on(graph).mini_batch(step, group, graph, targets)

    def memory(self, vertices: int) -> dict[TensorName, int]:
        return {TensorName.INDEX: LONG * vertices}


class Bulks(Sampler):
    """A bulk sampler on a rank: the batches of so many steps are drawn at once, step after step."""

    def __init__(self, bulk: Bulk, places: Places) -> None:
        self.bulk, self.places = bulk, places
        self.layers: list[Layer] = []
        """The bulk that was drawn last."""
        self._first = -1

    def steps(self, targets: int) -> int:
        return self.bulk.steps(targets)

    def hops(self) -> Sequence[int] | None:
        return self.bulk.hops()

    def chances(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        return self.bulk.chances(group, targets, vertices)

    def held(self) -> list[tuple[TensorName, Tensor]]:
        return [(TensorName.INDEX, self.places.where)]

    def mini_batch(self, step: int, group: int, graph: Graph, targets: Tensor) -> MiniBatch:
        """With the first step of a bulk comes all of it; a group of another rank is drawn by itself."""
        if targets.is_meta:
            return self.bulk.expected(
                graph.A, self.bulk.deal.of(*self.bulk.deal.number(step, group), targets)
            )
        assert isinstance(graph, BulkGraph), "a bulk needs products with the graph"
        groups = list(graph.together)
        if group not in groups:
            return one_batch_of(self.draw(range(step, step + 1), [group], graph, targets), 0)
        turn = step % self.bulk.deal.steps
        first = step - turn % self.bulk.at_once
        if first != self._first:
            steps = range(first, min(first + self.bulk.at_once, step - turn + self.bulk.deal.steps))
            graph.begin(steps)
            self.layers, self._first = self.draw(steps, groups, graph, targets), first
        with graph.ledger.turn_to(Phase.EXTRACT):
            return one_batch_of(self.layers, (step - first) * len(groups) + groups.index(group))

    def draw(self, steps: range, groups: Sequence[int], graph: BulkGraph, targets: Tensor) -> list[Layer]:
        """The layers of some steps of an epoch, of some groups each."""
        deal = self.bulk.deal
        named = [deal.number(step, group) for step in steps for group in groups]
        batches = [deal.of(epoch, number, targets) for epoch, number in named]
        numbers = [number for _, number in named]
        return self.bulk.how.draw(graph, self.places, named[0][0], numbers, batches)


def one_batch_of(layers: Sequence[Layer], place: int) -> MiniBatch:
    """One of the batches of a bulk."""
    vertices = [layers[0].inputs.of(place), *(layer.outputs.of(place) for layer in layers)]
    return MiniBatch(vertices, [one_of(A, outputs, inputs, place) for A, outputs, inputs in layers])
