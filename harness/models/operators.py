"""The operator set: what a model is written over. Plain torch is the serial set; a strategy brings another."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Hits(NamedTuple):
    """How many vertices of a split there are, and how many of them were classified rightly; whole graph."""

    right: int
    of: int


class Operators(Protocol):
    """One rank's operators. A call says its layer; whatever else an operator needs, its set holds."""

    def inputs(self) -> Tensor:
        """This rank's part of the input features."""

    def convolve(self, layer: int, H: Tensor, W: Tensor) -> Tensor:
        """Z = A H W: aggregation and combination. One operator: order, backward and words are the strategy's."""

    def activate(self, layer: int, Z: Tensor) -> Tensor:
        """ReLU."""

    def loss(self, Z: Tensor) -> Tensor:
        """The mean cross-entropy over all training vertices of the whole graph, the same number on every rank.

        Its backward starts this rank's share of the gradient.
        """

    def evaluate(self, Z: Tensor) -> dict[str, Hits]:
        """Right answers by split over the whole graph, the same on every rank."""
