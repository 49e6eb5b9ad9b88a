"""What strategies share that split vertices over the axis p and keep every row whole: all but the convolution.

Legend: N this rank's vertices, H features, C classes. On an axis of one rank this is plain serial training.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.comm.layout import split
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.models import Hits
from harness.strategy import IGNORED, SPLITS, Context, Coordinates, Nonzeros, Piece, Strategy

WORD = {"float32": 4, "float64": 8}
INDEX, LONG = 4, 8
"""Bytes: of a number by the precision of the run, of a column index, of a row pointer or a label."""


class RowStrategy(Strategy):
    """Rows of the graph and of everything computed from them are split over p; weights are whole on every rank."""

    axes = (AxisName.P,)

    def refuse(self) -> str | None:
        ranks, vertices = self.spec.ranks, self.facts.vertices
        if ranks > vertices:
            return f"{ranks} ranks for {vertices} vertices: a rank needs at least one vertex"
        if self.spec.dataset.permutation == "double":
            return "its layers do not alternate between two orders, as a double permutation asks: use single or none"
        return None

    def weight(self, layer: int, shape: tuple[int, int], at: Coordinates) -> Piece:
        return Piece(range(shape[0]), range(shape[1]))

    def output(self, at: Coordinates) -> Piece:
        rows = split(self.facts.vertices, self.grid[AxisName.P])[at[AxisName.P]]
        return Piece(rows, range(self.facts.classes))

    def memory(self, at: Coordinates, nonzeros: Nonzeros) -> dict[TensorName, int]:
        """A block row of A and, if it differs, one of A^T, each cut at the other ranks' vertices; nothing twice."""
        rows, everyone = self.output(at).rows, range(self.facts.vertices)
        word = WORD[self.spec.precision]
        pieces = [self.weight(layer, shape, at) for layer, shape in enumerate(self.shapes)]
        found = [nonzeros(rows, everyone), *([nonzeros(everyone, rows)] if self.facts.directed else [])]
        pointers = len(found) * self.grid[AxisName.P] * (len(rows) + 1)
        return {
            TensorName.A: LONG * pointers + (INDEX + word) * sum(found),
            TensorName.X: word * len(rows) * self.facts.features,
            TensorName.W: word * sum(len(piece.rows) * len(piece.cols) for piece in pieces),
            TensorName.LABELS: LONG * len(rows) * (1 + len(SPLITS)),
        }


class RowOperators:
    """Input, activation, loss and evaluation, all local to a row but for the sums over the axis."""

    def __init__(self, ctx: Context) -> None:
        self.ledger, self.kernels, self.axis = ctx.ledger, ctx.kernels, ctx.grid[AxisName.P]
        self.blocks = split(ctx.facts.vertices, self.axis.size)
        self.rows = self.blocks[self.axis.index]
        self.X_NF = ctx.features(self.rows, range(ctx.facts.features))
        self.labels_N = ctx.training_labels(self.rows)
        self.splits = ctx.split_labels(self.rows)
        self.trained_on = max(ctx.trained_on, 1)

    def inputs(self) -> Tensor:
        return self.X_NF

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return self.kernels.elementwise(torch.relu, Z_NH, makes=TensorName.H)

    def loss(self, Z_NC: Tensor) -> Tensor:
        with self.ledger.phase(Phase.LOSS):
            share = self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._share, Z_NC)
            return self.axis.sum(share, tensor=TensorName.LOSS)

    def _share(self, Z_NC: Tensor) -> Tensor:
        """This rank's part of the mean over all training vertices of the graph."""
        return cross_entropy(Z_NC, self.labels_N, ignore_index=IGNORED, reduction="sum") / self.trained_on

    def evaluate(self, Z_NC: Tensor) -> dict[str, Hits]:
        guess_N = Z_NC.argmax(dim=1)
        here = [
            [(guess_N == labels_N).sum(), (labels_N != IGNORED).sum()] for labels_N in self.splits.values()
        ]
        everywhere = self.axis.all_reduce(torch.tensor(here), tensor=TensorName.COUNT)
        return {name: Hits(*counts) for name, counts in zip(self.splits, everywhere.tolist(), strict=True)}
