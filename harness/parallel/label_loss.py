"""The loss of labels on logits: a rank's share of the loss, and its right answers.

With one class a vertex the loss is cross-entropy, and the largest logit is the answer. With many classes a vertex every
class is a question of its own: the loss is binary cross-entropy, and a positive logit answers yes. If an axis splits
the logits of a row, two numbers a row travel forward, the largest logit and the sum of exponentials; nothing travels
backward.

Legend: N this rank's vertices, C this rank's classes: all classes, or a part of them.
Verifier (tests/parallel/test_cross_entropy.py): torch's own loss on whole rows.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from harness.comm.axis import Axis
from harness.comm.collectives import Reduction
from harness.kernels.recorded import Kernels
from harness.ledger import Ledger, Op, Phase, TensorName, apply
from harness.models import SplitAccuracy
from harness.strategy import IGNORED, Context, Piece


@dataclass(frozen=True)
class LabelLoss(ABC):
    """The labels of a rank's rows and classes of the output: the labels of the loss, and those of each split."""

    kernels: Kernels
    over: Axis
    """The axis over which right answers add up to those of the whole graph."""
    classes: int
    """The classes of the whole output."""
    labels: Tensor
    splits: dict[str, Tensor]
    denominator: int | Tensor
    """The number of vertices of all ranks that the loss is a mean over."""
    importance: Tensor | None = None
    """The factor of each row's loss; None multiplies every row by 1."""

    def select(self, places: Tensor, labels: Tensor | None = None, importance: Tensor | None = None) -> Self:
        """The loss on the rows at `places`, of these labels or of others."""
        chosen = (self.labels if labels is None else labels).index_select(0, places)
        return replace(self, labels=chosen, importance=importance)

    def mean(self, Z_NC: Tensor, shares: Axis) -> Tensor:
        """The loss of the whole graph: the sum of the shares over an axis."""
        with shares.ledger.phase(Phase.LOSS):
            return shares.sum(self.partial_loss(Z_NC), tensor=TensorName.LOSS)

    def mean_of_batches(self, Z_NC: Tensor, rows: Axis, shares: Axis) -> Tensor:
        """The loss summed over the mini-batches of all ranks, divided by the number of vertices that it counts.

        The members of `rows` have every row of every mini-batch once.
        """
        with rows.ledger.phase(Phase.LOSS):
            with rows.ledger.op(Op.ELEMENTWISE, tensor=TensorName.COUNT):
                counted = self._count_rows().to(Z_NC.dtype)
            of = rows.all_reduce(counted, tensor=TensorName.COUNT).clamp(min=1)
            return shares.sum(replace(self, denominator=of).partial_loss(Z_NC), tensor=TensorName.LOSS)

    def evaluate(self, Z_NC: Tensor) -> dict[str, SplitAccuracy]:
        """The right answers of the whole graph by split."""
        own = self.count_correct(Z_NC)
        counts = torch.stack([torch.stack(pair) for pair in own.values()])
        total = self.over.all_reduce(counts, tensor=TensorName.COUNT)
        return {name: SplitAccuracy(*pair) for name, pair in zip(own, total.tolist(), strict=True)}

    @abstractmethod
    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        """This rank's part of the mean."""

    @abstractmethod
    def count_correct(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """This rank's right answers and all of its answers, by split (`harness.models.Hits`)."""

    def _count_rows(self) -> Tensor:
        """The number of this rank's rows that the loss counts, ()."""
        one_each = self.labels if self.labels.dim() == 1 else self.labels[:, :1]
        return (one_each != IGNORED).sum()


class OneClass(LabelLoss):
    """The loss where a vertex has one class and this rank has all logits of its rows."""

    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        return self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._partial_loss, Z_NC)

    def _partial_loss(self, Z_NC: Tensor) -> Tensor:
        if self.importance is None:
            return cross_entropy(Z_NC, self.labels, ignore_index=IGNORED, reduction="sum") / self.denominator
        each_N = cross_entropy(Z_NC, self.labels, ignore_index=IGNORED, reduction="none")
        return (each_N * self.importance).sum() / self.denominator

    def predict(self, Z_NC: Tensor) -> Tensor:
        """The class with the largest logit of every row."""
        return Z_NC.argmax(dim=1)

    def count_correct(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        guess_N = self.predict(Z_NC)
        return {
            name: ((guess_N == labels_N).sum(), (labels_N != IGNORED).sum())
            for name, labels_N in self.splits.items()
        }


@dataclass(frozen=True)
class OneClassSplit(OneClass):
    """The loss where a vertex has one class and an axis splits the logits of a row."""

    own: range = range(0)
    """The classes of this rank."""
    across: Axis | None = None

    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        axis, classes = self._axis, self.own
        share: Tensor = apply(axis.ledger, CrossEntropy, Z_NC, self.labels, classes, axis, self.denominator)
        return share

    def predict(self, Z_NC: Tensor) -> Tensor:
        return predict_split(Z_NC, self.own, self._axis)

    @property
    def _axis(self) -> Axis:
        assert self.across is not None
        return self.across


class ManyClasses(LabelLoss):
    """The loss where a vertex has any number of classes. Logits are independent, so nothing is sent across a row."""

    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        return self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._partial_loss, Z_NC)

    def _partial_loss(self, Z_NC: Tensor) -> Tensor:
        counted_NC = (self.labels != IGNORED).to(Z_NC.dtype)
        if self.importance is not None:
            counted_NC = counted_NC * self.importance[:, None]
        yes_NC = self.labels.clamp(min=0).to(Z_NC.dtype)
        loss = binary_cross_entropy_with_logits(Z_NC, yes_NC, counted_NC, reduction="sum")
        return loss / (self.denominator * self.classes)

    def count_correct(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {name: _count_agreement(Z_NC > 0, labels_NC) for name, labels_NC in self.splits.items()}


def _count_agreement(yes_NC: Tensor, labels_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Twice the right answers yes; and all answers yes plus all labels yes. Their quotient is the F1 score."""
    positive_NC, are_NC = yes_NC & (labels_NC != IGNORED), labels_NC == 1
    return 2 * (positive_NC & are_NC).sum(), positive_NC.sum() + are_NC.sum()


def make_label_loss(
    ctx: Context, output: Piece, order: int, over: Axis, across: Axis | None, over_both: Axis
) -> LabelLoss:
    """The loss on a rank's piece of the output: `over` splits the rows, `across` the classes; `over_both` is both."""
    labels, splits = ctx.blocks.training_labels(output, order), ctx.blocks.split_labels(output, order)
    of, many = max(ctx.facts.trained_on(ctx.spec.protocol), 1), ctx.facts.task == "multi-label"
    common = ctx.kernels, over_both if many else over, ctx.facts.classes, labels, splits, of
    if many:
        return ManyClasses(*common)
    return OneClassSplit(*common, None, output.cols, across) if across else OneClass(*common)


class CrossEntropy(Function):
    """This rank's share of the mean, which is the sum of the shares of all ranks."""

    @staticmethod
    def forward(
        saved: Any, Z_NC: Tensor, labels_N: Tensor, classes: range, axis: Axis, of: int | Tensor
    ) -> Tensor:
        """Rows with a negative label do not count; every other row weighs 1 / `of`."""
        saved.ledger = ledger = axis.ledger
        with _elementwise(ledger):
            width, Z_NC = Z_NC.shape[1], _pad_empty_logits(Z_NC)
            largest_N = Z_NC.amax(dim=1)
        axis.all_reduce(largest_N, tensor=TensorName.LOSS, op=Reduction.MAX)
        with _elementwise(ledger):
            E_NC = (Z_NC - largest_N[:, None]).exp_()
            sum_N = E_NC.sum(dim=1)
        axis.all_reduce(sum_N, tensor=TensorName.LOSS)
        with _elementwise(ledger):
            counts_N = (labels_N >= 0).to(Z_NC.dtype)
            owned_N = (labels_N >= classes.start) & (labels_N < classes.stop)
            place_N1 = torch.where(owned_N, labels_N - classes.start, 0)[:, None]
            right_N = torch.where(owned_N, Z_NC.gather(1, place_N1)[:, 0], 0)
            whole_N = counts_N * (largest_N + sum_N.log()) if axis.index == 0 else torch.zeros_like(sum_N)
            P_NC = E_NC.div_(sum_N[:, None]).mul_(counts_N[:, None])
            G_NC = P_NC.scatter_add_(1, place_N1, -owned_N.to(P_NC.dtype)[:, None]).div_(of)
            saved.G_NC = G_NC[:, :width]
            return (whole_N - right_N).sum() / of

    @staticmethod
    def backward(saved: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """The gradient of each row that counts: the softmax, minus one at the label."""
        with _elementwise(saved.ledger):
            return saved.G_NC * gradients[0], None, None, None, None


def predict_split(Z_NC: Tensor, classes: range, axis: Axis) -> Tensor:
    """The class with the largest logit of every row; the first such class on a tie."""
    best_N, place_N = _pad_empty_logits(Z_NC).max(dim=1)
    largest_N = axis.all_reduce(best_N.clone(), tensor=TensorName.LOSS, op=Reduction.MAX)
    before = torch.iinfo(torch.int64).max - (place_N + classes.start)
    first_N = torch.where(best_N == largest_N, before, 0)
    axis.all_reduce(first_N, tensor=TensorName.COUNT, op=Reduction.MAX)
    return torch.iinfo(torch.int64).max - first_N


def _pad_empty_logits(Z_NC: Tensor) -> Tensor:
    """The logits; on a rank without classes, one logit of -inf a row, which never wins."""
    return Z_NC if Z_NC.shape[1] else Z_NC.new_full((len(Z_NC), 1), float("-inf"))


def _elementwise(ledger: Ledger) -> Any:
    return ledger.op(Op.ELEMENTWISE, tensor=TensorName.LOSS)
