"""Engines carry messages between ranks; a rank joins its world and leaves it through an engine.

A world of one has no process group at all, whatever its engine. This file knows nothing of grids or ledgers.
"""

import argparse
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from enum import StrEnum
from fcntl import ioctl
from pathlib import Path
from struct import pack
from typing import NamedTuple

import torch
import torch.distributed as dist

from harness.device import gpu, gpus, is_gpu
from harness.errors import UserError


class Engine(StrEnum):
    """Gloo between processes on CPUs, NCCL between GPUs, or a single rank without messages.

    Replay is one rank of any world alone in a process: tensors have shapes only, and nothing is sent.
    """

    GLOO = "gloo"
    NCCL = "nccl"
    SINGLE = "single"
    REPLAY = "replay"


class RankPlace(NamedTuple):
    """The place of a process in the world: its rank, the size of the world, and its rank on its machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0


PATIENCE = timedelta(minutes=10)
HOST = re.compile(r"(?P<stem>[^\[\],]+)(\[(?P<number>\d+)[^\]]*\])?(?P<rest>[^\[\],]*)")
FIRST_PORT, PORTS = 20_000, 12_000
"""Ports below those that the kernel gives to connections."""


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
SRUN = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
"""Variables of each task of a step. Batch scripts and shells of an allocation have only some of them."""


def place(environ: Mapping[str, str]) -> RankPlace:
    """The place that the launcher gave this process, by torchrun's variables if set, else by those of a Slurm step."""
    names = SRUN if by_slurm(environ) else TORCHRUN
    return RankPlace(
        *(int(environ.get(name, default)) for name, default in zip(names, RankPlace(), strict=True))
    )


def by_slurm(environ: Mapping[str, str]) -> bool:
    """True if srun started this process as a task of a step, and no other launcher did inside of a step."""
    return TORCHRUN[0] not in environ and "SLURM_STEP_ID" in environ and SRUN[0] in environ


