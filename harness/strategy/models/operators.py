"""The operators that models are written in. Every strategy implements them for its distribution of the data."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from harness.kernels.random import LANE_BITS, Purpose, derive_signed_key, random_mask
from harness.strategy.models.weights import Part


class SplitAccuracy(NamedTuple):
    """The numbers of correctly classified vertices and of all vertices of a split, in the whole graph.

    For multi-label tasks they are twice the true positives, and the sum of positive predictions and positive labels, so
    that the ratio is the micro-averaged F1 score. For single-label tasks that equals the accuracy.
    """

    correct: int
    total: int

    @property
    def ratio(self) -> float:
        """The accuracy or F1 score; 0 for an empty split."""
        return self.correct / self.total if self.total else 0.0


class Predictions(NamedTuple):
    """The labels of some vertices, and what the model predicts for them.

    For single-label tasks, both are classes, (vertices, 1) int64. For multi-label tasks, both are (vertices, classes):
    labels of 0 and 1, and the logits.
    """

    labels: Tensor
    predicted: Tensor


class Skip(NamedTuple):
    """The input of a layer in two forms: `H` for the layer, and `saved`, which `add_input` adds to its output."""

    H: Tensor
    saved: Any


class Operators(Protocol):
    """The operators of one rank that every model needs. Calls pass the layer; the object holds everything else.

    Shapes are those of this rank's pieces. The strategy defines which rows and columns of the whole matrices they are;
    each operator returns its result in the layout that the next operator expects.
    """

    def for_step(self, step: int) -> "Operators":
        """Return the operators of a training step: on its mini-batch and with its dropout masks.

        Steps are counted from 0 through all epochs. The operators that a strategy makes first are those of the whole
        graph, without dropout.
        """

    def inputs(self) -> Tensor:
        """Return this rank's part of the input features, (rows, features): a leaf tensor if features are trained."""

    def linear(self, part: Part, H: Tensor, W: Tensor, layer: int = -1) -> Tensor:
        """Return H W: the projection of the features, the head, or a layer's root term.

        A root term is returned in the layout of its layer's output.
        """

    def finish(self, layer: int, Z: Tensor, gamma: Tensor | None) -> Tensor:
        """Return dropout(ReLU(norm(Z))), of the same shape. If gamma is None, there is no normalisation."""

    def save_input(self, layer: int, H: Tensor) -> Skip:
        """Save the input of a layer, to be added to the layer's output."""

    def add_input(self, layer: int, H: Tensor, skip: Skip) -> Tensor:
        """Return the output of a layer plus its saved input, in the layout of the output."""

    def loss(self, Z: Tensor) -> Tensor:
        """Return the mean loss over the training vertices of the whole graph, or of all mini-batches of the step.

        The loss is cross-entropy; for multi-label tasks, binary cross-entropy averaged over classes too.

        The result is a scalar, the same on every rank. Its backward pass starts this rank's part of the gradient.
        """

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Complete the reductions of the weights' gradients, after the backward pass."""

    def evaluate(self, Z: Tensor) -> dict[str, SplitAccuracy]:
        """Return the accuracy of each split over the whole graph, the same on every rank."""


@runtime_checkable
class GatheringOperators(Protocol):
    """Operators that can gather predictions, for metrics that need them all on one rank."""

    def gather_predictions(self, Z: Tensor) -> dict[str, Predictions]:
        """Return the labels and predictions of each split on rank 0. All ranks call this with the model's output."""


class ConvolutionOperators(Operators, Protocol):
    """The operators of a graph convolutional network: the kinds gcn and sage."""

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Return Z = A H W, (rows, features out), for H (rows, features in) and this rank's piece W of the weights.

        Aggregation and combination are one operator, so that a strategy chooses their order and their communication.
        """


class AttentionOperators(Operators, Protocol):
    """The operators of a graph attention network: the kind gat (`harness.strategy.models.gat`)."""

    def attend(self, layer: int, H: Tensor, W: Tensor, a: Tensor) -> Tensor:
        """Return Z = alpha H W, (rows, features out); a (2, features of all heads) gives the attention alpha."""


# Each bit of a dropout mask is a function of the seed, the step, the group, the layer, the vertex and the feature, so
# masks do not depend on how a matrix is split, and ranks that hold the same piece drop the same elements.


def dropout_mask(
    seed: tuple[int, int, int, int] | Tensor, vertices: Tensor, features: range, rate: float
) -> tuple[Tensor, float]:
    """Return the mask of kept elements, (vertices, features), and their scale.

    `seed` is (seed, step, group, layer), or a device tensor with their key. The rate is rounded to a multiple of 2^-16,
    and the scale matches it, so that the expectation is exact.
    """
    kept = round((1 - rate) * (1 << LANE_BITS))
    return random_mask(seed, Purpose.DROPOUT, vertices, features, kept), (1 << LANE_BITS) / kept


def dropout_key(seed: tuple[int, int, int, int]) -> tuple[int, int]:
    """Return the key of a mask as two int64 numbers, which `dropout_mask` accepts as a device tensor."""
    return derive_signed_key(seed, Purpose.DROPOUT)


def apply_dropout(H: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Return H * scale where the mask is True, and 0 elsewhere."""
    return torch.where(kept, H * scale, 0)
