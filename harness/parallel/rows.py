"""What strategies share that leave a rank rows of the output: all but the convolution.

Legend: N this rank's vertices, H features, C classes. On an axis of one rank this is plain serial training.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.comm.axis import Axis
from harness.ledger import AxisName, Op, Phase, TensorName, apply
from harness.models import Hits, Weight
from harness.parallel.cross_entropy import CrossEntropy, guess
from harness.parallel.layers import LayerOperators
from harness.strategy import (
    IGNORED,
    LONG,
    SPLITS,
    WORD,
    Context,
    Coordinates,
    Counts,
    Piece,
    Strategy,
    csr_bytes,
)


class RowStrategy(Strategy):
    """Rows of the graph and of everything computed from them are split over an axis; weights are whole everywhere."""

    axes = (AxisName.P,)
    rows_over: ClassVar[AxisName] = AxisName.P
    partitioned_over: ClassVar[AxisName | None] = AxisName.P

    def refuse(self) -> str | None:
        if self.spec.dataset.permutation == "double":
            return "its layers do not alternate between two orders, as a double permutation asks: use single or none"
        return self.crowded()

    def blocks(self) -> list[range]:
        """The vertices of every block of rows."""
        return self.facts.blocks(self.grid[self.rows_over])

    def rows(self, at: Coordinates) -> range:
        """The vertices of the rank at `at`."""
        return self.blocks()[at[self.rows_over]]

    def columns(self, at: Coordinates, width: int) -> range:
        """The part of a row of this width that the rank at `at` holds."""
        return range(width)

    def multiplied(self, at: Coordinates) -> list[Piece]:
        """The rectangles of A, and of A^T, by which the rank at `at` multiplies."""
        rows = self.rows(at)
        return [Piece(rows, block) for block in self.blocks()]

    def weight(self, weight: Weight, at: Coordinates) -> Piece:
        rows, cols = weight.shape
        return Piece(range(rows), range(cols))

    def input(self, at: Coordinates) -> Piece:
        return Piece(self.rows(at), self.columns(at, self.facts.features))

    def output(self, at: Coordinates) -> Piece:
        return Piece(self.rows(at), self.columns(at, self.facts.classes))

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        rows, word = len(self.rows(at)), WORD[self.spec.precision]
        return {
            TensorName.A: self.bytes_of_matrices(self.multiplied(at), counts),
            TensorName.X: word * rows * len(self.columns(at, self.facts.features)),
            TensorName.W: word * sum(weight.shape[0] * weight.shape[1] for weight in self.weights),
            TensorName.LABELS: LONG * rows * (1 + len(SPLITS)),
        }

    def bytes_of_matrices(self, pieces: list[Piece], counts: Counts) -> int:
        """Of these rectangles of A and, where it differs, of A^T: row pointers, columns, values."""
        return sum(
            csr_bytes(len(rows), counts.nonzeros(rows, cols, transposed=transposed), self.spec.precision)
            for rows, cols in pieces
            for transposed in self.sides()
        )

    def sides(self) -> list[bool]:
        """What is held of the graph: A, and A^T where that is another matrix."""
        return [False, True] if self.facts.directed else [False]


class RowOperators(LayerOperators):
    """Input, loss and evaluation, local to a row but for the sums over the blocks of rows."""

    def __init__(self, ctx: Context, strategy: Strategy, over: Axis) -> None:
        """The members of `over` have all rows of the output, each once."""
        super().__init__(ctx, strategy.output(ctx.at).rows)
        self.over = self.shares = over
        """The ranks whose shares of the loss are the whole."""
        self.rows, order = strategy.output(ctx.at).rows, (ctx.spec.model.layers - 1) % 2
        self.labels_N = ctx.training_labels(self.rows, order)
        self.splits = ctx.split_labels(self.rows, order)
        self.trained_on = max(ctx.trained_on, 1)
        self.X = ctx.features(*strategy.input(ctx.at))

    def inputs(self) -> Tensor:
        return self.X

    def loss(self, Z_NC: Tensor) -> Tensor:
        with self.ledger.phase(Phase.LOSS):
            return self.shares.sum(self.share(Z_NC), tensor=TensorName.LOSS)

    def share(self, Z_NC: Tensor) -> Tensor:
        """This rank's part of the mean over all training vertices of the graph."""
        return self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._share, Z_NC)

    def _share(self, Z_NC: Tensor) -> Tensor:
        return cross_entropy(Z_NC, self.labels_N, ignore_index=IGNORED, reduction="sum") / self.trained_on

    def evaluate(self, Z_NC: Tensor) -> dict[str, Hits]:
        guess_N = self.guess(Z_NC)
        here = [
            [(guess_N == labels_N).sum(), (labels_N != IGNORED).sum()] for labels_N in self.splits.values()
        ]
        everywhere = self.over.all_reduce(torch.tensor(here), tensor=TensorName.COUNT)
        return {name: Hits(*counts) for name, counts in zip(self.splits, everywhere.tolist(), strict=True)}

    def guess(self, Z_NC: Tensor) -> Tensor:
        """The class of every row."""
        return Z_NC.argmax(dim=1)


class SplitRowOperators(RowOperators):
    """The same where an axis splits the columns too: a rank has some classes of its rows."""

    def __init__(
        self, ctx: Context, strategy: Strategy, over: tuple[AxisName, ...], across: AxisName
    ) -> None:
        """Rows are split over some axes, columns across another."""
        super().__init__(ctx, strategy, ctx.grid.axis(over))
        self.across, self.classes = ctx.grid[across], strategy.output(ctx.at).cols
        self.shares = ctx.grid.axis((*over, across))

    def share(self, Z_NC: Tensor) -> Tensor:
        labels, classes = self.labels_N, self.classes
        share: Tensor = apply(self.ledger, CrossEntropy, Z_NC, labels, classes, self.across, self.trained_on)
        return share

    def guess(self, Z_NC: Tensor) -> Tensor:
        return guess(Z_NC, self.classes, self.across)
