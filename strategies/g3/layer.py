"""What the pipelines ask of a layer: one object a layer and epoch, `convolution.Convolution` or `attention.Attention`.

Legend as in `pipeline`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from harness.kernels import Csr, on_device
from harness.kernels.recorded import Kernels
from harness.strategy import Context
from strategies.g3.schedule import Message, Schedule


class Here(NamedTuple):
    """What all layers of a rank have."""

    kernels: Kernels
    device: torch.device
    layers: int
    heads: int
    plan: Schedule
    matrices: Any
    """As `hold` left them."""

    def brought(self, A: Csr) -> Csr:
        """A matrix on the device, where it may have been all the time."""
        return on_device(A, self.device)


class Layer(Protocol):
    """A layer in one epoch: what it computes of every bin, and on the way back of every bin and every message.

    What a step wants of a bin that is not at hand, its matrices if these are on the host and rows of this rank that
    must stand together, a method of its own makes: maybe on another thread, while the bin before is computed.
    """

    number: int
    H_NF: Tensor
    H_KF: Tensor
    """Filled message by message; in the first layer all of it is there."""

    def __init__(self, here: Here, number: int, H_NF: Tensor, H_KF: Tensor, weights: Sequence[Tensor]): ...

    @staticmethod
    def hold(ctx: Context, plan: Schedule, vertices: range, A_NK: Csr, keep: Callable[[Csr], Csr]) -> Any:
        """The matrices of a rank, for all layers; those of bins by `keep`."""

    def arrived(self, slots: range) -> None:
        """These rows of H_KF are there."""

    def stage_begin(self, number: int) -> Any: ...

    def begin(self, number: int, at_hand: Any) -> None:
        """What can be had of Z of a bin before others are there: of a layer that waits, of all bins first."""

    def stage_output(self, number: int) -> Any: ...

    def output(self, number: int, at_hand: Any, land: Callable[[], None]) -> Tensor:
        """Z of a bin; after `land`, all that it needs of others is there."""

    def turn(self, G_NH: Tensor) -> None:
        """The way back begins."""

    def stage_from_output(self, number: int) -> Any: ...

    def from_output(self, number: int, at_hand: Any) -> None:
        """What the gradient of a bin's output is good for. Bins come from the last to the first."""

    def of_message(self, message: Message) -> Tensor:
        """dH_MF, when all bins have come that took of these rows."""

    def gradients(self) -> Iterator[Tensor]:
        """Those of the weights, this rank's share, when all bins have come."""

    def stage_of_bin(self, number: int) -> Any: ...

    def of_bin(self, number: int, at_hand: Any) -> Tensor:
        """dH_BF of this rank's own, after that."""
