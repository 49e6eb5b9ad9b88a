"""Who has what in bulk sampling, and what is said: features in 1.5D, batches dealt to all ranks, the graph everywhere.

Legend: N vertices of a block row, over the axis row and copied along the axis col; a batch's vertices K of its input.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harness.kernels import Csr, cast
from harness.ledger import AxisName, Direction, Op, TensorName
from harness.parallel.batches import Batches
from harness.parallel.bulk import Bulk, WholeGraph, alone
from harness.parallel.minibatches import BatchStrategy
from harness.strategy import (
    LONG,
    Coordinates,
    Counts,
    MiniBatch,
    Piece,
    Words,
    label_bytes,
)
from harness.strategy.sizes import LABELS
from harness.validation import Frozen
from strategies.bulk.words import say_sampling

ROW, COL = AxisName.ROW, AxisName.COL
FORWARD = Direction.FORWARD
"""The axis row joins the ranks of a grid column, the axis col those of a grid row, as in CAGNET's 1.5D."""


class BulkParams(Frozen):
    """What all samplers have."""

    bulk: int = Field(16, ge=0, examples=[2, 0])
    """Batches that a rank draws at once, the paper's k over P; 0 draws those of an epoch."""
    graph: Literal["replicated", "partitioned"] = "replicated"
    """On every rank (section 5.1), or in block rows as the features are (section 5.2)."""


class BulkScheme(BatchStrategy):
    """Everything but the sampler."""

    models = ("gcn", "sage")
    axes: ClassVar[tuple[AxisName, ...]] = (ROW, COL)
    rows_over = partitioned_over = ROW
    params: BulkParams

    @property
    @abstractmethod
    def bulk(self) -> Bulk:
        """The sampler."""

    @property
    def groups(self) -> int:
        return self.spec.ranks

    @property
    def batches(self) -> Batches:
        targets = self.facts.trained_on(self.spec.protocol)
        return Batches(self.spec.seed, self.spec.training.batch, self.groups, targets)

    @property
    def steps(self) -> int:
        return self.batches.steps

    @property
    def partitioned(self) -> bool:
        return self.params.graph == "partitioned"

    def graph(self, counts: Counts) -> tuple[Csr, Tensor]:
        """A as a run has it, and the targets."""
        return cast(counts.whole(), getattr(torch, self.spec.precision)), counts.targets(self.spec.protocol)

    @property
    def layers(self) -> int:
        return self.spec.model.layers

    @property
    def at_once(self) -> int:
        """Steps of a bulk."""
        return self.params.bulk or self.steps

    @property
    def layer_wise(self) -> bool:
        return self.bulk.sampler != "graphsage"

    def held(self, at: Coordinates) -> range:
        """The rows of A that the rank at `at` has."""
        return self.rows(at) if self.partitioned else range(self.facts.vertices)

    def together(self, row: int) -> list[int]:
        """The groups of a grid row: its ranks."""
        return [row * self.grid[COL] + member for member in range(self.grid[COL])]

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        return alone(self.bulk, self.batches, WholeGraph(A), targets, step, group)

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Of a replicated graph nothing in the sampling; features that this block row lacks of a batch; gradients."""
        words, steps, (A, targets) = Words(self.grid), self.steps, self.graph(counts)
        for step in range(epoch * steps, (epoch + 1) * steps):
            wanted, asked = self.fetched(step, at, A, targets)
            words.put(FORWARD, -1, Op.ALL_TO_ALL, ROW, TensorName.COUNT, self.grid[ROW])
            words.put(FORWARD, -1, Op.ALL_TO_ALL, ROW, TensorName.INDEX, asked)
            words.put(FORWARD, -1, Op.ALL_TO_ALL, ROW, TensorName.X, wanted * self.facts.features)
        if self.partitioned:
            say_sampling(words, self, at, A, targets, epoch)
        self.say_training(words)
        return words

    def fetched(self, step: int, at: Coordinates, A: Csr, targets: Tensor) -> tuple[int, int]:
        """Vertices whose features the rank at `at` fetches from its grid column, and that others ask it for."""
        own, wanted, asked = self.rows(at), 0, 0
        for row in range(self.grid[ROW]):
            K = self.mini_batch(step, row * self.grid[COL] + at[COL], A, targets).vertices[0].unique()
            here = int(((own.start <= K) & (own.stop > K)).sum())
            if row == at[ROW]:
                wanted = len(K) - here
            else:
                asked += here
        return wanted, asked

    def multiplied(self, at: Coordinates) -> list[Piece]:
        return [Piece(self.held(at), range(self.facts.vertices))]

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """What is held of the graph, a map of its vertices, a block row of features; labels of all, to train on."""
        everyone, task = Piece(range(self.facts.vertices), range(self.facts.classes)), self.facts.task
        held = super().memory(at, counts)
        held[TensorName.LABELS] += label_bytes(everyone, task) // LABELS
        return {**held, TensorName.INDEX: LONG * self.facts.vertices}
