"""The operator set that a model is written over. Plain torch is the serial set; every strategy has a set of its own."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from harness.kernels.random import LANE_BITS, Purpose, derive_signed_key, random_mask
from harness.models.weights import Part


class SplitAccuracy(NamedTuple):
    """The vertices of a split that were classified rightly, and all vertices of the split, in the whole graph.

    Where a vertex may have many classes: twice the answers that are yes and should be, and the sum of both kinds. The
    ratio is the micro-averaged F1, which is the accuracy where every vertex has one class.
    """

    correct: int
    total: int

    @property
    def ratio(self) -> float:
        """The ratio; 0 for an empty split."""
        return self.correct / self.total if self.total else 0.0


class Skip(NamedTuple):
    """The input of a layer, in two forms: the layer computes from `H`, and `add` adds `kept` to the layer's output."""

    H: Tensor
    kept: Any


class Operators(Protocol):
    """The operators of one rank that every model needs. A call gives the layer; the set holds everything else.

    Shapes are those of this rank's pieces. The strategy's layout says which rows and columns of the whole they are;
    each operator returns its result in the layout that the next operator takes.
    """

    def for_step(self, step: int) -> "Operators":
        """The set of a training step, counted from 0 through all epochs: of its mini-batch, with its dropout masks.

        The set that a strategy makes is that of the whole graph, and drops nothing.
        """

    def inputs(self) -> Tensor:
        """This rank's part of the input features, (rows, features); a leaf of autograd if features are trained."""

    def linear(self, part: Part, H: Tensor, W: Tensor, layer: int = -1) -> Tensor:
        """H W: the projection of the features to the hidden width, the head, or a layer's root term.

        A root term has the layout of its layer's output.
        """

    def finish(self, layer: int, Z: Tensor, gamma: Tensor | None) -> Tensor:
        """H = dropout(ReLU(norm(Z))), of the same shape; without a scale gamma nothing is normalised."""

    def keep(self, layer: int, H: Tensor) -> Skip:
        """Sets the input of a layer aside, to be added to the layer's output."""

    def add(self, layer: int, H: Tensor, skip: Skip) -> Tensor:
        """The output of a layer plus its input, laid out as the output."""

    def loss(self, Z: Tensor) -> Tensor:
        """The mean loss over the training vertices of the whole graph, or of all mini-batches of the step.

        The loss is cross-entropy; for many classes a vertex, binary cross-entropy, with a mean over classes too.

        The result is a scalar, the same on every rank. Its backward starts this rank's share of the gradient.
        """

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Completes the gradients of the weights once the backward pass is over."""

    def evaluate(self, Z: Tensor) -> dict[str, SplitAccuracy]:
        """Right answers by split over the whole graph, the same on every rank."""


class ConvolutionOperators(Operators, Protocol):
    """The operators of a graph convolutional network: the kinds gcn and sage."""

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Z = A H W, (rows, features out), of H (rows, features in) and this rank's piece W of the weights.

        Aggregation and combination are one operator: their order, the backward and the words are the strategy's.
        """


class AttentionOperators(Operators, Protocol):
    """The operators of a graph attention network: the kind gat (`harness.models.gat`)."""

    def attend(self, layer: int, H: Tensor, W: Tensor, a: Tensor) -> Tensor:
        """Z = alpha H W, (rows, features out), the attention alpha computed with a (2, features of all heads)."""


# Each bit of a dropout mask is a function of the seed, the step, the group, the layer, the vertex and the feature.
# So a mask does not depend on how a matrix is split, and ranks that hold the same piece drop the same elements.


def dropout_mask(
    seed: tuple[int, int, int, int] | Tensor, vertices: Tensor, features: range, rate: float
) -> tuple[Tensor, float]:
    """The mask of kept elements, (vertices, features), and their scale. `seed`: seed, step, group and layer, or their
    key on the device.

    The rate is rounded to a multiple of 2^-16, and so is the scale: the expectation is exact.
    """
    kept = round((1 - rate) * (1 << LANE_BITS))
    return random_mask(seed, Purpose.DROPOUT, vertices, features, kept), (1 << LANE_BITS) / kept


def dropout_key(seed: tuple[int, int, int, int]) -> tuple[int, int]:
    """The key of a mask as two numbers of int64, which `dropout_mask` takes in a tensor on the device."""
    return derive_signed_key(seed, Purpose.DROPOUT)


def apply_dropout(H: Tensor, kept: Tensor, scale: float) -> Tensor:
    """H where the mask keeps it, scaled up; 0 elsewhere."""
    return torch.where(kept, H * scale, 0)
