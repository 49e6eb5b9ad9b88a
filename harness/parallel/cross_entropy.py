"""The cross-entropy of rows whose classes are split over an axis: what log-softmax and loss cost, and no more.

Two numbers a row travel forward, its largest logit and its sum of exponentials; nothing travels backward.
Legend: N this rank's vertices, C its classes.
Verifier (tests/parallel/test_cross_entropy.py): torch's own on whole rows.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from harness.comm.axis import Axis
from harness.comm.collectives import Reduction
from harness.ledger import Ledger, Op, TensorName


class CrossEntropy(Function):
    """This rank's share of the mean: the shares of all ranks add up to it."""

    @staticmethod
    def forward(
        saved: Any, Z_NC: Tensor, labels_N: Tensor, classes: range, axis: Axis, of: int | Tensor
    ) -> Tensor:
        """Rows whose label is negative do not count; each counts one `of` them all."""
        saved.ledger = ledger = axis.ledger
        with _elementwise(ledger):
            width, Z_NC = Z_NC.shape[1], _at_least_one(Z_NC)
            largest_N = Z_NC.amax(dim=1)
        axis.all_reduce(largest_N, tensor=TensorName.Z, op=Reduction.MAX)
        with _elementwise(ledger):
            E_NC = (Z_NC - largest_N[:, None]).exp_()
            sum_N = E_NC.sum(dim=1)
        axis.all_reduce(sum_N, tensor=TensorName.Z)
        with _elementwise(ledger):
            counts_N = (labels_N >= 0).to(Z_NC.dtype)
            here_N = (labels_N >= classes.start) & (labels_N < classes.stop)
            place_N1 = torch.where(here_N, labels_N - classes.start, 0)[:, None]
            right_N = torch.where(here_N, Z_NC.gather(1, place_N1)[:, 0], 0)
            whole_N = counts_N * (largest_N + sum_N.log()) if axis.index == 0 else torch.zeros_like(sum_N)
            P_NC = E_NC.div_(sum_N[:, None]).mul_(counts_N[:, None])
            G_NC = P_NC.scatter_add_(1, place_N1, -here_N.to(P_NC.dtype)[:, None]).div_(of)
            saved.G_NC = G_NC[:, :width]
            return (whole_N - right_N).sum() / of

    @staticmethod
    def backward(saved: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Softmax minus one at the label, of the rows that count."""
        with _elementwise(saved.ledger):
            return saved.G_NC * gradients[0], None, None, None, None


def guess(Z_NC: Tensor, classes: range, axis: Axis) -> Tensor:
    """The class with the largest logit of every row; of equal ones the first."""
    best_N, place_N = _at_least_one(Z_NC).max(dim=1)
    largest_N = axis.all_reduce(best_N.clone(), tensor=TensorName.Z, op=Reduction.MAX)
    before = torch.iinfo(torch.int64).max - (place_N + classes.start)
    first_N = torch.where(best_N == largest_N, before, 0)
    axis.all_reduce(first_N, tensor=TensorName.COUNT, op=Reduction.MAX)
    return torch.iinfo(torch.int64).max - first_N


def _at_least_one(Z_NC: Tensor) -> Tensor:
    """A rank without classes has one that cannot be."""
    return Z_NC if Z_NC.shape[1] else Z_NC.new_full((len(Z_NC), 1), float("-inf"))


def _elementwise(ledger: Ledger) -> Any:
    return ledger.op(Op.ELEMENTWISE, tensor=TensorName.LOSS)
