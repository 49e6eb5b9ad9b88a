"""What strategies share that train on mini-batches, one a rank: the model on sampled matrices, the loss over them all.

Legend: N vertices of a layer's output, K of its input, which begin with those; F features in, H features out.
"""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels import Csr, on_device, transpose
from harness.kernels.random import Index
from harness.ledger import AxisName, Direction, Op, Phase, TensorName
from harness.parallel.answers import Answers
from harness.parallel.gradients import Gradients
from harness.parallel.layers import as_indices
from harness.parallel.rows import RowOperators, RowStrategy
from harness.strategy import Context, Coordinates, Counts, MiniBatch, Strategy, Words


class BatchOperators(RowOperators):
    """One rank's operators: on the whole graph to evaluate, on a sampled part of it in every training step."""

    def __init__(self, ctx: Context, strategy: Strategy, over: tuple[AxisName, ...], everyone: Axis) -> None:
        """`over` splits the rows when the whole graph is evaluated; `everyone` trains, each a batch of its own."""
        super().__init__(ctx, strategy, over=over)
        self.shares = self.everyone = everyone
        self.group = everyone.index
        self.batch: Sequence[tuple[Csr, Csr]] = ()
        """By what each layer multiplies, and its transpose; nothing for the whole graph."""
        self.outputs: list[Index] = [self.rows] * self.model.layers
        self.gradients = Gradients(everyone, overlap=False)

    @abstractmethod
    def aggregate_all(self, H_NF: Tensor) -> Tensor:
        """A H on the whole graph."""

    def on(self, step: int, batch: MiniBatch, X_KF: Tensor, answers: Answers) -> Self:
        """The same operators on a mini-batch, given its features and the labels of its output."""
        there = copy.copy(self)
        there.step, there.outputs = step, list(batch.vertices[1:])
        once = {id(A): (on_device(A, self.device), on_device(transpose(A), self.device)) for A in batch.A}
        there.batch = [once[id(A)] for A in batch.A]
        there.X, there.answers = X_KF, answers
        if batch.importance is not None:
            answers.weigh(batch.importance.to(device=self.device, dtype=X_KF.dtype))
        return there

    def convolve(self, layer: int, H_KF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.batch:
                T_NF = self.kernels.aggregate(*self.batch[layer], H_KF, TensorName.T)
            else:
                T_NF = self.aggregate_all(H_KF)
            return self.kernels.gemm(T_NF, W_FH, TensorName.Z)

    def rows_of(self, layer: int) -> Tensor:
        return as_indices(self.outputs[layer], self.device).to(self.device)

    def loss(self, Z_NC: Tensor) -> Tensor:
        return loss_of_batches(self, Z_NC, self.everyone)

    def settle(self, weights: Sequence[Tensor]) -> None:
        self.gradients.settle(weights)


def loss_of_batches(ops: RowOperators, Z_NC: Tensor, rows: Axis) -> Tensor:
    """The sum over the mini-batches of all ranks, divided by the number of vertices that count in it.

    The members of `rows` have all rows of all mini-batches, each once.
    """
    with ops.ledger.phase(Phase.LOSS):
        with ops.ledger.op(Op.ELEMENTWISE, tensor=TensorName.COUNT):
            counted = ops.answers.counted().to(Z_NC.dtype)
        ops.answers.mean_over(rows.all_reduce(counted, tensor=TensorName.COUNT))
        return ops.shares.sum(ops.answers.share(Z_NC), tensor=TensorName.LOSS)


class BatchStrategy(RowStrategy):
    """A mini-batch a rank, of a model whose features are fixed."""

    mini_batches = True
    parts = True

    def refuse(self) -> str | None:
        if self.spec.model.order == "combine_first":
            return "it multiplies (A H) W: use order aggregate_first"
        if self.spec.training.features:
            return "its features are fixed: leave training.features at false"
        return super().refuse()

    def sides(self) -> list[bool]:
        """A alone: transposes are those of samples."""
        return [False]

    def words(self, at: Coordinates, counts: Counts) -> Words:
        """Nothing in the sampling."""
        words = Words(self.grid)
        self.say_training(words)
        return words

    def say_training(self, words: Words) -> None:
        """Of every step of an epoch the two numbers of the loss, and the gradients."""
        trained = sum(rows * cols for _, _, (rows, cols) in self.weights)
        words.put(Direction.FORWARD, -1, Op.ALL_REDUCE, self.axes, TensorName.COUNT, self.steps)
        words.put(Direction.FORWARD, -1, Op.ALL_REDUCE, self.axes, TensorName.LOSS, self.steps)
        words.put(Direction.BACKWARD, -1, Op.ALL_REDUCE, self.axes, TensorName.DW, self.steps * trained)
