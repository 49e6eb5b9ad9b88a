"""What strategies share that leave a rank rows of the output: all but the convolution.

Legend: N this rank's vertices, H features, C classes. On an axis of one rank this is plain serial training.
"""

from typing import ClassVar

import torch
from torch import Tensor

from harness.ledger import AxisName, Phase, TensorName
from harness.models import Hits, Weight
from harness.parallel.answers import answers_of
from harness.parallel.halo import Boundary
from harness.parallel.layers import LayerOperators
from harness.strategy import (
    WORD,
    Context,
    Coordinates,
    Counts,
    Piece,
    Strategy,
    csr_bytes,
    label_bytes,
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

    def boundary(self, at: Coordinates, counts: Counts) -> Boundary:
        """Who needs how many rows of whom."""
        blocks = self.blocks()
        return Boundary(counts, blocks, at[self.rows_over], range(len(blocks)))

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
            TensorName.LABELS: label_bytes(self.output(at), self.facts.task),
        }

    def bytes_of_matrices(self, pieces: list[Piece], counts: Counts) -> int:
        """Of these rectangles of A and, where it differs, of A^T: row pointers, columns, values."""
        return sum(
            self.bytes_of_matrix(len(rows), counts.nonzeros(rows, cols, transposed=transposed))
            for rows, cols in pieces
            for transposed in self.sides()
        )

    def bytes_of_matrix(self, rows: int, nonzeros: int) -> int:
        """Of one rectangle, as it is held."""
        return csr_bytes(rows, nonzeros, self.spec.precision)

    def sides(self) -> list[bool]:
        """What is held of the graph: A, and A^T where that is another matrix."""
        return [False, True] if self.facts.directed else [False]


class RowOperators(LayerOperators):
    """Input, loss and evaluation, local to a row but for the sums over the blocks of rows."""

    def __init__(
        self,
        ctx: Context,
        strategy: Strategy,
        over: tuple[AxisName, ...],
        across: AxisName | None = None,
        beyond: Tensor | None = None,
    ) -> None:
        """The output's rows are split over some axes, its columns across another or not at all.

        `beyond` are vertices of others whose features are here too, below its own.
        """
        super().__init__(ctx, strategy.output(ctx.at).rows)
        self.over = ctx.grid.axis(over)
        self.shares = ctx.grid.axis((*over, across)) if across else self.over
        """The ranks whose shares of the loss are the whole."""
        output, order = strategy.output(ctx.at), (ctx.spec.model.layers - 1) % 2
        self.rows, split = output.rows, ctx.grid[across] if across else None
        self.answers = answers_of(ctx, output, order, self.over, split, self.shares)
        self.X = ctx.features(*strategy.input(ctx.at), beyond)

    def inputs(self) -> Tensor:
        return self.X

    def loss(self, Z_NC: Tensor) -> Tensor:
        with self.ledger.phase(Phase.LOSS):
            return self.shares.sum(self.answers.share(Z_NC), tensor=TensorName.LOSS)

    def evaluate(self, Z_NC: Tensor) -> dict[str, Hits]:
        here = self.answers.right(Z_NC)
        counts = torch.stack([torch.stack(pair) for pair in here.values()])
        everywhere = self.answers.over.all_reduce(counts, tensor=TensorName.COUNT)
        return {name: Hits(*pair) for name, pair in zip(here, everywhere.tolist(), strict=True)}
