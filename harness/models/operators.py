"""The operator set: what a model is written over. Plain torch is the serial set; a strategy brings another."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Hits(NamedTuple):
    """How many vertices of a split there are, and how many of them were classified rightly; whole graph.

    Of many classes a vertex, all answers that are yes or should be, and twice those that are and should: their ratio is
    the micro-averaged F1, which is the accuracy where every vertex has one class.
    """

    right: int
    of: int


class Operators(Protocol):
    """One rank's operators. A call says its layer; whatever else an operator needs, its set holds.

    Shapes are those of this rank's pieces: which rows and columns of the whole they are is the strategy's layout, and
    what one operator returns is laid out as the next one takes it.
    """

    def inputs(self) -> Tensor:
        """This rank's part of the input features, (rows, features); a leaf of autograd where they are trained."""

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Z = A H W, (rows, features out), of H (rows, features in) and this rank's piece W of the weights.

        Aggregation and combination are one operator: their order, the backward and the words are the strategy's.
        """

    def activate(self, layer: int, Z: Tensor) -> Tensor:
        """H = ReLU(Z), of the same shape."""

    def loss(self, Z: Tensor) -> Tensor:
        """The mean loss over all training vertices of the whole graph, () and the same on every rank.

        Cross-entropy; where a vertex has many classes, binary cross-entropy, a mean over these too.

        Its backward starts this rank's share of the gradient.
        """

    def evaluate(self, Z: Tensor) -> dict[str, Hits]:
        """Right answers by split over the whole graph, the same on every rank."""
