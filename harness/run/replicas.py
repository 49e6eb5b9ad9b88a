"""Replicas of a parameter must stay equal to the bit: a checksum an epoch, compared once the epochs are over.

Comparing later costs no synchronisation between epochs and finds the same epoch. A tensor with a number that is not
finite has one checksum of its own, whatever its bits, so the same comparison shows when a parameter was lost.
"""

import pickle
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.errors import RunError
from harness.ledger import TensorName
from harness.strategy import Piece, Strategy

# Brings what every rank has to say to rank 0, through the grid that the ranks already share.

T = TypeVar("T")


def gather(world: Axis, said: T) -> list[T]:
    """Everybody's, in rank order, on rank 0; nothing elsewhere."""
    data = torch.frombuffer(bytearray(pickle.dumps(said)), dtype=torch.uint8).to(world.device)
    sizes = world.all_gather(torch.tensor([len(data)], device=world.device), tensor=TensorName.COUNT).tolist()
    receives = {rank: (size,) for rank, size in enumerate(sizes)} if world.index == 0 else {}
    arrived = world.exchange({0: data}, receives, dtype=torch.uint8, tensor=TensorName.COUNT)
    return [pickle.loads(arrived[rank].cpu().numpy().tobytes()) for rank in sorted(arrived)]


NOT_FINITE = torch.iinfo(torch.int64).min
"""The checksum of a tensor that holds an infinity or a NaN."""


def checksum(parameters: Sequence[Tensor]) -> Tensor:
    """One 64-bit number a tensor; any changed bit, and any two exchanged elements, change it."""
    return torch.stack([_sum_of_bits(parameter.detach()) for parameter in parameters])


def _sum_of_bits(parameter: Tensor) -> Tensor:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[parameter.element_size()]
    bits = parameter.contiguous().view(integer).flatten().to(torch.int64)
    place = 2 * torch.arange(len(bits), device=parameter.device) + 1
    return torch.where(parameter.isfinite().all(), (bits * place).sum(), NOT_FINITE)


def everyone(grid: Grid, epochs: list[Tensor]) -> Tensor:
    """The checksums of all ranks, (ranks, epochs, tensors), of this rank's, oldest first."""
    return grid.world.all_gather(torch.stack(epochs)[None], tensor=TensorName.PARAMETERS).cpu()


def compare(strategy: Strategy, checksums: Tensor) -> None:
    """Raises where two ranks that hold the same piece of a parameter ever held different bits of it."""
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
