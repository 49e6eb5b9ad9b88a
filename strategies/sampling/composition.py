"""A strategy that samples, composed of parts, and the operators of one rank.

Every rank trains a copy of the model on mini-batches of its own; gradients are averaged over all mini-batches of a
step. Systems differ in four parts: the sampler, the placement of the graph, the placement of the features, and whether
a mini-batch is prefetched while the rank trains on the one before. Each part answers for its own share of the words, of
the bytes and of a rank's work. The strategy is their sum, and its operators are the same for all systems. The table of
systems is in `systems`.

Prefetching has two stages. The features of the next mini-batch travel while the rank trains. Where the graph is whole
on a rank, a thread also draws the mini-batch after that one. On a partitioned graph a draw sends messages; calls belong
to the thread that trains, because all ranks must make them in one order, so such a draw is not behind training.

Legend: N vertices of a layer's output, K of its input, which begin with the N; F features in, H features out.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.device import upload
from harness.kernels import Csr, cast, transpose
from harness.kernels.attention import transpose_with_positions
from harness.kernels.random import Index
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.models import SplitAccuracy
from harness.parallel.label_loss import LabelLoss, make_label_loss
from harness.parallel.prefetch import Prefetcher
from harness.parallel.row_attention import Edges, apply_per_head, attend_rows
from harness.parallel.row_strategy import LayerOperators, RowStrategy, reduce_all_gradients, to_index_tensor
from harness.strategies.sampling.features import Arriving, FeaturePlacement
from harness.strategies.sampling.graph_placement import (
    BlockLayout,
    Foresight,
    GraphPlacement,
    Rank,
    Tally,
    WholeGraph,
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
from harness.strategy.counts import LABELS

P = AxisName.P


class Composition(NamedTuple):
    """A row of the table of systems."""

    sampler: Sampler
    graph: GraphPlacement
    features: FeaturePlacement
    prefetch: bool = False
    """Fetch the features of a mini-batch while the rank trains on the one before, and draw the next where it can."""


class SampledStrategy(RowStrategy):
    """One mini-batch a rank, for a model whose features are fixed: the sum of the parts of a composition."""

    promise = Promise.ESTIMATOR
    mini_batches = True
    parts = True
    recomputes = True
    models: ClassVar[tuple[str, ...]] = ("gcn", "sage", "gat")
    axes: ClassVar[tuple[AxisName, ...]] = (P,)
    partitioned_over: ClassVar[AxisName | None] = P
    """The axis over which vertices are in block rows; with None every rank has all vertices."""

    @abstractmethod
    def compose(self) -> Composition:
        """The parts of the system, from its parameters."""

    @cached_property
    def composed(self) -> Composition:
        return self.compose()

    def neighbours(self, fanouts: tuple[int, ...], *, own: bool = False) -> Neighbours:
        """The sampler of neighbours for this system, on a rank's own targets or on any."""
        spec = self.spec
        return Neighbours(spec.seed, spec.training.batch, fanouts, spec.model.layers, self.groups, own)

    @property
    def layout(self) -> BlockLayout:
        copied = [axis for axis in self.axes if axis != self.partitioned_over]
        return BlockLayout(self.grid, self.blocks(), self.partitioned_over, copied[0] if copied else None)

    def promised(self) -> Promise:
        """Attention over drawn neighbours estimates nothing: the softmax of some scores has another mean."""
        return Promise.APPROXIMATE if self.spec.model.kind == "gat" else self.promise

    def refuse(self) -> str | None:
        if self.spec.model.order == "combine_first":
            return "it multiplies (A H) W: use order aggregate_first"
        if self.spec.training.features:
            return "its features are fixed: leave training.features at false"
        return super().refuse()

    @property
    def groups(self) -> int:
        return self.spec.ranks

    @property
    def steps(self) -> int:
        return self.composed.sampler.steps(self.facts.trained_on(self.spec.protocol))

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        graph = WholeGraph(A)
        return self.composed.sampler.on(graph).mini_batch(step, group, graph, targets)

    def blocks(self) -> list[range]:
        if self.partitioned_over is None:
            return [range(self.facts.vertices)]
        return self.facts.blocks(self.grid[self.partitioned_over])

    def rows(self, at: Coordinates) -> range:
        return self.layout.rows(at)

    def operators(self, ctx: Context) -> "SampledOperators":
        feed = Feed(ctx, self)
        return SampledOperators(feed, feed.whole)

    # Words.

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """The words of the two placements and, for every step, the two numbers of the loss and the gradients."""
        words, axes = Words(self.grid, self.recomputed), self.axes
        steps = range(epoch * self.steps, (epoch + 1) * self.steps)
        tally = Tally(words, self.layout, at, self.facts, steps, self.foresight(counts))
        self.composed.features.add_words(tally)
        self.composed.graph.add_words(tally)
        weights = sum(rows * cols for _, _, (rows, cols) in self.weights)
        words.put(Direction.FORWARD, -1, Op.ALL_REDUCE, axes, TensorName.COUNT, self.steps)
        words.put(Direction.FORWARD, -1, Op.ALL_REDUCE, axes, TensorName.LOSS, self.steps)
        words.put(Direction.BACKWARD, -1, Op.ALL_REDUCE, axes, TensorName.DW, self.steps * weights)
        return words

    def foresight(self, counts: Counts) -> Foresight:
        """The mini-batches of all groups, from A in the precision of a run, and the targets."""

        def read() -> Csr:
            return cast(counts.whole(), getattr(torch, self.spec.precision))

        return Foresight(self.composed.sampler, read, counts.targets(self.spec.protocol))

    # Bytes.

    def transposed_options(self) -> list[bool]:
        """A alone: only samples are transposed."""
        return [False]

    def matrix_pieces(self, at: Coordinates) -> list[Piece]:
        return [self.composed.graph.piece(self.layout, at)]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """The bytes of the rank's piece of the graph, of its features, of its caches and tables, and of labels."""
        everyone, held = self.layout.vertices, self.composed.features.holdings(self.layout, at, counts)
        total = Counter(super().memory(at, counts))
        total.update(self.composed.sampler.memory(len(everyone)))
        total[TensorName.A] += held.matrix_bytes
        total[TensorName.X] += WORD[self.spec.precision] * held.rows * self.facts.features
        total[TensorName.INDEX] += LONG * held.numbers
        if held.every_label:
            total[TensorName.LABELS] += (
                label_bytes(Piece(everyone, range(self.facts.classes)), self.facts.task) // LABELS
            )
        return {name: size for name, size in total.items() if size}

    def samples(self, counts: Counts) -> int:
        """Bytes of the expected vertices and matrices of a bulk and, for a partitioned graph, of the fetched rows."""
        sampler, graph = self.composed.sampler, self.composed.graph
        if not sampler.at_once:
            return 0
        foresight, precision = self.foresight(counts), self.spec.precision
        A, at_once = foresight.graph.A, min(sampler.at_once, self.steps)
        one = sampler.expected(A, foresight.targets[: self.spec.training.batch])
        batches, rows, entries = graph.bulk_counts(self.layout, A, at_once, len(one.vertices[1]))
        drawn = LONG * sum(map(len, one.vertices)) + sum(csr_bytes(S.rows, S.nnz, precision) for S in one.A)
        return batches * drawn + (csr_bytes(rows, entries, precision) if rows else 0)


