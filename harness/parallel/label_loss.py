"""The loss of labels on logits: a rank's share of it, and its right answers.

Of one class a vertex: cross-entropy, and the largest logit answers. Of many: for every class whether the vertex has
it, by binary cross-entropy, and a positive logit answers yes. Where an axis splits the logits of a row, two numbers a
row travel forward, the largest logit and the sum of exponentials; nothing travels backward.

Legend: N this rank's vertices, C its classes, all of them or those that an axis leaves it.
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
from harness.models import Hits
from harness.strategy import IGNORED, Context, Piece


@dataclass(frozen=True)
class LabelLoss(ABC):
    """The labels of the rows and classes that a rank holds of the output: those of the loss and those of each split."""

    kernels: Kernels
    over: Axis
    """The ranks whose right answers add up to those of the graph."""
    classes: int
    """The classes of the whole output."""
    labels: Tensor
    splits: dict[str, Tensor]
    of: int | Tensor
    """The number of vertices of all ranks that the loss is a mean over."""
    importance: Tensor | None = None
    """By what the loss of every row is multiplied; None: all alike."""

    def on(self, places: Tensor, labels: Tensor | None = None, importance: Tensor | None = None) -> Self:
        """The loss on some of these rows, or on some rows of other labels."""
        chosen = (self.labels if labels is None else labels).index_select(0, places)
        return replace(self, labels=chosen, importance=importance)

    def mean(self, Z_NC: Tensor, shares: Axis) -> Tensor:
        """The loss of the whole graph; the shares of the members of an axis add up to it."""
        with shares.ledger.phase(Phase.LOSS):
            return shares.sum(self.share(Z_NC), tensor=TensorName.LOSS)

    def mean_of_batches(self, Z_NC: Tensor, rows: Axis, shares: Axis) -> Tensor:
        """The sum over the mini-batches of all ranks, divided by the number of vertices that count in it.

        The members of `rows` have all rows of all mini-batches, each once.
        """
        with rows.ledger.phase(Phase.LOSS):
            with rows.ledger.op(Op.ELEMENTWISE, tensor=TensorName.COUNT):
                counted = self._counted().to(Z_NC.dtype)
            of = rows.all_reduce(counted, tensor=TensorName.COUNT).clamp(min=1)
            return shares.sum(replace(self, of=of).share(Z_NC), tensor=TensorName.LOSS)

    def hits(self, Z_NC: Tensor) -> dict[str, Hits]:
        """The right answers of the whole graph by split."""
        here = self.right(Z_NC)
        counts = torch.stack([torch.stack(pair) for pair in here.values()])
        everywhere = self.over.all_reduce(counts, tensor=TensorName.COUNT)
        return {name: Hits(*pair) for name, pair in zip(here, everywhere.tolist(), strict=True)}

    @abstractmethod
    def share(self, Z_NC: Tensor) -> Tensor:
        """This rank's part of the mean."""

    @abstractmethod
    def right(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """This rank's right answers and all of its answers, by split (`harness.models.Hits`)."""

    def _counted(self) -> Tensor:
        """The number of these rows that the loss counts, ()."""
        one_each = self.labels if self.labels.dim() == 1 else self.labels[:, :1]
        return (one_each != IGNORED).sum()


class OneClass(LabelLoss):
    """A vertex has one class, and this rank all logits of its rows."""

    def share(self, Z_NC: Tensor) -> Tensor:
        return self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._share, Z_NC)

    def _share(self, Z_NC: Tensor) -> Tensor:
        if self.importance is None:
            return cross_entropy(Z_NC, self.labels, ignore_index=IGNORED, reduction="sum") / self.of
        each_N = cross_entropy(Z_NC, self.labels, ignore_index=IGNORED, reduction="none")
        return (each_N * self.importance).sum() / self.of

    def guess(self, Z_NC: Tensor) -> Tensor:
        """The class of every row."""
        return Z_NC.argmax(dim=1)

    def right(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        guess_N = self.guess(Z_NC)
        return {
            name: ((guess_N == labels_N).sum(), (labels_N != IGNORED).sum())
            for name, labels_N in self.splits.items()
        }


@dataclass(frozen=True)
class OneClassSplit(OneClass):
    """A vertex has one class, and an axis splits the logits of its row."""

    here: range = range(0)
    """The classes of this rank."""
    across: Axis | None = None

    def share(self, Z_NC: Tensor) -> Tensor:
        axis, classes = self._axis, self.here
        share: Tensor = apply(axis.ledger, CrossEntropy, Z_NC, self.labels, classes, axis, self.of)
        return share

    def guess(self, Z_NC: Tensor) -> Tensor:
        return guess(Z_NC, self.here, self._axis)

    @property
    def _axis(self) -> Axis:
        assert self.across is not None
        return self.across


class ManyClasses(LabelLoss):
    """A vertex has any number of classes; every logit stands for itself, so nothing is sent across a row."""

    def share(self, Z_NC: Tensor) -> Tensor:
        return self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._share, Z_NC)

    def _share(self, Z_NC: Tensor) -> Tensor:
        counted_NC = (self.labels != IGNORED).to(Z_NC.dtype)
        if self.importance is not None:
            counted_NC = counted_NC * self.importance[:, None]
        yes_NC = self.labels.clamp(min=0).to(Z_NC.dtype)
        loss = binary_cross_entropy_with_logits(Z_NC, yes_NC, counted_NC, reduction="sum")
        return loss / (self.of * self.classes)

    def right(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {name: _agreement(Z_NC > 0, labels_NC) for name, labels_NC in self.splits.items()}


def _agreement(yes_NC: Tensor, labels_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Twice the answers that are rightly yes, and all answers that are yes plus all labels that are."""
    positive_NC, are_NC = yes_NC & (labels_NC != IGNORED), labels_NC == 1
    return 2 * (positive_NC & are_NC).sum(), positive_NC.sum() + are_NC.sum()


def label_loss(
    ctx: Context, output: Piece, order: int, over: Axis, across: Axis | None, all_of: Axis
) -> LabelLoss:
    """The loss on a rank's piece of the output: `over` splits the rows, `across` the classes; `all_of` is both."""
    labels, splits = ctx.blocks.training_labels(output, order), ctx.blocks.split_labels(output, order)
    of, many = max(ctx.facts.trained_on(ctx.spec.protocol), 1), ctx.facts.task == "multi-label"
    held = ctx.kernels, all_of if many else over, ctx.facts.classes, labels, splits, of
    if many:
        return ManyClasses(*held)
    return OneClassSplit(*held, None, output.cols, across) if across else OneClass(*held)


class CrossEntropy(Function):
    """This rank's share of the mean: the shares of all ranks add up to it."""

    @staticmethod
    def forward(
        saved: Any, Z_NC: Tensor, labels_N: Tensor, classes: range, axis: Axis, of: int | Tensor
    ) -> Tensor:
        """Rows whose label is negative do not count; each counts one `of` them all."""
        saved.ledger = ledger = axis.ledger
        with _elementwise(ledger):
            width, Z_NC = Z_NC.shape[1], _at_least_one(Z_NC)
            largest_N = Z_NC.amax(dim=1)
        axis.all_reduce(largest_N, tensor=TensorName.Z, op=Reduction.MAX)
        with _elementwise(ledger):
            E_NC = (Z_NC - largest_N[:, None]).exp_()
            sum_N = E_NC.sum(dim=1)
        axis.all_reduce(sum_N, tensor=TensorName.Z)
        with _elementwise(ledger):
            counts_N = (labels_N >= 0).to(Z_NC.dtype)
            here_N = (labels_N >= classes.start) & (labels_N < classes.stop)
            place_N1 = torch.where(here_N, labels_N - classes.start, 0)[:, None]
            right_N = torch.where(here_N, Z_NC.gather(1, place_N1)[:, 0], 0)
            whole_N = counts_N * (largest_N + sum_N.log()) if axis.index == 0 else torch.zeros_like(sum_N)
            P_NC = E_NC.div_(sum_N[:, None]).mul_(counts_N[:, None])
            G_NC = P_NC.scatter_add_(1, place_N1, -here_N.to(P_NC.dtype)[:, None]).div_(of)
            saved.G_NC = G_NC[:, :width]
            return (whole_N - right_N).sum() / of

    @staticmethod
    def backward(saved: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Softmax minus one at the label, of the rows that count."""
        with _elementwise(saved.ledger):
            return saved.G_NC * gradients[0], None, None, None, None


def guess(Z_NC: Tensor, classes: range, axis: Axis) -> Tensor:
    """The class with the largest logit of every row; of equal ones the first."""
    best_N, place_N = _at_least_one(Z_NC).max(dim=1)
    largest_N = axis.all_reduce(best_N.clone(), tensor=TensorName.Z, op=Reduction.MAX)
    before = torch.iinfo(torch.int64).max - (place_N + classes.start)
    first_N = torch.where(best_N == largest_N, before, 0)
    axis.all_reduce(first_N, tensor=TensorName.COUNT, op=Reduction.MAX)
    return torch.iinfo(torch.int64).max - first_N


def _at_least_one(Z_NC: Tensor) -> Tensor:
    """A rank without classes has one that cannot be."""
    return Z_NC if Z_NC.shape[1] else Z_NC.new_full((len(Z_NC), 1), float("-inf"))


def _elementwise(ledger: Ledger) -> Any:
    return ledger.op(Op.ELEMENTWISE, tensor=TensorName.LOSS)
