"""Engines: how ranks communicate. A rank joins and leaves its world through an engine.

A world of one rank has no process group, whatever the engine, unless a measurement asks for one. This module does not
depend on grids or ledgers.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from socket import gethostname

import torch
import torch.distributed as dist

from harness.base.device import gpu_count, gpu_identity, is_gpu, use_gpu
from harness.base.errors import UserError
from harness.base.files import owner_tag, read_head, remove_leftovers, scratch_names
from harness.comm import collectives, launchers
from harness.comm.launchers import TORCHRUN, RankPlace
from harness.comm.world_store import DEFAULT_TIMEOUT, open_world_store


class Engine(StrEnum):
    """Gloo for CPUs, NCCL for GPUs, a single rank without communication, or a replay.

    A replay is one rank of a world of any size in a single process: it uses meta tensors, and sends nothing.
    """

    GLOO = "gloo"
    NCCL = "nccl"
    SINGLE = "single"
    REPLAY = "replay"


rank, world_size = collectives.rank, collectives.world_size


def join_world(
    engine: Engine,
    at: RankPlace,
    *,
    rendezvous: "Path | dist.Store | None" = None,  # type: ignore[name-defined]
    timeout: timedelta = DEFAULT_TIMEOUT,
    group_of_one: bool = False,
) -> torch.device:
    """Join the world and return the device of this rank.

    `rendezvous` is a store that the ranks already share, or the file of `open_world_store`, which opens one. With
    `group_of_one`, a world of one rank has a process group too.
    """
    if engine is Engine.SINGLE and at.world > 1:
        raise UserError(
            f"The engine single runs one rank, but {at.world} were started. "
            "Start one rank, or choose the engine gloo (CPU) or nccl (GPU)."
        )
    device = select_device(engine, at.local_rank)
    if at.world == 1 and not group_of_one:
        return device
    backend = engine.value
    if engine is Engine.REPLAY:
        backend, store = "fake", _fake_store()
    elif rendezvous is None or isinstance(rendezvous, Path):
        store = open_world_store(at, rendezvous, timeout)
    else:
        store = rendezvous
    if engine is Engine.GLOO:
        _use_batch_scheduling()
    if is_gpu(device):
        if _is_bound(os.environ):
            _claim_gpu(device, store)
        _log_network(at)
    hook = sys.excepthook  # every init_process_group wraps it again, with another prefix
    try:
        dist.init_process_group(
            backend,
            rank=at.rank,
            world_size=at.world,
            store=store,
            timeout=timeout,
            device_id=device if is_gpu(device) else None,
        )
    finally:
        sys.excepthook = hook
    return device


def _use_batch_scheduling() -> None:
    """Set Linux's batch scheduling policy for this thread and the threads that gloo will start.

    Under the default policy, a gloo thread that is woken by a message preempts the thread that it then waits for: a
    small all-reduce of four ranks on two cores takes five times as long. Linux may forbid a change of policy, as for a
    process that was started as idle.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _claim_gpu(device: torch.device, store: dist.Store) -> None:  # type: ignore[name-defined]
    """Claim a GPU for this rank. Raises if another rank has claimed it."""
    host = gethostname()
    if store.add(f"{host} {gpu_identity(device)}", 1) > 1:
        raise UserError(
            f"Two ranks on {host} have the same GPU: this rank sees {gpu_count()}, and its launcher started more ranks "
            "there than visible GPUs. Start at most one rank per GPU, or make a different GPU visible to each rank."
        )


def leave_world() -> None:
    """Leave the world. Ranks that still wait for this one fail at once."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _fake_store() -> dist.Store:  # type: ignore[name-defined]
    """Return torch's store for a process group that sends nothing. Importing it registers the backend `fake`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"):
        # Older releases of torch register collectives on meta tensors only when this module is imported.
        from torch.distributed._tools import fake_collectives  # noqa: F401

    return FakeStore()


def max_ranks(engine: Engine) -> int | None:
    """Return the maximum number of ranks on this machine: one per GPU with NCCL, else None for no limit."""
    if engine is not Engine.NCCL:
        return None
    select_device(engine, 0)  # raises if there is no GPU
    return gpu_count()


def select_device(engine: Engine, local_rank: int) -> torch.device:
    """Return the device of a rank on this machine, and make it the current one."""
    if engine is not Engine.NCCL:
        return torch.device("meta" if engine is Engine.REPLAY else "cpu")
    if not (gpu_count() and dist.is_nccl_available()):
        raise UserError(
            f"The engine nccl needs a GPU and a torch built for it; this torch ({torch.__version__}) "
            "has none. Choose a machine card whose engine is gloo, or install torch for CUDA."
        )
    index = 0 if _is_bound(os.environ) else local_rank
    if index >= gpu_count():
        raise UserError(
            f"Local rank {local_rank} has no GPU: this machine shows {gpu_count()}. "
            "Start at most as many ranks on a machine as it has GPUs."
        )
    return use_gpu(index)


def _is_bound(environ: Mapping[str, str]) -> bool:
    """Return True if the launcher shows each rank only its own device. torchrun shows every rank all devices."""
    shown = [environ[name] for name in launchers.VISIBLE_DEVICES if environ.get(name)]
    foreign = launchers.detect_launcher(environ) not in (None, TORCHRUN)
    return foreign and bool(shown) and all("," not in devices for devices in shown)


# The network that NCCL uses, from its log.

NETWORK = re.compile(r"Using network (?P<name>.+?)\s*$", re.MULTILINE)
LOG_OF_NCCL, OWN_LOG = "NCCL_DEBUG_FILE", "harness-nccl-"
LOGGING = ("NCCL_DEBUG", LOG_OF_NCCL)
"""The variables that configure NCCL's log; if the user sets one, the harness does not change the log."""
LOG_READ = 1 << 22
"""The number of bytes read of NCCL's log, which names the network near its beginning."""


def _log_network(at: RankPlace) -> None:
    """Let NCCL on rank 0 log its network to a temporary file, unless the user configures its log."""
    if at.rank == 0 and not os.environ.keys() & LOGGING:
        remove_leftovers(Path(tempfile.gettempdir()), scratch_names(OWN_LOG))  # logs that were never read
        file, name = tempfile.mkstemp(prefix=f"{OWN_LOG}{owner_tag()}.")
        os.close(file)
        os.environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", LOG_OF_NCCL: name})


def read_network() -> str | None:
    """Return the network that NCCL uses between machines, on rank 0; None without NCCL or without its log."""
    log = Path(os.environ.get(LOG_OF_NCCL, ""))
    if not log.is_file():
        return None
    found = parse_network(read_head(log, LOG_READ))
    if log.name.startswith(OWN_LOG):
        log.unlink()  # NCCL keeps its file open
    return found


def parse_network(log: str) -> str | None:
    """Return the network named in a log of NCCL or RCCL."""
    found = NETWORK.search(log)
    return found["name"] if found else None
