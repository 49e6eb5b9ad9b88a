"""A sampling strategy, composed of parts, and the operators of one rank.

Every rank trains a copy of the model on its own mini-batches; gradients are averaged over all mini-batches of a step.
Systems differ in four parts: the sampler, the graph placement, the feature placement, and whether the next mini-batch
is prefetched during training. Each part accounts for its share of the words, the bytes and a rank's work. The strategy
is their sum, and its operators are the same for all systems, which `systems` lists.

Prefetching has two stages. The features of the next mini-batch are fetched while the rank trains. If the graph is
replicated, a thread also draws the mini-batch after that one. On a partitioned graph, drawing sends messages, and all
ranks must issue their calls in the same order, so only the training thread may draw.

Legend: N vertices of a layer's output, K of its input, which begin with the N; F features in, H features out.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.base.device import upload
from harness.kernels import Csr, cast, transpose
from harness.kernels.attention import transpose_with_positions
from harness.kernels.random import Index
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.strategies.sampling.features import FeaturePlacement, PendingRows
from harness.strategies.sampling.graph_placement import (
    BlockLayout,
    GlobalReplay,
    GraphPlacement,
    Rank,
    WholeGraph,
    WordCount,
)
from harness.strategies.sampling.sampler import Neighbours, Sampler
from harness.strategy import (
    LONG,
    WORD,
    Context,
    Coordinates,
    Counts,
    MiniBatch,
    Piece,
    Promise,
    Words,
    csr_bytes,
    label_bytes,
)
from harness.strategy.counts import LABELS, select_values
from harness.strategy.models import Predictions, SplitAccuracy
from harness.strategy.parallel.label_loss import LabelLoss, make_label_loss
from harness.strategy.parallel.prefetch import Prefetcher
from harness.strategy.parallel.row_attention import Edges, apply_per_head, attend_rows
from harness.strategy.parallel.row_strategy import (
    LayerOperators,
    RowStrategy,
    reduce_all_gradients,
    to_index_tensor,
)

P = AxisName.P


class Composition(NamedTuple):
    """The parts of a system."""

    sampler: Sampler
    graph: GraphPlacement
    features: FeaturePlacement
    prefetch: bool = False
    """Fetch the features of the next mini-batch during training, and draw the one after it if the graph is local."""


class SampledStrategy(RowStrategy):
    """Trains one mini-batch per rank, for a model with fixed features, by the parts of a composition."""

    promise = Promise.ESTIMATOR
    mini_batches = True
    has_model_parts = True
    combine_first_refusal = (
        "a mini-batch aggregates sampled rows and then multiplies its fewer output rows by W, as in GraphSAGE's "
        "Algorithm 1; the order sends no elements"
    )
    can_recompute = True
    models: ClassVar[tuple[str, ...]] = ("gcn", "sage", "gat")
    axes: ClassVar[tuple[AxisName, ...]] = (P,)
    partitioned_over: ClassVar[AxisName | None] = P
    """The axis over which vertices are split into block rows; None if every rank has all vertices."""

    @abstractmethod
    def compose(self) -> Composition:
        """Create the parts of the system from its parameters."""

    @cached_property
    def composed(self) -> Composition:
        return self.compose()

    def neighbours(self, fanouts: tuple[int, ...], *, own: bool = False) -> Neighbours:
        """Return a neighbour sampler, for a rank's own targets or for any targets."""
        spec = self.spec
        return Neighbours(spec.seed, spec.training.batch, fanouts, spec.model.layers, self.groups, own)

    @property
    def layout(self) -> BlockLayout:
        copied = [axis for axis in self.axes if axis != self.partitioned_over]
        return BlockLayout(self.grid, self.blocks(), self.partitioned_over, copied[0] if copied else None)

    @property
    def effective_promise(self) -> Promise:
        """Approximate for attention, because a softmax over sampled scores is biased."""
        return Promise.APPROXIMATE if self.spec.model.kind == "gat" else self.promise

    def refuse(self) -> str | None:
        if self.spec.training.features:
            return "its features are fixed: leave training.features at false"
        return super().refuse()

    @property
    def groups(self) -> int:
        return self.spec.ranks

    @property
    def steps(self) -> int:
        return self.composed.sampler.steps(self.facts.count_trained_vertices(self.spec.protocol))

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        graph = WholeGraph(A)
        return self.composed.sampler.prepare_for(graph).mini_batch(step, group, graph, targets)

    def blocks(self) -> list[range]:
        if self.partitioned_over is None:
            return [range(self.facts.vertices)]
        return self.facts.blocks(self.grid[self.partitioned_over])

    def rows(self, at: Coordinates) -> range:
        return self.layout.rows(at)

    def operators(self, ctx: Context) -> "SampledOperators":
        source = StepSource(ctx, self)
        return SampledOperators(source, source.whole)

    # Words.

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Return the words of both placements, and of the loss and the gradients in each step."""
        words, axes = Words(self.grid, self.recomputed_layers), self.axes
        steps = range(epoch * self.steps, (epoch + 1) * self.steps)
        count = WordCount(words, self.layout, at, self.facts, steps, self.global_replay(counts))
        self.composed.features.add_words(count)
        self.composed.graph.add_words(count)
        weights = sum(rows * cols for _, _, (rows, cols) in self.weights)
        words.add(Direction.FORWARD, -1, Op.ALL_REDUCE, axes, TensorName.COUNT, self.steps)
        words.add(Direction.FORWARD, -1, Op.ALL_REDUCE, axes, TensorName.LOSS, self.steps)
        words.add(Direction.BACKWARD, -1, Op.ALL_REDUCE, axes, TensorName.DW, self.steps * weights)
        return words

    def global_replay(self, counts: Counts) -> GlobalReplay:
        """Return a replay of all groups' mini-batches, with the model's A in the precision of a run."""

        def read() -> Csr:
            A = cast(counts.adjacency(), getattr(torch, self.spec.precision))
            return select_values(A, self.spec.model.kind)

        return GlobalReplay(self.composed.sampler, read, counts.targets(self.spec.protocol))

    # Bytes.

    def transposed_options(self) -> list[bool]:
        """Return A only: samples are transposed, not the graph."""
        return [False]

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        return [self.composed.graph.piece(self.layout, at)]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes of the rank's piece of the graph, its features, caches, tables, labels and targets."""
        everyone, held = self.layout.vertices, self.composed.features.held_sizes(self.layout, at, counts)
        total = Counter(super().memory(at, counts))
        total.update(self.composed.sampler.memory(len(everyone)))
        total[TensorName.A] += held.matrix_bytes
        total[TensorName.X] += WORD[self.spec.precision] * held.rows * self.facts.features
        total[TensorName.INDEX] += LONG * held.numbers
        if self.spec.machine.device == "cpu":  # the targets stay on the host
            total[TensorName.INDEX] += LONG * self.facts.count_trained_vertices(self.spec.protocol)
        if held.every_label:
            labels = Piece(everyone, range(self.facts.classes))
            total[TensorName.LABELS] += label_bytes(labels, self.facts.task) // LABELS
        return {name: size for name, size in total.items() if size}

    def sample_bytes(self, counts: Counts) -> int:
        """Return the expected bytes of a bulk: vertices, matrices and, in a partitioned graph, fetched rows."""
        sampler, graph = self.composed.sampler, self.composed.graph
        if not sampler.steps_per_bulk:
            return 0
        global_replay, precision = self.global_replay(counts), self.spec.precision
        A, steps_per_bulk = global_replay.graph.A, min(sampler.steps_per_bulk, self.steps)
        one = sampler.expected_shapes(A, global_replay.targets[: self.spec.training.batch])
        batches, rows, entries = graph.bulk_counts(self.layout, A, steps_per_bulk, len(one.vertices[1]))
        drawn = LONG * sum(map(len, one.vertices)) + sum(csr_bytes(S.rows, S.nnz, precision) for S in one.A)
        return batches * drawn + (csr_bytes(rows, entries, precision) if rows else 0)


