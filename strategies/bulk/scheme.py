"""Who has what in bulk sampling, and what is said: features in 1.5D, batches dealt to all ranks, the graph everywhere.

Legend: N vertices of a block row, over the axis row and copied along the axis col; a batch's vertices K of its input.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harness.kernels import Csr
from harness.kernels.compact import expected
from harness.ledger import AxisName, TensorName
from harness.parallel.batches import Batches
from harness.parallel.bulk import Bulk, WholeGraph, alone, expected_batch
from harness.parallel.fetching import FetchingStrategy
from harness.parallel.inclusion import Stripe, inclusion, listeners
from harness.strategy import LONG, Coordinates, Counts, MiniBatch, Words, csr_bytes
from harness.validation import Frozen
from strategies.bulk.words import say_sampling

ROW, COL = AxisName.ROW, AxisName.COL
"""The axis row joins the ranks of a grid column, the axis col those of a grid row, as in CAGNET's 1.5D."""


class BulkParams(Frozen):
    """What all samplers have."""

    bulk: int = Field(16, ge=0, examples=[2, 0])
    """Batches that a rank draws at once, the paper's k over P; 0 draws those of an epoch."""
    graph: Literal["replicated", "partitioned"] = "replicated"
    """On every rank (section 5.1), or in block rows as the features are (section 5.2)."""
    cache: float = Field(0.0, ge=0, examples=[0.3])
    """Rows of others that a rank keeps, as a share of a block row; not in the paper."""


class BulkScheme(FetchingStrategy):
    """Everything but the sampler."""

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

    @property
    def kept(self) -> float:
        return self.params.cache

    def worth(self, group: int, graph: Stripe, targets: Tensor) -> Tensor:
        """Chances as SALIENT++ has them, where neighbours are drawn; else how many listen to a vertex."""
        blocks, n = self.blocks(), self.facts.vertices
        if self.layer_wise:
            return listeners(graph, blocks, n)
        p = torch.zeros(n, dtype=torch.float64)
        p[targets] = 1 / max(self.batches.count, 1)
        return inclusion(graph, blocks, p, self.bulk.sizes)

    def held(self, at: Coordinates) -> range:
        """The rows of A that the rank at `at` has."""
        return self.rows(at) if self.partitioned else range(self.facts.vertices)

    def together(self, row: int) -> list[int]:
        """The groups of a grid row: its ranks."""
        return [row * self.grid[COL] + member for member in range(self.grid[COL])]

    def peers(self, at: Coordinates) -> list[int]:
        return [row * self.grid[COL] + at[COL] for row in range(self.grid[ROW])]

    def mini_batch(self, step: int, group: int, A: Csr, targets: Tensor) -> MiniBatch:
        return alone(self.bulk, self.batches, WholeGraph(A), targets, step, group)

    def say_sampling(self, words: Words, at: Coordinates, A: Csr, targets: Tensor, epoch: int) -> None:
        if self.partitioned:
            say_sampling(words, self, at, A, targets, epoch)

    def samples(self, counts: Counts) -> int:
        """Vertices and matrices of a bulk as shapes let expect and, of a partitioned graph, the rows drawn from."""
        (A, targets), precision = self.graph(counts), self.spec.precision
        one = expected_batch(self.bulk, A, targets[: self.spec.training.batch])
        together = min(self.at_once, self.steps) * (self.grid[COL] if self.partitioned else 1)
        vertices = sum(len(layer) for layer in one.vertices)
        drawn = LONG * vertices + sum(csr_bytes(S.rows, S.nnz, precision) for S in one.A)
        if not self.partitioned:
            return together * drawn
        rows = expected(A.rows, together * len(one.vertices[1])) // self.grid[COL]
        return together * drawn + csr_bytes(rows, A.nnz * rows // max(A.rows, 1), precision)

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """A map of the graph's vertices too."""
        held = super().memory(at, counts)
        held[TensorName.INDEX] += LONG * self.facts.vertices
        return held
