"""Samples of many batches at once, by products of matrices (Tripathy, Yelick and Buluc; section 4, Algorithm 1).

A layer takes three steps, from the batch outwards: 1. P = Q A, whose rows are distributions; 2. some entries of each
row are drawn; 3. the sampled matrix is extracted. Samplers differ in Q and in the extraction. Batches stand one below
the other in every matrix, and the draws for a batch are a function of seed, epoch, batch and layer, so the sample of a
batch does not change with the batches beside it.

    GraphSAGE   Q has a row per vertex, with one nonzero. The sampled rows are the adjacency, without empty columns.
    LADIES      Q has a row per batch, with a nonzero for each vertex. Sampled columns of A's rows are extracted.
    FastGCN     Q has one row, of ones: all batches draw from one distribution, whatever their neighbours.

A product with a selection is a gather of rows (`matrices`). In the mean, a product with a sampled matrix is the product
with A: GraphSAGE's entries are divided by s / degree; a column that LADIES or FastGCN took t times of s with chance p
is divided by s p / t. Without replacement the latter holds only nearly.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from harness.device import is_on_gpu
from harness.kernels import Csr, index_dtype
from harness.kernels.parts import expected_distinct, select_rows
from harness.ledger import Ledger, Phase, TensorName
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategies.sampling.matrices import (
    BatchStack,
    Places,
    draw_masses,
    draw_rows,
    extract_columns,
    joined,
    keys_of,
    matrix_of_batch,
    one_batch,
    renumber,
    square_masses,
    stacked,
    sum_rows,
    unit_masses,
)
from harness.strategies.sampling.sampler import Deal, GraphView, Sampler
from harness.strategy import LONG, MiniBatch

Kind = Literal["graphsage", "ladies", "fastgcn"]
Distribution = Literal["counts", "norms"]


class SampledLayer(NamedTuple):
    """One layer of all batches: stacked matrices, the vertices of their rows, and the vertices of their columns."""

    A: Csr
    outputs: BatchStack
    inputs: BatchStack


SumMasses = Callable[[Csr, BatchStack], Csr]
"""Sums the masses of stacked rows batch by batch, a row each."""


class BulkGraph:
    """The graph as Algorithm 1 sees it: products with a graph that is whole on this rank.

    In 1.5D (`graph_15d`), the ranks of a grid row share the rows of a product, and sum or assemble their shares.
    """

    def __init__(
        self,
        A: Csr,
        ledger: Ledger | None = None,
        groups: Sequence[int] = (),
        device: torch.device | None = None,
    ) -> None:
        """`groups` are those whose batches this rank draws at once; the rank's device is, by default, that of A."""
        self.A, self.groups, self.device = A, groups, device or A.val.device
        self.ledger = ledger or Ledger(recording=False)
        self._popularity: Csr | None = None

    def begin(self, steps: range) -> None:
        """Announces that the bulk of these steps is drawn next."""

    def draw(self, stack: BatchStack, fanout: int, keys: Tensor) -> Csr:
        """`fanout` entries of each row of a selection (`matrices.draw_rows`)."""
        return draw_rows(self.A, stack, fanout, keys)

    def rows(self, stack: BatchStack) -> Csr:
        """The rows of a selection, or this rank's share of them; all other rows are empty."""
        return select_rows(self.A, stack.vertices)

    def popularity(self, sum_masses: SumMasses) -> Csr:
        """The masses of a batch of all vertices, in one row, summed once."""
        if self._popularity is None:
            everyone = one_batch(range(self.A.rows), self.A.val.device)
            self._popularity = sum_masses(self.A, everyone)
        return self._popularity

    def sum(self, R: Csr, stack: BatchStack, sum_masses: SumMasses) -> Csr:
        """The masses of the rows of a selection, batch by batch, added up over the shares."""
        return sum_masses(R, stack)

    def assemble(self, A: Csr, stack: BatchStack) -> Csr:
        """All rows, of which every rank has its share."""
        return A


