"""Checksums of parameters and gradients, one an epoch, compared when training is over: an epoch itself checks nothing.

Replicas of a parameter must stay equal to the bit, and all numbers must stay finite. Comparing later costs no
synchronisation between epochs and finds the same epoch. A tensor with a number that is not finite has one checksum of
its own, whatever its bits, so the same checksums show in which epoch and in which tensor a run diverged.
"""

import time
from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from harness.comm.grid import Grid
from harness.errors import RunError
from harness.ledger import TensorName
from harness.models import Operators
from harness.results.schema import DIVERGED
from harness.run.fault import Fault
from harness.run.trainer import Epoch, Trainer
from harness.strategy import Piece, Strategy

NOT_FINITE = torch.iinfo(torch.int64).min
"""The checksum of a tensor that holds an infinity or a NaN."""
OPERATORS = ("inputs", "linear", "convolve", "attend", "finish", "add")
"""The operators whose results are checked once a run has diverged."""


def checksum(parameters: Sequence[Tensor]) -> Tensor:
    """One 64-bit number for each tensor; any changed bit, and any two exchanged elements, change it."""
    return torch.stack([_sum_of_bits(parameter.detach()) for parameter in parameters])


def _sum_of_bits(parameter: Tensor) -> Tensor:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[parameter.element_size()]
    bits = parameter.contiguous().view(integer).flatten().to(torch.int64)
    place = 2 * torch.arange(len(bits), device=parameter.device) + 1
    return torch.where(parameter.isfinite().all(), (bits * place).sum(), NOT_FINITE)


def signs(trainer: Trainer) -> Tensor:
    """The checksums of all gradients, of which only finiteness is used: 0 for a finite one."""
    finite = [W.grad is None or W.grad.isfinite().all() for W in trainer.parameters]
    flags = torch.stack([torch.as_tensor(flag, device=trainer.ctx.device) for flag in finite])
    return torch.where(flags, 0, NOT_FINITE)


def everyone(grid: Grid, epochs: list[Tensor]) -> Tensor:
    """The checksums of all ranks, (ranks, epochs, tensors), from those of this rank, oldest first."""
    return grid.world.all_gather(torch.stack(epochs)[None], tensor=TensorName.PARAMETERS).cpu()


def compare(strategy: Strategy, checksums: Tensor) -> None:
    """Raises if two ranks that hold the same piece of a parameter ever held different bits of it."""
    first: dict[tuple[int, Piece], int] = {}
    for rank in range(strategy.spec.ranks):
        for number, piece in enumerate(strategy.parameters_of(rank)):
            other = first.setdefault((number, piece), rank)
            differs = checksums[rank, :, number] != checksums[other, :, number]
            if differs.any():
                which = [*strategy.weights, "the input features"][number]
                raise RunError(
                    f"Replicas differ: after epoch {int(differs.nonzero()[0])} (warm-up included) ranks {other} and "
                    f"{rank} hold different values of {which}, of which both hold the same piece. "
                    "The strategy lost a reduction, or the ranks did not start alike."
                )


# A run whose numbers are no longer finite: the epoch in which that began, and the tensor.
#
# Every rank knows the loss of the whole graph, so all ranks end in the same epoch without a message. The tensor is
# searched for once training is over.


class Lost(NamedTuple):
    """The first tensor that was not finite, and the first rank that saw it."""

    rank: int
    tensor: str


def divergence(
    trainer: Trainer, epochs: Sequence[int], last: Epoch, before: Sequence[Tensor], checksums: Tensor
) -> Fault | None:
    """The fault of a run that diverged; None where all numbers stayed finite. Every rank calls this at the same point.

    `before` are the weights with which the last epoch began; `checksums` are those of parameters, then of their
    gradients, of all ranks.
    """
    ended = not isfinite(last.loss.item())
    lost = (checksums == NOT_FINITE).any(dim=2).any(dim=0)
    if ended:
        lost[-1] = False  # the loss came before the gradients
    if lost.any():
        number = int(lost.nonzero()[0])
        return _fault(trainer, epochs[number], _parameter(trainer, checksums[:, number]))
    if ended:
        return _fault(trainer, epochs[-1], _in_training(trainer, last, before), last.loss.item())
    world = trainer.ctx.grid.world
    finite = world.all_gather(trainer.output_is_finite[None].long(), tensor=TensorName.PARAMETERS)
    if finite.all():
        return None
    first = _in_forward(trainer) or Lost(int((finite == 0).nonzero()[0]), "the output of the model")
    return _fault(trainer, epochs[-1], first._replace(tensor=f"evaluated after it, {first.tensor}"))


