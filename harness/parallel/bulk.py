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

from harness.kernels import Csr
from harness.kernels.extract import Places, columns, counted, join, renumber, squares, sum_rows
from harness.kernels.its import draw_masses, draw_rows, keys_of
from harness.kernels.spgemm import select_rows
from harness.kernels.stack import Stack, one_batch, stacked

Sampler = Literal["graphsage", "ladies", "fastgcn"]
Distribution = Literal["counts", "norms"]


class Layer(NamedTuple):
    """One layer of all batches: stacked matrices, the vertices of their rows, and those of their columns."""

    A: Csr
    outputs: Stack
    inputs: Stack


class Graph(Protocol):
    """The graph that is sampled from: the products with it, and the sums of what several ranks have of them."""

    places: Places

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        """So many entries of each row of a selection (`harness.kernels.its.draw_rows`)."""

    def rows(self, stack: Stack) -> Csr:
        """The rows of a selection, or this rank's share of them; the others are empty."""

    def popularity(self, summed: Callable[[Csr, Stack], Csr]) -> Csr:
        """The masses of a batch of all vertices, in one row; they are summed once."""

    def sum(self, P: Csr) -> Csr:
        """Masses, added up over the shares."""

    def put_together(self, A: Csr) -> Csr:
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
        A, inputs = renumber(graph.draw(outputs, size, keys), outputs, graph.places)
        return Layer(A, outputs, inputs)

    def _layer_wise(self, graph: Graph, outputs: Stack, size: int, keys: Tensor) -> Layer:
        R = graph.rows(outputs)
        chosen = draw_masses(self.masses(graph, R, outputs), size, keys, replacement=self.replacement)
        inputs = join(outputs, chosen, graph.places)
        A = graph.put_together(columns(R, outputs, inputs, chosen, graph.places))
        return Layer(A, outputs, inputs)

    def masses(self, graph: Graph, R: Csr, outputs: Stack) -> Csr:
        """P: of every batch, the mass of every vertex that can be drawn."""
        if self.sampler == "ladies":
            return self._squared(graph.sum(self._summed(R, outputs)))
        everyone = self._squared(graph.popularity(self._summed))
        return select_rows(everyone, torch.zeros(outputs.batches, dtype=torch.int64))

    def _summed(self, R: Csr, stack: Stack) -> Csr:
        return sum_rows(R, stack, counted if self.distribution == "counts" else squares)

    def _squared(self, P: Csr) -> Csr:
        return P._replace(val=P.val.square()) if self.distribution == "counts" else P


class WholeGraph:
    """On one rank: nothing is asked of anybody."""

    def __init__(self, A: Csr) -> None:
        self.A, self.places = A, Places(A.rows)
        self._popularity: Csr | None = None

    def draw(self, stack: Stack, fanout: int, keys: Tensor) -> Csr:
        return draw_rows(self.A, stack, fanout, keys)

    def rows(self, stack: Stack) -> Csr:
        return select_rows(self.A, stack.vertices)

    def popularity(self, summed: Callable[[Csr, Stack], Csr]) -> Csr:
        if self._popularity is None:
            self._popularity = summed(self.A, one_batch(range(self.A.rows)))
        return self._popularity

    def sum(self, P: Csr) -> Csr:
        return P

    def put_together(self, A: Csr) -> Csr:
        return A
