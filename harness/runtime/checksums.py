"""Checksums of parameters and gradients, taken after every epoch and compared when training is over.

Replicas of a parameter must stay bitwise equal, and all numbers must stay finite. Comparing after training needs no
synchronization between epochs and still finds the first wrong epoch. Any tensor with a non-finite number has the same
reserved checksum, so the checksums also show in which epoch and in which tensor a run diverged.
"""

import time
from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from harness.base.errors import RunError
from harness.comm.grid import Grid
from harness.ledger import TensorName
from harness.results.schema import DIVERGED
from harness.runtime.fault import Fault
from harness.runtime.trainer import Epoch, Trainer
from harness.strategy import Piece, Strategy
from harness.strategy.models import Operators

NOT_FINITE = torch.iinfo(torch.int64).min
"""The checksum of a tensor that holds an infinity or a NaN."""
OPERATORS = ("inputs", "linear", "convolve", "attend", "finish", "add")
"""The operators whose results are checked after a run has diverged."""


def bit_checksums(parameters: Sequence[Tensor]) -> Tensor:
    """Return one 64-bit number for each tensor, which changes if a bit changes or if two elements are swapped."""
    return torch.stack([_sum_of_bits(parameter.detach()) for parameter in parameters])


def _sum_of_bits(parameter: Tensor) -> Tensor:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[parameter.element_size()]
    bits = parameter.contiguous().view(integer).flatten().to(torch.int64)
    place = 2 * torch.arange(len(bits), device=parameter.device) + 1
    return torch.where(parameter.isfinite().all(), (bits * place).sum(), NOT_FINITE)


def gradient_checksums(trainer: Trainer) -> Tensor:
    """Return 0 for each finite gradient and `NOT_FINITE` for every other."""
    finite = [W.grad is None or W.grad.isfinite().all() for W in trainer.parameters]
    flags = torch.stack([torch.as_tensor(flag, device=trainer.ctx.device) for flag in finite])
    return torch.where(flags, 0, NOT_FINITE)


def gather_checksums(grid: Grid, epochs: list[Tensor]) -> Tensor:
    """Gather the checksums of all ranks, (ranks, epochs, tensors). `epochs` has this rank's checksums, oldest first."""
    return grid.world.all_gather(torch.stack(epochs)[None], tensor=TensorName.PARAMETERS).cpu()


def check_replicas(strategy: Strategy, checksums: Tensor) -> None:
    """Raise an error if two ranks with the same piece of a parameter ever held different bits of it."""
    first: dict[tuple[int, Piece], int] = {}
    for rank in range(strategy.spec.ranks):
        for number, piece in enumerate(strategy.parameter_pieces(rank)):
            other = first.setdefault((number, piece), rank)
            differs = checksums[rank, :, number] != checksums[other, :, number]
            if differs.any():
                which = [*strategy.weights, "the input features"][number]
                raise RunError(
                    f"Replicas differ: after epoch {int(differs.nonzero()[0])} (warm-up included) ranks {other} and "
                    f"{rank} hold different values of {which}, of which both hold the same piece. "
                    "The strategy lost a reduction, or the ranks did not start alike."
                )


# Divergence: the epoch and the tensor in which a number was not finite for the first time.
#
# Every rank knows the loss of the whole graph, so all ranks stop in the same epoch without a message. The tensor is
# searched for after training.


class NonFiniteTensor(NamedTuple):
    """The first tensor that was not finite, and the first rank that saw it."""

    rank: int
    tensor: str