class Step(NamedTuple):
    """The input of the operators: the whole graph, or the mini-batch of a training step."""

    number: int | None
    """None for the whole graph."""
    A: Sequence[tuple[Csr, Csr]]
    """The sampled matrix of each layer, and its transpose, `turned` for attention; empty for the whole graph."""
    X: Tensor
    loss: LabelLoss
    outputs: Sequence[Index]
    """The vertices of each layer's output."""


class Drawn(NamedTuple):
    """A mini-batch; and, if a thread has drawn it, each of its matrices by identity with the transpose."""

    batch: MiniBatch
    matrices: Mapping[int, tuple[Csr, Csr]] | None = None
    shapes: Sequence[Tensor] = ()
    """Of shapes alone, the vertices as a GPU holds them from here on: the vertices themselves are drawn on the host."""


class Feed:
    """The parts at work on one rank: the steps, one after the other, and the whole graph for evaluation."""

    def __init__(self, ctx: Context, strategy: SampledStrategy) -> None:
        self.ctx, composed, layout = ctx, strategy.composed, strategy.layout
        self.everyone = ctx.grid.axis(strategy.axes)
        """All ranks, each with a mini-batch of its own."""
        over = ctx.grid.axis((layout.over,) if layout.over else ())
        output = strategy.output(ctx.at)
        loss = make_label_loss(ctx, output, (ctx.spec.model.layers - 1) % 2, over, None, over)
        X = ctx.blocks.features(*strategy.input(ctx.at))
        self.whole = Step(None, (), X, loss, [output.rows] * ctx.spec.model.layers)
        self.A = ctx.blocks.adjacency(*composed.graph.piece(layout, ctx.at))
        self.targets = ctx.blocks.targets()
        foresight = Foresight(composed.sampler, ctx.blocks.replay_graph(), self.targets, ctx.once)
        rank = Rank(ctx, layout, self.everyone.index, foresight)
        self.graph = composed.graph.on(rank)
        self.sampler = composed.sampler.on(self.graph)
        for name, tensor in self.sampler.held():
            ctx.memory.hold(name, tensor)
        self.store = composed.features.on(rank, X, loss)
        self.reverse = transpose_with_positions if ctx.spec.model.kind == "gat" else transpose
        self.steps, self.prefetch = strategy.steps, composed.prefetch
        self._begun: dict[int, tuple[Drawn, Arriving]] = {}
        ahead = composed.prefetch and isinstance(self.graph, WholeGraph)
        # A step trains on one item while the features of the next one travel.
        self._ahead = Prefetcher(self._draw_whole, ctx.device, ctx.ledger, in_use=2) if ahead else None

    def take(self, number: int) -> Step:
        """A training step; with prefetching, the features of the next step travel from now on."""
        drawn, rows = self._begun.pop(number) if number in self._begun else self._begin(number)
        X_KF = rows.wait()
        if self.prefetch and (number + 1) % self.steps:
            self._begun[number + 1] = self._begin(number + 1)
        ledger, device, batch = self.ctx.ledger, self.ctx.device, drawn.batch
        with ledger.phase(self.store.phase), ledger.op(Op.COPY, tensor=TensorName.A):
            importance = batch.importance
            if importance is not None:
                importance = importance.to(device=device, dtype=X_KF.dtype)
            loss = self.store.loss(batch.vertices[-1], importance)
            matrices = self._with_transposes(batch) if drawn.matrices is None else drawn.matrices
            once = {key: (_uploaded(A, device), _uploaded(A_T, device)) for key, (A, A_T) in matrices.items()}
            outputs = [upload(each, device) for each in (drawn.shapes or batch.vertices)[1:]]
            return Step(number, [once[id(A)] for A in batch.A], X_KF, loss, outputs)

    def _begin(self, number: int) -> tuple[Drawn, Arriving]:
        """Draws a mini-batch, or waits until the thread has drawn it, and begins to fetch its features."""
        with self.ctx.ledger.phase(Phase.SAMPLE), self.ctx.ledger.op(Op.COPY, tensor=TensorName.A):
            drawn = self._ahead.take(number) if self._ahead else Drawn(self._draw(number))
            self.ctx.ledger.record_sampled(sum(A.nnz for A in drawn.batch.A))
        return drawn, self.store.begin(number, drawn.batch.vertices[0], later=self.prefetch)

    def _draw(self, number: int) -> MiniBatch:
        return self.sampler.mini_batch(number, self.everyone.index, self.graph, self.targets)

    def _draw_whole(self, number: int) -> Drawn:
        """A mini-batch with its transposes; this runs on a thread, and touches neither the ledger nor an axis."""
        batch, device = self._draw(number), self.ctx.device
        matrices = self._with_transposes(batch)
        if device.type != "meta":
            return Drawn(batch, matrices)
        on_gpu = {key: (_uploaded(A, device), _uploaded(A_T, device)) for key, (A, A_T) in matrices.items()}
        return Drawn(batch, on_gpu, [upload(vertices, device) for vertices in batch.vertices])

    def _with_transposes(self, batch: MiniBatch) -> dict[int, tuple[Csr, Csr]]:
        """Each layer's matrix and its transpose; layers with one matrix share it."""
        return {id(A): (A, self.reverse(A)) for A in batch.A}


