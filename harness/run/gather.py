"""Brings what every rank has to say to rank 0, through the grid that the ranks already share."""

import pickle
from typing import TypeVar

import torch

from harness.comm.axis import Axis
from harness.ledger import TensorName

T = TypeVar("T")


def gather(world: Axis, said: T) -> list[T]:
    """Everybody's, in rank order, on rank 0; nothing elsewhere."""
    data = torch.frombuffer(bytearray(pickle.dumps(said)), dtype=torch.uint8).to(world.device)
    sizes = world.all_gather(torch.tensor([len(data)], device=world.device), tensor=TensorName.COUNT).tolist()
    receives = {rank: (size,) for rank, size in enumerate(sizes)} if world.index == 0 else {}
    arrived = world.exchange({0: data}, receives, dtype=torch.uint8, tensor=TensorName.COUNT)
    return [pickle.loads(arrived[rank].cpu().numpy().tobytes()) for rank in sorted(arrived)]
