"""Sums of weight gradients: over the ranks that multiplied by other rows, then over data-parallel groups.

With overlap a sum is under way while the backward pass continues, and autograd never sees its buffer: a buffer that a
collective still writes to must not be added to anything. A sum is put into `W.grad` once it has arrived.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Pending
from harness.ledger import Phase, TensorName
from harness.parallel.row_strategy import reduce_all_gradients

Sums = list[tuple[Tensor, Pending[Tensor]]]
"""Each weight, and the sum of its gradient that is under way."""


class Gradients:
    """The gradients of one training step."""

    def __init__(self, groups: Axis, *, overlap: bool) -> None:
        """The members of `groups` train the same weights on other mini-batches."""
        self._groups, self._overlap = groups, overlap
        self._within_group: Sums = []
        self._across_groups: Sums = []

    def reduce(
        self, W: Tensor, dW: Tensor, over: Axis, tensor: TensorName, wire: torch.dtype | None = None
    ) -> Tensor | None:
        """The gradient of W for autograd, summed over an axis; None while the sum is under way."""
        if not self._overlap:
            return over.all_reduce(dW, tensor=tensor, wire=wire)
        self._advance()
        self._within_group.append((W, over.all_reduce.later(dW, tensor=tensor, wire=wire)))
        return None

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Completes every sum and puts the result into the weight's `grad`."""
        if not self._overlap:
            reduce_all_gradients(weights, self._groups)
            return
        self._advance()
        for W, coming in self._across_groups:
            W.grad = coming.wait()

    def _advance(self) -> None:
        """Starts the sum across groups of every gradient that is summed within this group."""
        for W, coming in self._within_group:
            dW = coming.wait()
            with self._groups.ledger.phase(Phase.SYNC, -1):
                self._across_groups.append((W, self._groups.all_reduce.later(dW, tensor=TensorName.DW)))
        self._within_group.clear()