@dataclass(frozen=True)
class Algorithm1:
    """The way to draw the layers of stacked batches."""

    seed: int
    kind: Kind
    sizes: tuple[int, ...]
    """Hop by hop from the batch outwards: neighbours of a vertex, or vertices of a layer."""
    distribution: Distribution = "counts"
    """A vertex with e neighbours in the batch has mass e^2 (equation 1); or the sum of its squares in A (LADIES)."""
    replacement: bool = True
    """LADIES and FastGCN: whether a vertex may be taken twice."""

    @property
    def layer_wise(self) -> bool:
        return self.kind != "graphsage"

    def draw(
        self, graph: BulkGraph, places: Places, epoch: int, numbers: Sequence[int], batches: Sequence[Tensor]
    ) -> list[SampledLayer]:
        """All layers of some of an epoch's batches, with the layer of the input first."""
        layers: list[SampledLayer] = []
        outputs = stacked(batches, graph.A.val.device)
        for hop, size in enumerate(self.sizes):
            layer = len(self.sizes) - 1 - hop
            keys = keys_of([(self.seed, epoch, number, layer) for number in numbers])
            step = self._layer_wise if self.layer_wise else self._node_wise
            layers.insert(0, step(graph, places, outputs, size, keys))
            outputs = layers[0].inputs
        return layers

    def _node_wise(
        self, graph: BulkGraph, places: Places, outputs: BatchStack, size: int, keys: Tensor
    ) -> SampledLayer:
        S = graph.draw(outputs, size, keys)
        with graph.ledger.in_phase(Phase.EXTRACT):
            A, inputs = renumber(S, outputs, places)
        return SampledLayer(A, outputs, inputs)

    def _layer_wise(
        self, graph: BulkGraph, places: Places, outputs: BatchStack, size: int, keys: Tensor
    ) -> SampledLayer:
        with graph.ledger.in_phase(Phase.DISTRIBUTE):
            R = graph.rows(outputs)
            P = self.masses(graph, R, outputs)
        chosen = draw_masses(P, size, keys, replacement=self.replacement)
        with graph.ledger.in_phase(Phase.EXTRACT):
            inputs = joined(outputs, chosen, places)
            A = graph.assemble(extract_columns(R, outputs, inputs, chosen, places), outputs)
        return SampledLayer(A, outputs, inputs)

    def masses(self, graph: BulkGraph, R: Csr, outputs: BatchStack) -> Csr:
        """P: for every batch, the mass of every vertex that can be drawn."""
        if self.kind == "ladies":
            return self._squared(graph.sum(R, outputs, self._sum_masses))
        for_all = self._squared(graph.popularity(self._sum_masses))
        return select_rows(for_all, outputs.vertices.new_zeros(outputs.batches))

    def _sum_masses(self, R: Csr, stack: BatchStack) -> Csr:
        return sum_rows(R, stack, unit_masses if self.distribution == "counts" else square_masses)

    def _squared(self, P: Csr) -> Csr:
        return P._replace(val=P.val.square()) if self.distribution == "counts" else P

    def expected(self, A: Csr, targets: Tensor) -> MiniBatch:
        """The shapes of a sample, as if all rows were alike and all columns equally likely."""
        vertices, matrices = [targets], list[Csr]()
        for size in self.sizes:
            rows, entries = len(vertices[0]), len(vertices[0]) * A.nnz // max(A.rows, 1)
            if self.layer_wise:
                candidates = expected_distinct(A.cols, entries)
                drawn = min(size, candidates)
                nnz = entries * drawn // max(candidates, 1)
            else:
                nnz = min(rows * size, entries)
                drawn = expected_distinct(A.cols, nnz)
            inputs = rows + round(drawn * (1 - rows / max(A.rows, 1)))
            col = A.col.new_empty(nnz, dtype=index_dtype(inputs))
            matrices.insert(0, Csr(A.rowptr.new_empty(rows + 1), col, A.val.new_empty(nnz), inputs))
            vertices.insert(0, targets.new_empty(inputs))
        return MiniBatch(vertices, matrices)