def address(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which torch lets the ranks of a Slurm step meet; none where the address is set already.

    Steps that run side by side have different ports.
    """
    if "MASTER_ADDR" in environ or "SLURM_STEP_NODELIST" not in environ:
        return {}
    job, step = int(environ.get("SLURM_JOB_ID", "0")), int(environ.get("SLURM_STEP_ID", "0"))
    port = FIRST_PORT + (job + step) % PORTS
    return {"MASTER_ADDR": first_host(environ["SLURM_STEP_NODELIST"]), "MASTER_PORT": str(port)}


def first_host(nodes: str) -> str:
    """The first host of a list: nid[001004-001007,001012],login1 begins with nid001004."""
    first = HOST.match(nodes)
    if first is None:
        raise UserError(
            f"SLURM_STEP_NODELIST = {nodes!r} is not a list of hosts. Set MASTER_ADDR and MASTER_PORT."
        )
    return f"{first['stem']}{first['number'] or ''}{first['rest']}"


def add_interfaces(parser: argparse.ArgumentParser) -> None:
    """Adds the options by which a launcher names the network interfaces of a machine."""
    parser.add_argument("--interfaces", nargs="+", default=[], help="network interfaces of this machine")
    parser.add_argument("--per-node", type=int, default=1, help="ranks that share them")


def choose_interface(options: argparse.Namespace, at: RankPlace) -> None:
    """Sets the network interface of this rank, unless the environment names one."""
    nearest = beside(at.local_rank, options.per_node, options.interfaces)
    os.environ.update({key: value for key, value in nearest.items() if key not in os.environ})


def start(
    engine: Engine, at: RankPlace, *, meeting: Path | None = None, timeout: timedelta = PATIENCE
) -> torch.device:
    """Joins the world and returns the device of this rank.

    Ranks meet through the file `meeting`, which must not exist yet, or else at MASTER_ADDR and MASTER_PORT of the
    environment.
    """
    if engine is Engine.SINGLE and at.world > 1:
        raise UserError(
            f"The engine single runs one rank, and {at.world} were started. "
            "Start one rank, or choose the engine gloo (CPU) or nccl (GPU)."
        )
    device = device_of(engine, at.local_rank)
    if at.world == 1:
        return device
    os.environ.update(address(os.environ))
    backend, store = engine.value, None
    if engine is Engine.REPLAY:
        backend, store = "fake", _fake_store()
    elif meeting is not None:
        store = _meet(meeting, at, timeout)
    if engine is Engine.GLOO:
        _wake_without_preempting()
    hook = sys.excepthook  # every init_process_group wraps it once more, with a prefix of its own
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


def _wake_without_preempting() -> None:
    """Sets Linux's batch policy for this thread and those that gloo will start.

    A message that arrives wakes one of gloo's threads. Under the usual policy this thread takes the core from the
    thread that it has to wait for: a small all-reduce of four ranks on two cores lasts five times as long.
    """
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _meet(file: Path, at: RankPlace, timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """The store of a world; only the ranks of a Slurm step may be on several machines."""
    if by_slurm(os.environ):
        return of_many_machines(file, at.rank, at.world, timeout)
    return of_one_machine(file, at.world)


def stop() -> None:
    """Leaves the world; ranks that still wait for this one fail at once."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """The rank of this process in its world."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of ranks; one if no world was joined."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _fake_store() -> dist.Store:  # type: ignore[name-defined]
    """The library's store for a process group that sends nothing; importing it registers the backend `fake`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def most_ranks(engine: Engine) -> int | None:
    """The most ranks that this machine can have: one on each GPU; None for any number."""
    if engine is not Engine.NCCL:
        return None
    device_of(engine, 0)  # or a refusal with its reason
    return gpus()


def device_of(engine: Engine, local_rank: int) -> torch.device:
    """The device on which a rank of this machine computes; it becomes the current one."""
    if engine is not Engine.NCCL:
        return torch.device("meta" if engine is Engine.REPLAY else "cpu")
    if not (gpus() and dist.is_nccl_available()):
        raise UserError(
            f"The engine nccl needs a GPU and a torch built for it; this torch ({torch.__version__}) "
            "has none. Choose a machine card whose engine is gloo, or install torch for CUDA."
        )
    index = 0 if _bound(os.environ) else local_rank
    if index >= gpus():
        raise UserError(
            f"Local rank {local_rank} has no GPU: this machine shows {gpus()}. "
            "Start at most as many ranks on a machine as it has GPUs."
        )
    return gpu(index)


def _bound(environ: Mapping[str, str]) -> bool:
    """True if Slurm shows each rank a single device, its own."""
    shown = [environ[name] for name in VISIBLE if environ.get(name)]
    return by_slurm(environ) and bool(shown) and all("," not in devices for devices in shown)


# The ranks of one machine meet in a file. The ranks of several machines meet at a port of rank 0, which
# rank 0 writes into a file in a folder that all machines share. The system chooses the port before it is
# written, so no two worlds can want the same one.

POLL_SECONDS = 0.05
ADDRESS_OF_INTERFACE = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def of_one_machine(file: Path, world: int) -> dist.Store:  # type: ignore[name-defined]
    """A store in a file, which must not exist yet."""
    return dist.FileStore(str(file), world)  # type: ignore[attr-defined]


def of_many_machines(file: Path, rank: int, world: int, timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """A store at a port of rank 0. The file with the address is renamed into place: readers see a whole file."""
    if rank == 0:
        host = own_address(os.environ)
        store = dist.TCPStore(host, 0, world, is_master=True, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]
        partial = file.with_suffix(".part")
        partial.write_text(f"{host} {store.port}")
        partial.replace(file)
        return store
    host, port = _read_address(file, timeout)
    return dist.TCPStore(host, port, world, is_master=False, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]


def own_address(environ: Mapping[str, str]) -> str:
    """The address of this machine: that of the network interface which the environment names, else the host name."""
    for name in INTERFACES:
        if interface := environ.get(name, "").split(",")[0]:
            with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as link:
                answer = ioctl(link, ADDRESS_OF_INTERFACE, pack("256s", interface[:15].encode()))
            return socket.inet_ntoa(answer[20:24])
    return socket.gethostname()


def beside(local_rank: int, per_node: int, interfaces: Sequence[str]) -> dict[str, str]:
    """The network interface of a rank, in the variables that libraries read; neighbouring ranks share one.

    NCCL chooses among all interfaces by itself.
    """
    if not interfaces:
        return {}
    gloo, nccl = INTERFACES
    return {gloo: interfaces[local_rank * len(interfaces) // per_node], nccl: ",".join(interfaces)}


def _read_address(file: Path, timeout: timedelta) -> tuple[str, int]:
    """The address that rank 0 wrote. Network file systems show a new file only to processes that list its folder."""
    deadline = time.monotonic() + timeout.total_seconds()
    while file.name not in os.listdir(file.parent):  # noqa: PTH208
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 wrote no address to {file} within {timeout.total_seconds():.0f} s")
        time.sleep(POLL_SECONDS)
    host, port = file.read_text().split()
    return host, int(port)
