"""Sums of weight gradients: over the ranks that multiplied by other rows, then over data-parallel groups.

With overlap a sum is under way while the backward pass goes on, and autograd never sees it: a buffer that somebody
still writes to must not be added to anything. The gradient is put where the optimiser looks once all has arrived.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Pending
from harness.ledger import Phase, TensorName


class Gradients:
    """Those of one training step."""

    def __init__(self, groups: Axis, *, overlap: bool) -> None:
        """Members of `groups` train the same weights on other mini-batches."""
        self._groups, self._overlap = groups, overlap
        self._first: list[tuple[Tensor, Pending[Tensor]]] = []
        self._last: list[tuple[Tensor, Pending[Tensor]]] = []

    def sum(
        self, W: Tensor, dW: Tensor, over: Axis, tensor: TensorName, wire: torch.dtype | None = None
    ) -> Tensor | None:
        """The gradient of W for autograd, summed over an axis; None where it is still on its way."""
        if not self._overlap:
            return over.all_reduce(dW, tensor=tensor, wire=wire)
        self._advance()
        self._first.append((W, over.all_reduce.later(dW, tensor=tensor, wire=wire)))
        return None

    def settle(self, weights: Sequence[Tensor]) -> None:
        """Brings every gradient to its end."""
        if not self._overlap:
            for W in weights:
                assert W.grad is not None
                self._send(W.grad)
            return
        self._advance()
        for W, coming in self._last:
            W.grad = coming.wait()

    def _advance(self) -> None:
        """What has been summed within this group goes on to the others."""
        for W, coming in self._first:
            dW = coming.wait()
            with self._groups.ledger.phase(Phase.SYNC, -1):
                self._last.append((W, self._groups.all_reduce.later(dW, tensor=TensorName.DW)))
        self._first.clear()

    def _send(self, dW: Tensor) -> None:
        with self._groups.ledger.phase(Phase.SYNC, -1):
            self._groups.all_reduce(dW, tensor=TensorName.DW)