MatrixPair = tuple[Csr, Csr | None]
"""A matrix and its transpose, which is None where no gradient needs it."""


class Step(NamedTuple):
    """The input of the operators: the whole graph, or a training step's mini-batch."""

    number: int | None
    """None for the whole graph."""
    A: Sequence[MatrixPair]
    """The sampled matrix of each layer and its transpose, with positions for attention; empty for the whole graph."""
    X: Tensor
    loss: LabelLoss
    outputs: Sequence[Index]
    """The vertices of each layer's output."""


class Drawn(NamedTuple):
    """A mini-batch; if a thread has drawn it, also its matrices with their transposes, by identity."""

    batch: MiniBatch
    matrices: Mapping[int, MatrixPair] | None = None
    shapes: Sequence[Tensor] = ()
    """In a replay, the vertices as the device holds them from here on; the vertices are drawn on the host."""


class StepSource:
    """Prepares one rank's input: training steps one after the other, and the whole graph for evaluation."""

    def __init__(self, ctx: Context, strategy: SampledStrategy) -> None:
        self.ctx, composed, layout = ctx, strategy.composed, strategy.layout
        self.everyone = ctx.grid.axis(strategy.axes)
        """The axis of all ranks, each of which trains on its own mini-batch."""
        over = ctx.grid.axis((layout.over,) if layout.over else ())
        output = strategy.output_piece(ctx.at)
        loss = make_label_loss(ctx, output, (ctx.spec.model.layers - 1) % 2, over, None, over)
        X = ctx.blocks.features(*strategy.input_piece(ctx.at))
        self.whole = Step(None, (), X, loss, [output.rows] * ctx.spec.model.layers)
        self.A = ctx.blocks.adjacency(*composed.graph.piece(layout, ctx.at))
        self.targets = ctx.memory.hold_on_host(TensorName.INDEX, ctx.blocks.targets())
        global_replay = GlobalReplay(
            composed.sampler, ctx.blocks.replay_reader(), self.targets, ctx.compute_once
        )
        rank = Rank(ctx, layout, self.everyone.index, global_replay)
        self.graph = composed.graph.create_view(rank)
        self.sampler = composed.sampler.prepare_for(self.graph)
        for name, tensor in self.sampler.held_tensors():
            ctx.memory.hold(name, tensor)
        for tensor in self.sampler.host_tensors():
            ctx.memory.hold_on_host(TensorName.A, tensor)
        self.store = composed.features.create_store(rank, X, loss)
        attends = ctx.spec.model.kind == "gat"
        self.reverse = transpose_with_positions if attends else transpose
        self.first_transposed = 0 if attends or ctx.spec.model.projection else 1
        """The first layer whose matrix multiplies what has a gradient: the fixed features have none, but attention and
        a projection multiply them by weights first."""
        self.steps, self.prefetch = strategy.steps, composed.prefetch
        self._in_flight: dict[int, tuple[Drawn, PendingRows]] = {}
        ahead = composed.prefetch and isinstance(self.graph, WholeGraph)
        # A step trains on one item while the features of the next one are in flight.
        self._ahead = Prefetcher(self._draw_whole, ctx.device, ctx.ledger, in_use=2) if ahead else None

    def take_step(self, number: int) -> Step:
        """Return a training step; with prefetching, start to fetch the features of the next step."""
        drawn, rows = self._in_flight.pop(number) if number in self._in_flight else self._start_fetch(number)
        X_KF = rows.wait()
        if self.prefetch and (number + 1) % self.steps:
            self._in_flight[number + 1] = self._start_fetch(number + 1)
        ledger, device, batch = self.ctx.ledger, self.ctx.device, drawn.batch
        with ledger.phase(self.store.phase), ledger.op(Op.COPY, tensor=TensorName.A):
            importance = batch.importance
            if importance is not None:
                importance = importance.to(device=device, dtype=X_KF.dtype)
            loss = self.store.loss(batch.vertices[-1], importance)
            matrices = self._add_transposes(batch) if drawn.matrices is None else drawn.matrices
            on_device = _upload_pairs(matrices, device)
            outputs = [upload(each, device) for each in (drawn.shapes or batch.vertices)[1:]]
            return Step(number, [on_device[id(A)] for A in batch.A], X_KF, loss, outputs)

    def _start_fetch(self, number: int) -> tuple[Drawn, PendingRows]:
        """Draw a mini-batch, or wait until the thread has drawn it, and start to fetch its features."""
        with self.ctx.ledger.phase(Phase.SAMPLE), self.ctx.ledger.op(Op.COPY, tensor=TensorName.A):
            drawn = self._ahead.take(number) if self._ahead else Drawn(self._draw(number))
            self.ctx.ledger.record_sampled(sum(A.nnz for A in drawn.batch.A))
        return drawn, self.store.start_fetch(number, drawn.batch.vertices[0], later=self.prefetch)

    def _draw(self, number: int) -> MiniBatch:
        return self.sampler.mini_batch(number, self.everyone.index, self.graph, self.targets)

    def _draw_whole(self, number: int) -> Drawn:
        """Draw a mini-batch and its transposes; runs on a thread, without the ledger and without communication."""
        batch, device = self._draw(number), self.ctx.device
        matrices = self._add_transposes(batch)
        if device.type != "meta":
            return Drawn(batch, matrices)
        return Drawn(
            batch, _upload_pairs(matrices, device), [upload(vertices, device) for vertices in batch.vertices]
        )

    def _add_transposes(self, batch: MiniBatch) -> dict[int, MatrixPair]:
        """Return each layer's matrix with its transpose; layers with the same matrix share them."""
        needed = {id(A) for A in batch.A[self.first_transposed :]}
        return {id(A): (A, self.reverse(A) if id(A) in needed else None) for A in batch.A}


