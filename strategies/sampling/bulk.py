"""Matrix-based sampling of many batches together (Tripathy, Yelick and Buluc; section 4, Algorithm 1).

A layer takes three steps, starting from the batch: 1. compute P = Q A, whose rows are distributions; 2. draw some
entries of each row; 3. extract the sampled matrix. Samplers differ in Q and in the extraction. The matrices of all
batches are stacked, and the draws for a batch are a function of seed, epoch, batch and layer, so a batch's sample does
not depend on the other batches.

    GraphSAGE   Q has a row per vertex, with one nonzero. The sampled rows are the adjacency, without empty columns.
    LADIES      Q has a row per batch, with a nonzero for each vertex. Sampled columns of A's rows are extracted.
    FastGCN     Q has one row, of ones: all batches draw from one distribution, regardless of their neighbours.

A product with a selection gathers rows (`matrices`). A product with a sampled matrix is an unbiased estimate of the
product with A: GraphSAGE divides entries by s / degree; LADIES and FastGCN divide a column that was drawn t times of s
with probability p by s p / t. Without replacement, the latter is only approximately unbiased.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from harness.base.device import is_on_gpu
from harness.kernels import Csr, index_dtype
from harness.kernels.parts import expected_distinct, select_rows
from harness.ledger import Ledger, Phase, TensorName
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategies.sampling.matrices import (
    BatchStack,
    PositionMap,
    batch_keys,
    draw_masses,
    draw_rows,
    extract_columns,
    join_chosen,
    matrix_of_batch,
    one_batch,
    renumber,
    square_masses,
    stack_batches,
    sum_rows,
    unit_masses,
)
from harness.strategies.sampling.sampler import BatchSchedule, GraphView, Sampler
from harness.strategy import LONG, MiniBatch

Kind = Literal["graphsage", "ladies", "fastgcn"]
Distribution = Literal["counts", "norms"]


class SampledLayer(NamedTuple):
    """One layer of all batches: the stacked matrices and the vertices of their rows and columns."""

    A: Csr
    outputs: BatchStack
    inputs: BatchStack


SumMasses = Callable[[Csr, BatchStack], Csr]
"""Sums the masses of stacked rows for each batch; returns one row per batch."""


class BulkGraph:
    """The graph of Algorithm 1, with products of selections: here, the whole graph on this rank.

    In 1.5D (`graph_15d`), the ranks of a grid row divide the rows of a product, and sum or assemble their shares.
    """

    def __init__(
        self,
        A: Csr,
        ledger: Ledger | None = None,
        groups: Sequence[int] = (),
        device: torch.device | None = None,
    ) -> None:
        """Wrap A for drawing the batches of `groups` on `device`, by default the device of A."""
        self.A, self.groups, self.device = A, groups, device or A.val.device
        self.ledger = ledger or Ledger(recording=False)
        self._popularity: Csr | None = None

    def start_bulk(self, steps: range) -> None:
        """Start the bulk of these steps, which is drawn next."""

    def draw(self, stack: BatchStack, fanout: int, keys: Tensor) -> Csr:
        """Draw `fanout` entries of each row of a selection (`matrices.draw_rows`)."""
        return draw_rows(self.A, stack, fanout, keys)

    def select_rows(self, stack: BatchStack) -> Csr:
        """Return the rows of a selection, or this rank's share of them; all other rows are empty."""
        return select_rows(self.A, stack.vertices)

    def popularity(self, sum_masses: SumMasses) -> Csr:
        """Return the masses of a batch of all vertices, in one row. They are summed once."""
        if self._popularity is None:
            everyone = one_batch(range(self.A.rows), self.A.val.device)
            self._popularity = sum_masses(self.A, everyone)
        return self._popularity

    def sum_shares(self, R: Csr, stack: BatchStack, sum_masses: SumMasses) -> Csr:
        """Sum the masses of the rows of a selection for each batch, over the shares of all ranks."""
        return sum_masses(R, stack)

    def assemble_rows(self, A: Csr, stack: BatchStack) -> Csr:
        """Assemble all rows from the shares of the ranks."""
        return A


