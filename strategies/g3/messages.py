"""Rows of bins, and their gradients, on their way from one rank to another: nobody waits for anybody to send."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.pending import Pending
from harness.ledger import Direction, Phase, TensorName
from strategies.g3.crossing import Address

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
NAMES = {FORWARD: TensorName.H, BACKWARD: TensorName.DH}

Coming = Pending[dict[int, Tensor]]
Arriving = dict[Address, Coming]


class Messages:
    """Those of one rank."""

    def __init__(self, over: Axis, widths: Sequence[int], dtype: torch.dtype, bins: int) -> None:
        """`widths` of the input of every layer; no rank has more bins."""
        self.over, self.widths, self.dtype, self.bins = over, widths, dtype, bins
        self.leaving: list[Coming] = []

    def post(self, direction: Direction, layer: int, rows: Mapping[Address, int]) -> Arriving:
        """All receives of a layer, of so many rows each, before anything is computed."""
        with self.over.ledger.phase(Phase.CONVOLVE, layer):
            return {
                (peer, number): self.over.exchange.later(
                    {},
                    {peer: (height, self.widths[layer])},
                    dtype=self.dtype,
                    tensor=NAMES[direction],
                    tag=self._tag(direction, layer, number),
                )
                for (peer, number), height in rows.items()
            }

    def send(self, direction: Direction, layer: int, to: Address, rows: Tensor) -> None:
        """Those of a bin leave."""
        peer, number = to
        tag = self._tag(direction, layer, number)
        self.leaving.append(
            self.over.exchange.later({peer: rows}, {}, dtype=self.dtype, tensor=NAMES[direction], tag=tag)
        )

    def finish(self) -> None:
        """Waits until everything that was sent has left."""
        for pending in self.leaving:
            pending.wait()
        self.leaving.clear()

    def _tag(self, direction: Direction, layer: int, number: int) -> int:
        """One for every message between two ranks in an epoch."""
        return (2 * layer + (direction is BACKWARD)) * (self.bins + 1) + number + 1
