"""Reduction of weight gradients: first within a group of ranks that split the rows, then across data-parallel groups.

With overlap, reductions are in flight while the backward pass continues. Autograd never sees their buffers, because it
could accumulate into one that is still being written; the result is assigned to `W.grad` after the wait.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Pending
from harness.ledger import Phase, TensorName
from harness.strategy.parallel.row_strategy import reduce_all_gradients

Sums = list[tuple[Tensor, Pending[Tensor]]]
"""Pairs of a weight and the pending sum of its gradient."""


class Gradients:
    """The gradients of one training step."""

    def __init__(self, groups: Axis, *, overlap: bool) -> None:
        """The members of `groups` train the same weights on different mini-batches."""
        self._groups, self._overlap = groups, overlap
        self._within_group: Sums = []
        self._across_groups: Sums = []

    def reduce(
        self, W: Tensor, dW: Tensor, over: Axis, tensor: TensorName, wire: torch.dtype | None = None
    ) -> Tensor | None:
        """Return the gradient of W summed over an axis, for autograd; None if the sum is in flight."""
        if not self._overlap:
            return over.all_reduce(dW, tensor=tensor, wire=wire)
        self._advance()
        self._within_group.append((W, over.all_reduce.later(dW, tensor=tensor, wire=wire)))
        return None

    def reduce_gradients(self, weights: Sequence[Tensor]) -> None:
        """Complete all reductions and assign the results to the weights' `grad`."""
        if not self._overlap:
            reduce_all_gradients(weights, self._groups)
            return
        self._advance()
        for W, pending in self._across_groups:
            W.grad = pending.wait()

    def _advance(self) -> None:
        """Start the sum across groups of every gradient that was summed within this group."""
        for W, pending in self._within_group:
            dW = pending.wait()
            with self._groups.ledger.phase(Phase.SYNC, -1):
                self._across_groups.append((W, self._groups.all_reduce.later(dW, tensor=TensorName.DW)))
        self._within_group.clear()