@dataclass
class Bulk(Sampler):
    """Batches of a deal, sampled by Algorithm 1, those of many steps at once."""

    deal: Deal
    algorithm: Algorithm1
    bulk: int = 1
    """The steps whose batches a rank draws at once; 0 for all steps of an epoch."""
    mapped: bool = True
    """Ranks hold a map of the vertices, by which the loops of a CPU extract samples; a GPU sorts instead."""
    graph: BulkGraph | None = None
    """The graph to draw from, and the map of its vertices; set by `on`."""
    places: Places = field(default_factory=lambda: Places(0))
    layers: list[SampledLayer] = field(default_factory=list)
    """The bulk drawn last, and its first step."""
    first: int = -1
    shapes: list[Tensor] = field(default_factory=list)
    """In a replay, which draws on the host, the shapes of what the bulk takes of the rank's device."""

    def steps(self, targets: int) -> int:
        return self.deal.steps

    @property
    def at_once(self) -> int:
        return self.bulk or self.deal.steps

    @property
    def identity(self) -> Hashable:
        """What decides the draws: neither the bulk drawn last nor the number of batches in a bulk does."""
        return self.deal, self.algorithm

    def expected(self, A: Csr, targets: Tensor) -> MiniBatch:
        return self.algorithm.expected(A, targets)

    def hops(self) -> Sequence[int] | None:
        return None if self.algorithm.layer_wise else self.algorithm.sizes

    def chances(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        p = torch.zeros(vertices, dtype=torch.float64)
        p[targets] = 1 / max(self.deal.count, 1)
        return p

    def on(self, graph: GraphView) -> "Bulk":
        if isinstance(graph, WholeGraph):
            products = BulkGraph(graph.A, graph.ledger, graph.groups, graph.device)
        else:
            assert isinstance(graph, BulkGraph), "a bulk needs products with the graph"
            products = graph
        places = Places(0 if is_on_gpu(graph.A.val) else graph.A.cols, graph.A.val.device)
        return Bulk(self.deal, self.algorithm, self.bulk, self.mapped, products, places)

    def held(self) -> list[tuple[TensorName, Tensor]]:
        return [(TensorName.INDEX, self.places.where)] if self.mapped else []

    def memory(self, vertices: int) -> dict[TensorName, int]:
        return {TensorName.INDEX: LONG * vertices} if self.mapped else {}

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """The first step of a bulk draws all of it; a mini-batch of a group elsewhere is drawn by itself."""
        if self.graph is None:
            return self.on(graph).mini_batch(step, group, graph, targets)
        if targets.is_meta:
            return self.expected(graph.A, self.deal.of(*self.deal.number(step, group), targets))
        groups = list(self.graph.groups)
        if group not in groups:
            return one_of(self.draw(range(step, step + 1), [group], targets), 0)
        turn = step % self.deal.steps
        first = step - turn % self.at_once
        if first != self.first:
            steps = range(first, min(first + self.at_once, step - turn + self.deal.steps))
            self.graph.begin(steps)
            self.layers, self.shapes = [], []
            self.layers = [self._resident(layer) for layer in self.draw(steps, groups, targets)]
            self.first = first
        with self.graph.ledger.in_phase(Phase.EXTRACT):
            return one_of(self.layers, (step - first) * len(groups) + groups.index(group))

    def draw(self, steps: range, groups: Sequence[int], targets: Tensor) -> list[SampledLayer]:
        """The layers of the mini-batches of some groups in some steps of one epoch."""
        assert self.graph is not None, "a sampler in bulk is prepared for a graph first"
        named = [self.deal.number(step, group) for step in steps for group in groups]
        batches = [self.deal.of(epoch, number, targets) for epoch, number in named]
        numbers = [number for _, number in named]
        return self.algorithm.draw(self.graph, self.places, named[0][0], numbers, batches)

    def _resident(self, layer: SampledLayer) -> SampledLayer:
        """The layer on the rank's device, where it was drawn but in a replay: there only shapes are."""
        assert self.graph is not None
        A, device = layer.A, self.graph.device
        self.shapes += [each.to(device) for each in (A.rowptr, layer.inputs.vertices)]
        return layer._replace(A=A._replace(col=A.col.to(device), val=A.val.to(device)))


def one_of(layers: Sequence[SampledLayer], place: int) -> MiniBatch:
    """One of the batches of a bulk."""
    vertices = [layers[0].inputs.of(place), *(layer.outputs.of(place) for layer in layers)]
    return MiniBatch(vertices, [matrix_of_batch(*layer, place) for layer in layers])