def _parameter(trainer: Trainer, checksums: Tensor) -> Lost:
    """The first tensor lost in an epoch: gradients come first, from the last layer on, then parameters in order."""
    weights = [str(weight) for weight in trainer.strategy.weights]
    count = len(trainer.parameters)
    names = [*weights, "the input features"][:count]
    order = [(count + number, f"the gradient of {names[number]}") for number in reversed(range(count))]
    order += list(enumerate(names))
    for column, name in order:
        ranks = (checksums[:, column] == NOT_FINITE).nonzero()
        if len(ranks):
            return Lost(int(ranks[0]), name)
    raise AssertionError("some tensor is not finite")


def _in_training(trainer: Trainer, last: Epoch, before: Sequence[Tensor]) -> Lost:
    """The first tensor lost in a forward pass with the weights that an epoch began with, or the loss of a step.

    Trained features have no copy: where they are lost too, only the loss is known.
    """
    kept = [W.detach().clone() for W in trainer.weights]
    for W, old in zip(trainer.weights, before, strict=True):
        W.data.copy_(old)
    first = _in_forward(trainer) if not trainer.ctx.spec.training.features else None
    for W, new in zip(trainer.weights, kept, strict=True):
        W.data.copy_(new)
    step = int((~last.losses.isfinite()).nonzero()[0])
    return first or Lost(0, f"the loss of step {step}" if len(last.losses) > 1 else "the loss")


def _in_forward(trainer: Trainer) -> Lost | None:
    """The first operator's result, over the whole graph and all ranks, that is not finite."""
    watch = _Watch(trainer.operators)
    with torch.no_grad():
        watch.look_at("the output of the model", trainer.forward(cast(Operators, watch)))
    world = trainer.ctx.grid.world
    firsts = torch.tensor([watch.first], device=trainer.ctx.device)
    first = world.all_gather(firsts, tensor=TensorName.PARAMETERS).tolist()
    rank = min(range(len(first)), key=first.__getitem__)
    return Lost(rank, watch.names[first[rank]]) if first[rank] < len(watch.names) else None


class _Watch:
    """Operators that remember which of their results, in the order of the calls, was the first that is not finite."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self.names: list[str] = []
        self.first = torch.iinfo(torch.int64).max

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._operators, name)
        if name not in OPERATORS:
            return value

        def watched(*where: Any, **more: Any) -> Any:
            result = value(*where, **more)
            self.look_at(_name_of_result(name, *where), result)
            return result

        return watched

    def look_at(self, name: str, result: Any) -> None:
        if isinstance(result, Tensor) and not result.isfinite().all():
            self.first = min(self.first, len(self.names))
        self.names.append(name)


def _name_of_result(operator: str, where: object = None, *_: object) -> str:
    """The result of an operator in words; `where` is a part of the model or the number of a layer."""
    if where is None:
        return "the input features"
    return (
        f"the output of `{operator}` {f'in layer {where}' if isinstance(where, int) else f'by the {where}'}"
    )


def _fault(trainer: Trainer, epoch: int, lost: Lost, loss: float | None = None) -> Fault:
    training = trainer.ctx.spec.training
    kind = "warm-up epoch" if epoch < 0 else "epoch"
    ending = "" if loss is None else f"; its loss is {loss}, and training ended with that epoch"
    message = (
        f"{kind} {epoch}: {lost.tensor} was the first tensor with a number that is not finite{ending}. Choose a "
        f"smaller training.lr (it is {training.lr:g}), or precision float64."
    )
    return {
        "rank": lost.rank,
        "type": "Diverged",
        "message": message,
        "status": DIVERGED,
        "trace": "",
        "time": time.time(),
    }
