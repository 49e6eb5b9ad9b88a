"""What strategies share that train on mini-batches, one a rank: the model on sampled matrices, the loss over them all.

Legend: N vertices of a layer's output, K of its input, which begin with those; F features in, H features out.
"""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels import Csr, transpose
from harness.kernels.random import Index
from harness.ledger import AxisName, Op, Phase, TensorName
from harness.models import Skip
from harness.parallel.answers import Answers
from harness.parallel.gradients import Gradients
from harness.parallel.layers import as_indices
from harness.parallel.rows import RowOperators
from harness.strategy import Context, MiniBatch, Strategy


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
        there.batch = [(self._placed(A), self._placed(transpose(A))) for A in batch.A]
        there.X, there.answers = X_KF, answers
        if batch.importance is not None:
            answers.weigh(batch.importance.to(device=self.device, dtype=X_KF.dtype))
        return there

    def _placed(self, A: Csr) -> Csr:
        return Csr(A.rowptr.to(self.device), A.col.to(self.device), A.val.to(self.device), A.cols)

    def convolve(self, layer: int, H_KF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.CONVOLVE, layer):
            if self.batch:
                T_NF = self.kernels.aggregate(*self.batch[layer], H_KF, TensorName.T)
            else:
                T_NF = self.aggregate_all(H_KF)
            return self.kernels.gemm(T_NF, W_FH, TensorName.Z)

    def rows_of(self, layer: int) -> Tensor:
        return as_indices(self.outputs[layer], self.device).to(self.device)

    def keep(self, layer: int, H_KF: Tensor) -> Skip:
        return Skip(H_KF, H_KF[: self.batch[layer][0].rows] if self.batch else H_KF)

    def add(self, layer: int, H_NH: Tensor, skip: Skip) -> Tensor:
        """What a vertex itself has is that of the first rows of the input."""
        return super().add(layer, H_NH, Skip(skip.H, skip.kept[: len(H_NH)]))

    def loss(self, Z_NC: Tensor) -> Tensor:
        """The sum over the mini-batches of all ranks, divided by the number of vertices that count in it."""
        with self.ledger.phase(Phase.LOSS):
            with self.ledger.op(Op.ELEMENTWISE, tensor=TensorName.COUNT):
                counted = self.answers.counted().to(Z_NC.dtype)
            self.answers.mean_over(self.everyone.all_reduce(counted, tensor=TensorName.COUNT))
            return self.shares.sum(self.answers.share(Z_NC), tensor=TensorName.LOSS)

    def settle(self, weights: Sequence[Tensor]) -> None:
        self.gradients.settle(weights)


def on_the_host(A: Csr) -> Csr:
    """Samples are drawn there."""
    return Csr(A.rowptr.cpu(), A.col.cpu(), A.val.cpu(), A.cols) if A.val.is_cuda else A
