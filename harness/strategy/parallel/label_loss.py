"""Classification losses and accuracies of distributed logits.

Single-label tasks use cross-entropy, and predict the class with the largest logit. Multi-label tasks use binary
cross-entropy, and predict every class with a positive logit. If an axis splits the logits of a row, the forward pass
reduces two numbers per row, the largest logit and the sum of exponentials; the backward pass is local.

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
from harness.graph.model import SPLITS
from harness.kernels.recorded import Kernels
from harness.ledger import Ledger, Op, Phase, TensorName, apply
from harness.strategy import IGNORED, Context, Piece
from harness.strategy.models import Predictions, SplitAccuracy


@dataclass(frozen=True)
class LabelLoss(ABC):
    """The loss on a rank's rows and classes of the output."""

    kernels: Kernels
    over: Axis
    """The axis over which numbers of correct predictions are summed."""
    classes: int
    """The total number of classes."""
    labels: Tensor
    splits: dict[str, Tensor]
    denominator: int | Tensor
    """The number of vertices of all ranks over which the loss is averaged."""
    importance: Tensor | None = None
    """The weight of each row's loss; None for 1."""
    first_row: int = 0
    """The number of this rank's first row in the whole graph."""
    first_class: int = 0
    """The first of this rank's classes."""

    def select(self, places: Tensor, labels: Tensor | None = None, importance: Tensor | None = None) -> Self:
        """Return the loss on the rows at `places`, with these labels or others."""
        chosen = (self.labels if labels is None else labels).index_select(0, places)
        return replace(self, labels=chosen, importance=importance)

    def mean(self, Z_NC: Tensor, shares: Axis) -> Tensor:
        """Return the loss of the whole graph: the sum of the partial losses over an axis."""
        with shares.ledger.phase(Phase.LOSS):
            return shares.sum(self.partial_loss(Z_NC), tensor=TensorName.LOSS)

    def mean_of_batches(self, Z_NC: Tensor, rows: Axis, shares: Axis) -> Tensor:
        """Return the mean loss over the labelled vertices of all ranks' mini-batches.

        The members of `rows` together hold every row of every mini-batch once.
        """
        with rows.ledger.phase(Phase.LOSS):
            with rows.ledger.op(Op.ELEMENTWISE, tensor=TensorName.COUNT):
                counted = self._count_rows().to(Z_NC.dtype)
            denominator = rows.all_reduce(counted, tensor=TensorName.COUNT).clamp(min=1)
            loss = replace(self, denominator=denominator).partial_loss(Z_NC)
            return shares.sum(loss, tensor=TensorName.LOSS)

    def evaluate(self, Z_NC: Tensor) -> dict[str, SplitAccuracy]:
        """Return the accuracy of each split over the whole graph."""
        own = self.count_correct(Z_NC)
        counts = torch.stack([torch.stack(pair) for pair in own.values()])
        total = self.over.all_reduce(counts, tensor=TensorName.COUNT)
        return {name: SplitAccuracy(*pair) for name, pair in zip(own, total.tolist(), strict=True)}

    def gather_predictions(self, Z_NC: Tensor) -> dict[str, Predictions]:
        """Return the labels and predictions of each split on the first member of `over`; empty on other members."""
        splits_N = self._number_splits()
        rows = splits_N.nonzero()[:, 0]
        gathered = [_gather_rows(self.over, part) for part in self._predict_rows(Z_NC, rows)]
        chosen_N = _gather_rows(self.over, torch.stack([rows + self.first_row, splits_N[rows]], dim=1))
        return self._combine_predictions(chosen_N, gathered) if chosen_N else {}

    def _number_splits(self) -> Tensor:
        """Return the number of the split of each row, and 0 for rows without a label or a split."""
        numbers_N = torch.zeros(len(self.labels), dtype=torch.int64, device=self.labels.device)
        for name, labels in self.splits.items():
            first_label = labels if labels.dim() == 1 else labels[:, :1]
            if first_label.numel():
                numbers_N[first_label.reshape(len(labels)) != IGNORED] = SPLITS[name]
        return numbers_N

    @abstractmethod
    def _predict_rows(self, Z_NC: Tensor, rows: Tensor) -> list[Tensor]:
        """Return the labels and the predictions of some rows, as tensors that are gathered."""

    @abstractmethod
    def _combine_predictions(
        self, chosen_N: list[Tensor], gathered: list[list[Tensor]]
    ) -> dict[str, Predictions]:
        """Return the predictions of each split from the members' parts. `chosen_N` are their rows and splits."""

    @abstractmethod
    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        """Return this rank's part of the mean loss."""

    @abstractmethod
    def count_correct(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return this rank's two numbers of each split's `SplitAccuracy`."""

    def _count_rows(self) -> Tensor:
        """Return the number of this rank's labelled rows, ()."""
        first_label = self.labels if self.labels.dim() == 1 else self.labels[:, :1]
        return (first_label != IGNORED).sum()


class OneClass(LabelLoss):
    """The loss of single-label tasks, where a rank has all logits of its rows."""

    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        return self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._partial_loss, Z_NC)

    def _partial_loss(self, Z_NC: Tensor) -> Tensor:
        if self.importance is None:
            return cross_entropy(Z_NC, self.labels, ignore_index=IGNORED, reduction="sum") / self.denominator
        each_N = cross_entropy(Z_NC, self.labels, ignore_index=IGNORED, reduction="none")
        return (each_N * self.importance).sum() / self.denominator

    def predict(self, Z_NC: Tensor) -> Tensor:
        """Return the class with the largest logit of every row."""
        return Z_NC.argmax(dim=1)

    def _predict_rows(self, Z_NC: Tensor, rows: Tensor) -> list[Tensor]:
        labels_N = torch.full_like(self.labels, IGNORED)
        for split_N in self.splits.values():
            labels_N = torch.where(split_N == IGNORED, labels_N, split_N)
        return [torch.stack([labels_N[rows], self.predict(Z_NC)[rows]], dim=1)]

    def _combine_predictions(
        self, chosen_N: list[Tensor], gathered: list[list[Tensor]]
    ) -> dict[str, Predictions]:
        splits_N, (both_N2,) = torch.cat(chosen_N)[:, 1], (torch.cat(parts) for parts in gathered)
        return {
            name: Predictions(*both_N2[splits_N == number].split(1, dim=1)) for name, number in SPLITS.items()
        }

    def count_correct(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        predicted_N = self.predict(Z_NC)
        return {
            name: ((predicted_N == labels_N).sum(), (labels_N != IGNORED).sum())
            for name, labels_N in self.splits.items()
        }


@dataclass(frozen=True)
class OneClassSplit(OneClass):
    """The loss of single-label tasks, where an axis splits the logits of a row."""

    own: range = range(0)
    """The classes of this rank."""
    across: Axis | None = None

    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        axis, classes = self._axis, self.own
        loss: Tensor = apply(axis.ledger, CrossEntropy, Z_NC, self.labels, classes, axis, self.denominator)
        return loss

    def predict(self, Z_NC: Tensor) -> Tensor:
        return predict_split(Z_NC, self.own, self._axis)

    @property
    def _axis(self) -> Axis:
        assert self.across is not None
        return self.across


class ManyClasses(LabelLoss):
    """The loss of multi-label tasks. Logits are independent, so rows need no communication."""

    def partial_loss(self, Z_NC: Tensor) -> Tensor:
        return self.kernels.run(Op.ELEMENTWISE, TensorName.LOSS, self._partial_loss, Z_NC)

    def _partial_loss(self, Z_NC: Tensor) -> Tensor:
        counted_NC = (self.labels != IGNORED).to(Z_NC.dtype)
        if self.importance is not None:
            counted_NC = counted_NC * self.importance[:, None]
        yes_NC = self.labels.clamp(min=0).to(Z_NC.dtype)
        loss = binary_cross_entropy_with_logits(Z_NC, yes_NC, counted_NC, reduction="sum")
        return loss / (self.denominator * self.classes)

    def _predict_rows(self, Z_NC: Tensor, rows: Tensor) -> list[Tensor]:
        labels_NC = torch.full_like(self.labels, IGNORED)
        for split_NC in self.splits.values():
            labels_NC = torch.where(split_NC == IGNORED, labels_NC, split_NC)
        first_N = torch.full_like(rows, self.first_class)
        return [first_N[:, None], labels_NC[rows], Z_NC[rows]]

    def _combine_predictions(
        self, chosen_N: list[Tensor], gathered: list[list[Tensor]]
    ) -> dict[str, Predictions]:
        whole = torch.cat(chosen_N).unique(
            dim=0
        )  # sorted by rows: members may have other classes of the same row
        labels_NC = gathered[1][0].new_full((len(whole), self.classes), IGNORED)
        logits_NC = gathered[2][0].new_zeros(len(whole), self.classes)
        for own_N2, first_N, own_labels_NC, own_logits_NC in zip(chosen_N, *gathered, strict=True):
            if own_labels_NC.numel():
                places = torch.searchsorted(whole[:, 0].contiguous(), own_N2[:, 0].contiguous())
                first, width = int(first_N[0]), own_labels_NC.shape[1]
                labels_NC[places, first : first + width] = own_labels_NC
                logits_NC[places, first : first + width] = own_logits_NC
        return {
            name: Predictions(labels_NC[whole[:, 1] == number], logits_NC[whole[:, 1] == number])
            for name, number in SPLITS.items()
        }

    def count_correct(self, Z_NC: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {name: _count_agreement(Z_NC > 0, labels_NC) for name, labels_NC in self.splits.items()}


def _count_agreement(yes_NC: Tensor, labels_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2 TP, and positive predictions plus positive labels. Their quotient is the F1 score."""
    predicted_NC, labelled_NC = yes_NC & (labels_NC != IGNORED), labels_NC == 1
    return 2 * (predicted_NC & labelled_NC).sum(), predicted_NC.sum() + labelled_NC.sum()


def make_label_loss(
    ctx: Context, output: Piece, order: int, over: Axis, across: Axis | None, over_both: Axis
) -> LabelLoss:
    """Make the loss on a rank's piece of the output: `over` splits rows, `across` classes, and `over_both` both."""
    labels, splits = ctx.blocks.training_labels(output, order), ctx.blocks.split_labels(output, order)
    denominator = max(ctx.facts.count_trained_vertices(ctx.spec.protocol), 1)
    is_multi_label = ctx.facts.task == "multi-label"
    counts_over = over_both if is_multi_label else over
    first = None, output.rows.start, output.cols.start
    common = ctx.kernels, counts_over, ctx.facts.classes, labels, splits, denominator, *first
    if is_multi_label:
        return ManyClasses(*common)
    return OneClassSplit(*common, output.cols, across) if across else OneClass(*common)


def _gather_rows(axis: Axis, x: Tensor) -> list[Tensor]:
    """Return the matrices of all members on the first one, and an empty list on the others."""
    shapes = axis.all_gather(torch.tensor([x.shape], device=x.device), tensor=TensorName.COUNT).tolist()
    receives = {member: tuple(shape) for member, shape in enumerate(shapes)} if axis.index == 0 else {}
    received = axis.exchange({0: x.contiguous()}, receives, dtype=x.dtype, tensor=TensorName.COUNT)
    return [received[member] for member in sorted(received)]


class CrossEntropy(Function):
    """Cross-entropy with the classes of a row split over an axis. Returns this rank's part of the mean."""

    @staticmethod
    def forward(
        saved: Any, Z_NC: Tensor, labels_N: Tensor, classes: range, axis: Axis, denominator: int | Tensor
    ) -> Tensor:
        """Rows with a negative label are ignored; every other row has the weight 1 / `denominator`."""
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
            G_NC = P_NC.scatter_add_(1, place_N1, -owned_N.to(P_NC.dtype)[:, None]).div_(denominator)
            saved.G_NC = G_NC[:, :width]
            return (whole_N - right_N).sum() / denominator

    @staticmethod
    def backward(saved: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return the gradient of each labelled row: the softmax, minus one at the label."""
        with _elementwise(saved.ledger):
            return saved.G_NC * gradients[0], None, None, None, None


def predict_split(Z_NC: Tensor, classes: range, axis: Axis) -> Tensor:
    """Return the class with the largest logit of every row, the first one on ties."""
    best_N, place_N = _pad_empty_logits(Z_NC).max(dim=1)
    largest_N = axis.all_reduce(best_N.clone(), tensor=TensorName.LOSS, op=Reduction.MAX)
    before = torch.iinfo(torch.int64).max - (place_N + classes.start)
    first_N = torch.where(best_N == largest_N, before, 0)
    axis.all_reduce(first_N, tensor=TensorName.COUNT, op=Reduction.MAX)
    return torch.iinfo(torch.int64).max - first_N


def _pad_empty_logits(Z_NC: Tensor) -> Tensor:
    """Return the logits; on a rank without classes, one logit of -inf per row."""
    return Z_NC if Z_NC.shape[1] else Z_NC.new_full((len(Z_NC), 1), float("-inf"))


def _elementwise(ledger: Ledger) -> Any:
    return ledger.op(Op.ELEMENTWISE, tensor=TensorName.LOSS)
