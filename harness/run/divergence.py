"""A run whose numbers are no longer finite: in which epoch that began, and in which tensor.

Every rank knows the loss of the whole graph, so all of them end in the same epoch without a word to each other. What
else there is to know is looked for once training is over: nothing is checked inside an epoch.
"""

import time
from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from harness.ledger import TensorName
from harness.models import Operators
from harness.results.statuses import DIVERGED
from harness.run.fault import Fault
from harness.run.replicas import NOT_FINITE
from harness.run.trainer import Epoch, Trainer

OPERATORS = ("inputs", "linear", "convolve", "attend", "finish", "add")
"""The operators whose results are looked at."""


class Lost(NamedTuple):
    """The first tensor that was not finite, and the rank that saw it first."""

    rank: int
    tensor: str


def signs(trainer: Trainer) -> Tensor:
    """What `replicas.checksum` says of the gradients of all parameters: only whether they are finite is used."""
    finite = [W.grad is None or W.grad.isfinite().all() for W in trainer.parameters]
    flags = torch.stack([torch.as_tensor(flag, device=trainer.ctx.device) for flag in finite])
    return torch.where(flags, 0, NOT_FINITE)


def divergence(
    trainer: Trainer, epochs: Sequence[int], last: Epoch, before: Sequence[Tensor], checksums: Tensor
) -> Fault | None:
    """The fault of a run that diverged; None where all numbers stayed finite. Every rank calls it at the same point.

    `before` are the weights with which the last epoch began; `checksums` those of parameters, then of their gradients,
    of all ranks.
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
    found = _in_forward(trainer) or Lost(int((finite == 0).nonzero()[0]), "the output of the model")
    return _fault(trainer, epochs[-1], found._replace(tensor=f"evaluated after it, {found.tensor}"))


def _parameter(trainer: Trainer, checksums: Tensor) -> Lost:
    """Of one epoch: the gradients of the last layer come first, then the parameters in their order."""
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
    """In the forward pass with the weights that an epoch began with, or in the loss of one of its steps.

    Features that are trained have no copy: where they are lost too, the loss is all that can be told.
    """
    kept = [W.detach().clone() for W in trainer.weights]
    for W, old in zip(trainer.weights, before, strict=True):
        W.data.copy_(old)
    found = _in_forward(trainer) if not trainer.ctx.spec.training.features else None
    for W, new in zip(trainer.weights, kept, strict=True):
        W.data.copy_(new)
    step = int((~last.losses.isfinite()).nonzero()[0])
    return found or Lost(0, f"the loss of step {step}" if len(last.losses) > 1 else "the loss")


def _in_forward(trainer: Trainer) -> Lost | None:
    """The first of the results of the operators, over the whole graph, of all ranks."""
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
            self.look_at(_place(name, *where), result)
            return result

        return watched

    def look_at(self, name: str, result: Any) -> None:
        if isinstance(result, Tensor) and not result.isfinite().all():
            self.first = min(self.first, len(self.names))
        self.names.append(name)


def _place(operator: str, where: object = None, *_: object) -> str:
    """The result of an operator in words. `where` is a part of the model or the number of a layer."""
    if where is None:
        return "the input features"
    return (
        f"the output of `{operator}` {f'in layer {where}' if isinstance(where, int) else f'by the {where}'}"
    )


def _fault(trainer: Trainer, epoch: int, lost: Lost, loss: float | None = None) -> Fault:
    training = trainer.ctx.spec.training
    kind = "warm-up epoch" if epoch < 0 else "epoch"
    told = "" if loss is None else f"; its loss is {loss}, and training ended there"
    message = (
        f"{kind} {epoch}: {lost.tensor} was the first tensor with a number that is not finite{told}. Choose a smaller "
        f"training.lr (it is {training.lr:g}), or precision float64."
    )
    return {
        "rank": lost.rank,
        "type": "Diverged",
        "message": message,
        "status": DIVERGED,
        "trace": "",
        "time": time.time(),
    }
