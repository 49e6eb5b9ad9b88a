"""The operator set: what a model is written over. Plain torch is the serial set; a strategy brings another."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from harness.kernels.random import LANE_BITS, Purpose, mask
from harness.models.weights import Part


class Hits(NamedTuple):
    """How many vertices of a split there are, and how many of them were classified rightly; whole graph.

    Of many classes a vertex, all answers that are yes or should be, and twice those that are and should: their ratio is
    the micro-averaged F1, which is the accuracy where every vertex has one class.
    """

    right: int
    of: int

    @property
    def share(self) -> float:
        """Of nothing, nothing is right."""
        return self.right / self.of if self.of else 0.0


class Skip(NamedTuple):
    """The input of a layer: what the layer computes from, and what will be added to its output."""

    H: Tensor
    kept: Any
    """What `add` takes; a set's own business."""


class Operators(Protocol):
    """One rank's operators. A call says its layer; whatever else an operator needs, its set holds.

    Shapes are those of this rank's pieces: which rows and columns of the whole they are is the strategy's layout, and
    what one operator returns is laid out as the next one takes it.
    """

    def of_step(self, step: int) -> "Operators":
        """The set of a training step, counted from 0 through all epochs: of its mini-batch, with its dropout masks.

        The set that a strategy makes is that of the whole graph, and drops nothing.
        """

    def inputs(self) -> Tensor:
        """This rank's part of the input features, (rows, features); a leaf of autograd where they are trained."""

    def linear(self, part: Part, H: Tensor, W: Tensor) -> Tensor:
        """H W: the projection of the features to the hidden width, or of the last layer to the classes."""

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Z = A H W, (rows, features out), of H (rows, features in) and this rank's piece W of the weights.

        Aggregation and combination are one operator: their order, the backward and the words are the strategy's.
        """

    def attend(self, layer: int, H: Tensor, W: Tensor, a: Tensor) -> Tensor:
        """The same with attention in place of A, a (2, features of all heads): `harness.models.gat`.

        Asked of the strategies that train gat.
        """

    def finish(self, layer: int, Z: Tensor, gamma: Tensor | None) -> Tensor:
        """H = dropout(ReLU(norm(Z))), of the same shape; without a scale gamma nothing is normalised."""

    def keep(self, layer: int, H: Tensor) -> Skip:
        """Sets the input of a layer aside, to be added to its output."""

    def add(self, layer: int, H: Tensor, skip: Skip) -> Tensor:
        """The output of a layer plus its input, laid out as the output."""

    def loss(self, Z: Tensor) -> Tensor:
        """The mean loss over the training vertices of the whole graph, or of all mini-batches of the step.

        Cross-entropy; where a vertex has many classes, binary cross-entropy, a mean over these too.

        (), the same on every rank. Its backward starts this rank's share of the gradient.
        """

    def settle(self, weights: Sequence[Tensor]) -> None:
        """Whatever is left to be done to the gradients of the weights once the backward pass is over."""

    def evaluate(self, Z: Tensor) -> dict[str, Hits]:
        """Right answers by split over the whole graph, the same on every rank."""


# Masks of dropout: each bit a function of the seed, the step, the group, the layer, the vertex and the
# feature.
#
# So a mask does not depend on how a matrix is split, and ranks that hold the same piece drop the same of
# it.


def dropout_mask(
    seed: tuple[int, int, int, int], vertices: Tensor, features: range, rate: float
) -> tuple[Tensor, float]:
    """What is kept, (vertices, features), and by what it is multiplied. The seed is of seed, step, group and layer.

    The rate is rounded to a multiple of 2^-16, and so is the scale: the expectation is exact.
    """
    kept = round((1 - rate) * (1 << LANE_BITS))
    return mask(seed, Purpose.DROPOUT, vertices, features, kept), (1 << LANE_BITS) / kept


def dropped(H: Tensor, kept: Tensor, scale: float) -> Tensor:
    """H where it is kept, scaled up."""
    return torch.where(kept, H * scale, 0)
