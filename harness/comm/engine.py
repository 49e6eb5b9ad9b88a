"""Engines: what carries messages between ranks, and how a rank joins its world and leaves it.

A world of one has no process group at all, whatever its engine. This file knows nothing of grids or ledgers.
"""

import sys
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from harness.errors import UserError


class Engine(StrEnum):
    """Gloo between processes on CPUs, NCCL between GPUs, or a single rank that speaks to nobody.

    Replay is one rank of any world alone in a process: tensors have shapes only, and nothing is sent.
    """

    GLOO = "gloo"
    NCCL = "nccl"
    SINGLE = "single"
    REPLAY = "replay"


class Place(NamedTuple):
    """Which rank of how many, and which of those on its machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0


PATIENCE = timedelta(minutes=10)


def place(environ: Mapping[str, str]) -> Place:
    """Where the launcher (torchrun, or a Slurm script that sets the same names) has put this process."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return Place(*(int(environ.get(name, default)) for name, default in zip(names, Place(), strict=True)))


def start(
    engine: Engine, at: Place, *, meeting: Path | None = None, timeout: timedelta = PATIENCE
) -> torch.device:
    """Joins the world and returns the device of this rank.

    Ranks meet in a file that is not there yet, or else at MASTER_ADDR and MASTER_PORT of the environment.
    """
    if engine is Engine.SINGLE and at.world > 1:
        raise UserError(
            f"The engine single runs one rank, and {at.world} were started. "
            "Start one rank, or choose the engine gloo (CPU) or nccl (GPU)."
        )
    device = _device(engine, at.local_rank)
    if at.world == 1:
        return device
    backend, store = engine.value, None
    if engine is Engine.REPLAY:
        backend, store = "fake", _store_of_nobody()
    elif meeting is not None:
        store = dist.FileStore(str(meeting), at.world)  # type: ignore[attr-defined]
    hook = sys.excepthook  # every init_process_group wraps it once more, with a prefix of its own
    try:
        dist.init_process_group(
            backend,
            rank=at.rank,
            world_size=at.world,
            store=store,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
    finally:
        sys.excepthook = hook
    return device


def stop() -> None:
    """Leaves the world; whoever still waits for this rank is told at once."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """This process's rank in its world."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many ranks there are; one if no world was joined."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _store_of_nobody() -> dist.Store:  # type: ignore[name-defined]
    """The library's own means for a process group that sends nothing; it also registers the backend `fake`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def _device(engine: Engine, local_rank: int) -> torch.device:
    if engine is not Engine.NCCL:
        return torch.device("meta" if engine is Engine.REPLAY else "cpu")
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise UserError(
            f"The engine nccl needs a GPU and a torch built for it; torch {torch.__version__} here has "
            "none. Choose a machine card whose engine is gloo, or install torch for CUDA."
        )
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"Local rank {local_rank} has no GPU: this machine shows {torch.cuda.device_count()}. "
            "Start at most as many ranks on a machine as it has GPUs."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
