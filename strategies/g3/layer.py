"""What the pipelines ask of a layer: one object a layer and epoch, `convolution.Convolution` or `attention.Attention`.

Legend as in `pipeline`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from harness.kernels import Csr
from harness.kernels.recorded import Kernels
from harness.strategy import Context
from strategies.g3.schedule import Message, Schedule


class Here(NamedTuple):
    """What all layers of a rank have."""

    kernels: Kernels
    layers: int
    heads: int
    plan: Schedule
    matrices: Any
    """As `hold` left them."""


class Layer(Protocol):
    """A layer in one epoch: what it computes of every bin, and on the way back of every bin and every message."""

    number: int
    H_NF: Tensor
    H_KF: Tensor
    """Filled message by message; in the first layer all of it is there."""

    def __init__(self, here: Here, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]): ...

    @staticmethod
    def hold(ctx: Context, plan: Schedule, vertices: range, A_NK: Csr) -> Any:
        """The matrices of a rank, for all layers."""

    def arrived(self, slots: range) -> None:
        """These rows of H_KF are there."""

    def output(self, number: int, land: Callable[[], None]) -> Tensor:
        """Z of a bin; after `land`, all that it needs of others is there."""

    def turn(self, G_NH: Tensor) -> None:
        """The way back begins."""

    def from_output(self, number: int) -> None:
        """What the gradient of a bin's output is good for. Bins come from the last to the first."""

    def of_message(self, message: Message) -> Tensor:
        """dH_MF, when all bins have come that took of these rows."""

    def gradients(self) -> Iterator[Tensor]:
        """Those of the weights, this rank's share, when all bins have come."""

    def of_bin(self, number: int) -> Tensor:
        """dH_BF of this rank's own, after that."""