def find_divergence(
    trainer: Trainer, epochs: Sequence[int], last: Epoch, before: Sequence[Tensor], checksums: Tensor
) -> Fault | None:
    """Return the fault of a run that diverged, or None if all numbers stayed finite. All ranks must call this function.

    `before` are the weights at the start of the last epoch. `checksums` has the checksums of all ranks:
    first of the parameters, then of their gradients.
    """
    stopped = not isfinite(last.loss.item())
    is_lost = (checksums == NOT_FINITE).any(dim=2).any(dim=0)
    if stopped:
        is_lost[-1] = False  # the loss came before the gradients
    if is_lost.any():
        number = int(is_lost.nonzero()[0])
        return _make_fault(trainer, epochs[number], _first_in_epoch(trainer, checksums[:, number]))
    if stopped:
        return _make_fault(trainer, epochs[-1], _first_in_training(trainer, last, before), last.loss.item())
    world = trainer.ctx.grid.world
    finite = world.all_gather(trainer.output_is_finite[None].long(), tensor=TensorName.PARAMETERS)
    if finite.all():
        return None
    first = _first_in_forward(trainer) or NonFiniteTensor(
        int((finite == 0).nonzero()[0]), "the output of the model"
    )
    return _make_fault(trainer, epochs[-1], first._replace(tensor=f"evaluated after it, {first.tensor}"))


def _first_in_epoch(trainer: Trainer, checksums: Tensor) -> NonFiniteTensor:
    """Return the first non-finite tensor of an epoch: gradients from the last layer to the first, then parameters."""
    weights = [str(weight) for weight in trainer.strategy.weights]
    count = len(trainer.parameters)
    names = [*weights, "the input features"][:count]
    order = [(count + number, f"the gradient of {names[number]}") for number in reversed(range(count))]
    order += list(enumerate(names))
    for column, name in order:
        ranks = (checksums[:, column] == NOT_FINITE).nonzero()
        if len(ranks):
            return NonFiniteTensor(int(ranks[0]), name)
    raise AssertionError("some tensor is not finite")


def _first_in_training(trainer: Trainer, last: Epoch, before: Sequence[Tensor]) -> NonFiniteTensor:
    """Repeat the forward pass of an epoch and return its first non-finite tensor, or else the loss of a step.

    Trained features are not copied before an epoch, so with them only the loss is known.
    """
    kept = [W.detach().clone() for W in trainer.weights]
    for W, old in zip(trainer.weights, before, strict=True):
        W.data.copy_(old)
    first = _first_in_forward(trainer) if not trainer.ctx.spec.training.features else None
    for W, new in zip(trainer.weights, kept, strict=True):
        W.data.copy_(new)
    step = int((~last.losses.isfinite()).nonzero()[0])
    return first or NonFiniteTensor(0, f"the loss of step {step}" if len(last.losses) > 1 else "the loss")


def _first_in_forward(trainer: Trainer) -> NonFiniteTensor | None:
    """Return the first result of an operator on the whole graph that is not finite on some rank."""
    watch = _FiniteCheck(trainer.operators)
    with torch.no_grad():
        watch.check_finite("the output of the model", trainer.forward(cast(Operators, watch)))
    world = trainer.ctx.grid.world
    firsts = torch.tensor([watch.first], device=trainer.ctx.device)
    first = world.all_gather(firsts, tensor=TensorName.PARAMETERS).tolist()
    rank = min(range(len(first)), key=first.__getitem__)
    return NonFiniteTensor(rank, watch.names[first[rank]]) if first[rank] < len(watch.names) else None


class _FiniteCheck:
    """Wraps operators, and keeps the number of the first result that is not finite."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self.names: list[str] = []
        self.first = torch.iinfo(torch.int64).max

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._operators, name)
        if name not in OPERATORS:
            return value

        def call_and_check(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            self.check_finite(_describe_result(name, *args), result)
            return result

        return call_and_check

    def check_finite(self, name: str, result: Any) -> None:
        if isinstance(result, Tensor) and not result.isfinite().all():
            self.first = min(self.first, len(self.names))
        self.names.append(name)


def _describe_result(operator: str, where: object = None, *_: object) -> str:
    """Describe the result of an operator; `where` is a part of the model or the number of a layer."""
    if where is None:
        return "the input features"
    place = f"in layer {where}" if isinstance(where, int) else f"by the {where}"
    return f"the output of `{operator}` {place}"


def _make_fault(trainer: Trainer, epoch: int, lost: NonFiniteTensor, loss: float | None = None) -> Fault:
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