@dataclass(frozen=True)
class Algorithm1:
    """Draws the layers of stacked batches."""

    seed: int
    kind: Kind
    sizes: tuple[int, ...]
    """The neighbours of a vertex, or vertices of a layer, to draw in each hop from the batch."""
    distribution: Distribution = "counts"
    """A vertex with e neighbours in the batch has mass e^2 (equation 1); or the sum of its squares in A (LADIES)."""
    replacement: bool = True
    """Whether LADIES and FastGCN may draw a vertex twice."""

    @property
    def layer_wise(self) -> bool:
        return self.kind != "graphsage"

    def draw(
        self,
        graph: BulkGraph,
        places: PositionMap,
        epoch: int,
        numbers: Sequence[int],
        batches: Sequence[Tensor],
    ) -> list[SampledLayer]:
        """Draw all layers of some batches of an epoch; return the input layer first."""
        layers: list[SampledLayer] = []
        outputs = stack_batches(batches, graph.A.val.device)
        for hop, size in enumerate(self.sizes):
            layer = len(self.sizes) - 1 - hop
            keys = batch_keys([(self.seed, epoch, number, layer) for number in numbers])
            draw_layer = self._draw_layer_wise if self.layer_wise else self._draw_node_wise
            layers.insert(0, draw_layer(graph, places, outputs, size, keys))
            outputs = layers[0].inputs
        return layers

    def _draw_node_wise(
        self, graph: BulkGraph, places: PositionMap, outputs: BatchStack, size: int, keys: Tensor
    ) -> SampledLayer:
        S = graph.draw(outputs, size, keys)
        with graph.ledger.in_phase(Phase.EXTRACT):
            A, inputs = renumber(S, outputs, places)
        return SampledLayer(A, outputs, inputs)

    def _draw_layer_wise(
        self, graph: BulkGraph, places: PositionMap, outputs: BatchStack, size: int, keys: Tensor
    ) -> SampledLayer:
        with graph.ledger.in_phase(Phase.DISTRIBUTE):
            R = graph.select_rows(outputs)
            P = self.compute_masses(graph, R, outputs)
        chosen = draw_masses(P, size, keys, replacement=self.replacement)
        with graph.ledger.in_phase(Phase.EXTRACT):
            inputs = join_chosen(outputs, chosen, places)
            A = graph.assemble_rows(extract_columns(R, outputs, inputs, chosen, places), outputs)
        return SampledLayer(A, outputs, inputs)

    def compute_masses(self, graph: BulkGraph, R: Csr, outputs: BatchStack) -> Csr:
        """Return P: the mass of every vertex that can be drawn, for each batch."""
        if self.kind == "ladies":
            return self._square_counts(graph.sum_shares(R, outputs, self._sum_masses))
        for_all = self._square_counts(graph.popularity(self._sum_masses))
        return select_rows(for_all, outputs.vertices.new_zeros(outputs.batches))

    def _sum_masses(self, R: Csr, stack: BatchStack) -> Csr:
        return sum_rows(R, stack, unit_masses if self.distribution == "counts" else square_masses)

    def _square_counts(self, P: Csr) -> Csr:
        return P._replace(val=P.val.square()) if self.distribution == "counts" else P

    def expected_shapes(self, A: Csr, targets: Tensor) -> MiniBatch:
        """Return the expected shapes of a sample, if all rows were alike and all columns equally likely."""
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
    """Scheduled batches, sampled by Algorithm 1 for many steps together."""

    schedule: BatchSchedule
    algorithm: Algorithm1
    bulk: int = 1
    """The number of steps whose batches a rank draws together; 0 for all steps of an epoch."""
    mapped: bool = True
    """Whether ranks hold a map of the vertices, with which a CPU extracts samples; a GPU sorts instead."""
    graph: BulkGraph | None = None
    """The graph to draw from, and the map of its vertices; set by `prepare_for`."""
    places: PositionMap = field(default_factory=lambda: PositionMap(0))
    layers: list[SampledLayer] = field(default_factory=list)
    """The bulk that was drawn last, and its first step."""
    first_step: int = -1
    shapes: list[Tensor] = field(default_factory=list)
    """In a replay, which draws on the host, meta tensors for what the bulk occupies on the rank's device."""

    def steps(self, targets: int) -> int:
        return self.schedule.steps

    @property
    def steps_per_bulk(self) -> int:
        return self.bulk or self.schedule.steps

    @property
    def identity(self) -> Hashable:
        """What determines the draws, which the number of batches in a bulk does not change."""
        return self.schedule, self.algorithm

    def expected_shapes(self, A: Csr, targets: Tensor) -> MiniBatch:
        return self.algorithm.expected_shapes(A, targets)

    def fanouts_per_hop(self) -> Sequence[int] | None:
        return None if self.algorithm.layer_wise else self.algorithm.sizes

    def target_probabilities(self, group: int, targets: Tensor, vertices: int) -> Tensor:
        p = torch.zeros(vertices, dtype=torch.float64)
        p[targets] = 1 / max(self.schedule.count, 1)
        return p

    def prepare_for(self, graph: GraphView) -> "Bulk":
        if isinstance(graph, WholeGraph):
            products = BulkGraph(graph.A, graph.ledger, graph.groups, graph.device)
        else:
            assert isinstance(graph, BulkGraph), "a bulk needs products with the graph"
            products = graph
        places = PositionMap(0 if is_on_gpu(graph.A.val) else graph.A.cols, graph.A.val.device)
        return Bulk(self.schedule, self.algorithm, self.bulk, self.mapped, products, places)

    def held_tensors(self) -> list[tuple[TensorName, Tensor]]:
        return [(TensorName.INDEX, self.places.positions)] if self.mapped else []

    def memory(self, vertices: int) -> dict[TensorName, int]:
        return {TensorName.INDEX: LONG * vertices} if self.mapped else {}

    def mini_batch(self, step: int, group: int, graph: GraphView, targets: Tensor) -> MiniBatch:
        """Draw a whole bulk in its first step; draw mini-batches of other ranks' groups one by one."""
        if self.graph is None:
            return self.prepare_for(graph).mini_batch(step, group, graph, targets)
        if targets.is_meta:
            batch = self.schedule.locate_batch(step, group)
            return self.expected_shapes(graph.A, self.schedule.batch_targets(*batch, targets))
        groups = list(self.graph.groups)
        if group not in groups:
            return take_batch(self.draw(range(step, step + 1), [group], targets), 0)
        turn = step % self.schedule.steps
        first = step - turn % self.steps_per_bulk
        if first != self.first_step:
            steps = range(first, min(first + self.steps_per_bulk, step - turn + self.schedule.steps))
            self.graph.start_bulk(steps)
            self.layers, self.shapes = [], []
            self.layers = [self._move_to_device(layer) for layer in self.draw(steps, groups, targets)]
            self.first_step = first
        with self.graph.ledger.in_phase(Phase.EXTRACT):
            return take_batch(self.layers, (step - first) * len(groups) + groups.index(group))

    def draw(self, steps: range, groups: Sequence[int], targets: Tensor) -> list[SampledLayer]:
        """Draw the layers of the mini-batches of some groups in some steps of one epoch."""
        assert self.graph is not None, "a sampler in bulk is prepared for a graph first"
        located = [self.schedule.locate_batch(step, group) for step in steps for group in groups]
        batches = [self.schedule.batch_targets(epoch, number, targets) for epoch, number in located]
        numbers = [number for _, number in located]
        return self.algorithm.draw(self.graph, self.places, located[0][0], numbers, batches)

    def _move_to_device(self, layer: SampledLayer) -> SampledLayer:
        """Move a layer to the rank's device: a no-op in a run, and to meta tensors in a replay."""
        assert self.graph is not None
        A, device = layer.A, self.graph.device
        self.shapes += [each.to(device) for each in (A.rowptr, layer.inputs.vertices)]
        return layer._replace(A=A._replace(col=A.col.to(device), val=A.val.to(device)))


def take_batch(layers: Sequence[SampledLayer], place: int) -> MiniBatch:
    """Return one batch of a bulk."""
    vertices = [
        layers[0].inputs.batch_vertices(place),
        *(layer.outputs.batch_vertices(place) for layer in layers),
    ]
    return MiniBatch(vertices, [matrix_of_batch(*layer, place) for layer in layers])