def _uploaded(A: Csr, device: torch.device) -> Csr:
    """A matrix on a device, where it was drawn unless the sampler draws on the host alone."""
    return Csr(upload(A.rowptr, device), upload(A.col, device), upload(A.val, device), A.cols)


class SampledOperators(LayerOperators):
    """The operators of one rank: on a sampled mini-batch in a training step, on the whole graph in an evaluation."""

    def __init__(self, feed: Feed, step: Step) -> None:
        super().__init__(feed.ctx, step.outputs[-1], feed.everyone.index, step.number)
        self.feed, self.data = feed, step

    def for_step(self, step: int) -> "SampledOperators":
        return SampledOperators(self.feed, self.feed.take(step))

    def inputs(self) -> Tensor:
        return self.data.X

    def convolve(self, layer: int, H_KF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.data.A:
                T_NF = self.kernels.aggregate(*self.data.A[layer], H_KF, TensorName.T)
            else:
                T_NF = self.feed.store.aggregate(self.feed.A, H_KF)
            return self.kernels.gemm(T_NF, W_FH, TensorName.Z)

    def attend(self, layer: int, H_KF: Tensor, W_FH: Tensor, a_2H: Tensor) -> Tensor:
        """T = H W, then attention of each output vertex over the entries that were drawn for the vertex."""
        with self.ledger.phase(Phase.CONVOLVE, layer):
            T_KH = self.kernels.gemm(H_KF, W_FH, TensorName.T)
            if self.data.A:
                return attend_rows(self, layer, Edges(*self.data.A[layer]), T_KH, a_2H)
            store, A = self.feed.store, self.feed.A
            return apply_per_head(self, layer, lambda T_QNF: store.attend(A, T_QNF, a_2H), T_KH)

    def rows_of(self, layer: int) -> Tensor:
        return to_index_tensor(self.data.outputs[layer], self.device).to(self.device)

    def loss(self, Z_NC: Tensor) -> Tensor:
        return self.data.loss.mean_of_batches(Z_NC, self.feed.everyone, self.feed.everyone)

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Adds up the gradients of all mini-batches."""
        reduce_all_gradients(weights, self.feed.everyone)

    def evaluate(self, Z_NC: Tensor) -> dict[str, SplitAccuracy]:
        return self.data.loss.evaluate(Z_NC)