def _upload_pairs(pairs: Mapping[int, MatrixPair], device: torch.device) -> dict[int, MatrixPair]:
    """Move matrices and their transposes to a device, where they already are unless the sampler draws on the host."""
    return {
        key: (_upload_matrix(A, device), _upload_matrix(A_T, device) if A_T else None)
        for key, (A, A_T) in pairs.items()
    }


def _upload_matrix(A: Csr, device: torch.device) -> Csr:
    return Csr(upload(A.rowptr, device), upload(A.col, device), upload(A.val, device), A.cols)


class SampledOperators(LayerOperators):
    """One rank's operators: on a sampled mini-batch in training, and on the whole graph in evaluation."""

    def __init__(self, source: StepSource, step: Step) -> None:
        super().__init__(source.ctx, step.outputs[-1], source.everyone.index, step.number)
        self.source, self.data = source, step

    def for_step(self, step: int) -> "SampledOperators":
        return SampledOperators(self.source, self.source.take_step(step))

    def inputs(self) -> Tensor:
        return self.data.X

    def convolve(self, layer: int, H_KF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.data.A:
                T_NF = self.kernels.aggregate(*self.data.A[layer], H_KF, TensorName.T)
            else:
                T_NF = self.source.store.aggregate(self.source.A, H_KF)
            return self.kernels.gemm(T_NF, W_FH, TensorName.Z)

    def attend(self, layer: int, H_KF: Tensor, W_FH: Tensor, a_2H: Tensor) -> Tensor:
        """Compute T = H W, then attention of each output vertex over its drawn entries."""
        with self.ledger.phase(Phase.CONVOLVE, layer):
            T_KH = self.kernels.gemm(H_KF, W_FH, TensorName.T)
            if self.data.A:
                A, A_T = self.data.A[layer]
                assert A_T is not None
                return attend_rows(self, layer, Edges(A, A_T), T_KH, a_2H)
            store, A = self.source.store, self.source.A
            return apply_per_head(self, layer, lambda T_QNF: store.attend(A, T_QNF, a_2H), T_KH)

    def rows_of(self, layer: int) -> Tensor:
        return to_index_tensor(self.data.outputs[layer], self.device).to(self.device)

    def loss(self, Z_NC: Tensor) -> Tensor:
        return self.data.loss.mean_of_batches(Z_NC, self.source.everyone, self.source.everyone)

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Sum the gradients over all mini-batches."""
        reduce_all_gradients(weights, self.source.everyone)

    def evaluate(self, Z_NC: Tensor) -> dict[str, SplitAccuracy]:
        return self.data.loss.evaluate(Z_NC)

    def gather_predictions(self, Z_NC: Tensor) -> dict[str, Predictions]:
        return self.data.loss.gather_predictions(Z_NC)
