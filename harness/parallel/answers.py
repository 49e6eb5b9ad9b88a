"""What labels say of logits: a rank's share of the loss, and its right answers.

Of one class a vertex: cross-entropy, and the largest logit answers. Of many: for every class whether the vertex has
it, by binary cross-entropy, and a positive logit answers yes.
Legend: N this rank's vertices, C its classes, all of them or those that an axis leaves it.
"""

import copy
from typing import Protocol, Self

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from harness.comm.axis import Axis
from harness.ledger import Op, TensorName, apply
from harness.parallel.cross_entropy import CrossEntropy, guess
from harness.strategy import IGNORED, Context, Piece


class Answers(Protocol):
    """Of the rows and classes that a rank holds of the output."""

    over: Axis
    """The ranks whose right answers add up to those of the graph."""

    def on(self, places: Tensor) -> Self:
        """Of some of the rows alone; `mean_over` is to say how many the loss is a mean over."""

    def weigh(self, importance: Tensor) -> None:
        """The loss of every row counts so many times."""

    def mean_over(self, of: Tensor) -> None:
        """The loss is a mean over this many vertices, of all ranks."""

    def counted(self) -> Tensor:
        """How many of these rows the loss counts, ()."""

    def share(self, Z_NC: Tensor) -> Tensor:
        """This rank's part of the mean over all training vertices of the graph."""

    def right(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """By split, right answers and all (`harness.models.Hits`)."""


class Labelled:
    """Labels of this rank's rows, those that the loss counts and those of each split."""

    def __init__(self, ctx: Context, output: Piece, order: int, over: Axis) -> None:
        self.kernels, self.over = ctx.kernels, over
        self.of: int | Tensor = max(ctx.trained_on, 1)
        self.importance: Tensor | None = None
        self.classes = ctx.facts.classes
        self.labels = ctx.training_labels(output, order)
        self.splits = ctx.split_labels(output, order)

    def on(self, places: Tensor) -> Self:
        there = copy.copy(self)
        there.labels = self.labels.index_select(0, places)
        return there

    def weigh(self, importance: Tensor) -> None:
        self.importance = importance

    def mean_over(self, of: Tensor) -> None:
        self.of = of.clamp(min=1)

    def counted(self) -> Tensor:
        one_each = self.labels if self.labels.dim() == 1 else self.labels[:, :1]
        return (one_each != IGNORED).sum()


class OneClass(Labelled):
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


class OneClassSplit(OneClass):
    """The same where an axis splits the logits of a row."""

    def __init__(self, ctx: Context, output: Piece, order: int, over: Axis, across: Axis) -> None:
        super().__init__(ctx, output, order, over)
        self.here, self.across = output.cols, across

    def share(self, Z_NC: Tensor) -> Tensor:
        labels, classes = self.labels, self.here
        share: Tensor = apply(self.across.ledger, CrossEntropy, Z_NC, labels, classes, self.across, self.of)
        return share

    def guess(self, Z_NC: Tensor) -> Tensor:
        return guess(Z_NC, self.here, self.across)


class ManyClasses(Labelled):
    """A vertex has any number of classes; every logit stands for itself, so nothing is said across a row."""

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
    """Twice what is rightly said to be so, and all that is said to be so or is."""
    said_NC, are_NC = yes_NC & (labels_NC != IGNORED), labels_NC == 1
    return 2 * (said_NC & are_NC).sum(), said_NC.sum() + are_NC.sum()


def answers_of(
    ctx: Context, output: Piece, order: int, over: Axis, across: Axis | None, all_of: Axis
) -> Answers:
    """`over` splits the rows, `across` the classes; `all_of` is both."""
    if ctx.facts.task == "multi-label":
        return ManyClasses(ctx, output, order, all_of)
    return OneClassSplit(ctx, output, order, over, across) if across else OneClass(ctx, output, order, over)
