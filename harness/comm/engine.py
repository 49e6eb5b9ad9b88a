"""Engines carry messages between ranks; a rank joins its world and leaves it through an engine.

A world of one has no process group, whatever its engine, unless a measurement asks for one. This file knows nothing of
grids or ledgers.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from socket import gethostname

import torch
import torch.distributed as dist

from harness.comm import collectives, meeting
from harness.comm.meeting import TORCHRUN, RankPlace
from harness.device import gpu_count, gpu_identity, is_gpu, use_gpu
from harness.errors import UserError
from harness.files import owner_tag, read_head, remove_leftovers, scratch_names
from harness.locks import find_lockable_path


class Engine(StrEnum):
    """Gloo between processes on CPUs, NCCL between GPUs, or a single rank without messages.

    Replay is one rank of any world alone in a process: tensors have shapes only, and nothing is sent.
    """

    GLOO = "gloo"
    NCCL = "nccl"
    SINGLE = "single"
    REPLAY = "replay"


rank, world_size = collectives.rank, collectives.world_size

DEFAULT_TIMEOUT = timedelta(minutes=10)


def join_world(
    engine: Engine,
    at: RankPlace,
    *,
    rendezvous: "Path | dist.Store | None" = None,  # type: ignore[name-defined]
    timeout: timedelta = DEFAULT_TIMEOUT,
    group_of_one: bool = False,
) -> torch.device:
    """Joins the world and returns the device of this rank.

    Ranks meet by the board of their launcher or through a file, which must not exist yet; or they have a store already.
    With `group_of_one`, a world of one has a process group too, which a measurement of the engine needs.
    """
    if engine is Engine.SINGLE and at.world > 1:
        raise UserError(
            f"The engine single runs one rank, and {at.world} were started. "
            "Start one rank, or choose the engine gloo (CPU) or nccl (GPU)."
        )
    device = select_device(engine, at.local_rank)
    if at.world == 1 and not group_of_one:
        return device
    backend = engine.value
    if engine is Engine.REPLAY:
        backend, store = "fake", _fake_store()
    elif rendezvous is None:
        store = external_store(at, timeout)
    else:
        store = _make_store(rendezvous, at, timeout) if isinstance(rendezvous, Path) else rendezvous
    if engine is Engine.GLOO:
        _use_batch_scheduling()
    if is_gpu(device):
        if _is_bound(os.environ):
            _claim_gpu(device, store)
        _log_network(at)
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


def _use_batch_scheduling() -> None:
    """Sets Linux's batch policy for this thread and those that gloo will start.

    A message that arrives wakes one of gloo's threads. Under the usual policy this thread takes the core from the
    thread that it has to wait for: a small all-reduce of four ranks on two cores lasts five times as long. Linux may
    forbid another policy, as to a user's process that was started as idle.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _make_store(file: Path, at: RankPlace, timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """The store of a world that the harness started; without a board or another launcher it is on one machine."""
    foreign = meeting.detect_launcher(os.environ) not in (None, TORCHRUN)
    if not foreign and meeting.RENDEZVOUS not in os.environ:
        return make_file_store(file, at.world)
    name = os.environ.get(meeting.RENDEZVOUS, "").partition(" ")[0]
    if at.rank == 0:
        host = meeting.get_own_address(os.environ)
        store = _make_tcp_store(host, 0, at.world, timeout, is_master=True)
        store.set(WORLD, hash_world_name(name))
        meeting.publish_address(file, host, store.port)
        return store
    store = _make_tcp_store(*meeting.find_address(file, timeout), at.world, timeout, is_master=False)
    _check_world(store, hash_world_name(name))
    return store


def hash_world_name(name: str) -> str:
    """The name of a world in its store, which anyone can read: the board's own name is a secret of the ranks."""
    return sha256(name.encode()).hexdigest()[:16] if name else ""


def make_file_store(file: Path, world: int) -> dist.Store:  # type: ignore[name-defined]
    """A store in a file, for ranks of one machine: only those who may write to its folder can take part.

    torch locks the file. If its file system has no locks, the store is in a local folder of this user.
    """
    place = find_lockable_path(file)
    if place != file:
        remove_leftovers(place.parent)
    return dist.FileStore(str(place), world)  # type: ignore[attr-defined]


WORLD = "world"
"""The key of the name of the world whose ranks share a store."""


def external_store(at: RankPlace, timeout: timedelta = DEFAULT_TIMEOUT) -> dist.Store:  # type: ignore[name-defined]
    """The store of a world that another launcher started. The port may be that of another world, which is refused."""
    os.environ.update(meeting.get_master_address(os.environ))
    name = meeting.world_name(os.environ)
    try:
        store, _, _ = next(dist.rendezvous("env://", at.rank, at.world, timeout=timeout))  # type: ignore[attr-defined]
    except dist.DistNetworkError as error:
        raise UserError(
            f"Rank {at.rank} of {at.world} cannot use the port MASTER_PORT = {os.environ.get('MASTER_PORT')} of "
            f"MASTER_ADDR = {os.environ.get('MASTER_ADDR')}: {error}. Set MASTER_PORT to a free port of that machine."
        ) from None
    if at.rank == 0:
        store.set(WORLD, name)
    else:
        _check_world(store, name)
    return store


def _make_tcp_store(host: str, port: int, world: int, timeout: timedelta, *, is_master: bool) -> dist.Store:  # type: ignore[name-defined]
    """A store at a port of rank 0, which waits for nobody. The system chooses the port 0."""
    return dist.TCPStore(host, port, world, is_master=is_master, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]


def _check_world(store: dist.Store, name: str) -> None:  # type: ignore[name-defined]
    if (other := store.get(WORLD).decode(errors="replace")) != name:
        raise UserError(
            f"The ranks of {name!r} met those of {other!r}. Set MASTER_PORT to a port of their own."
        )


def _claim_gpu(device: torch.device, store: dist.Store) -> None:  # type: ignore[name-defined]
    """Refuses a GPU that another rank has claimed."""
    host = gethostname()
    if store.add(f"{host} {gpu_identity(device)}", 1) > 1:
        raise UserError(
            f"Two ranks on {host} have the same GPU: this rank sees {gpu_count()}, and its launcher started more ranks "
            "there than the GPUs that it shows. Start as many ranks on a machine as it has GPUs, or show each rank "
            "a GPU of its own."
        )


def leave_world() -> None:
    """Leaves the world; ranks that still wait for this one fail at once."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _fake_store() -> dist.Store:  # type: ignore[name-defined]
    """The library's store for a process group that sends nothing; importing it registers the backend `fake`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"):
        # Older releases of torch register their collectives on shapes only when this module is imported.
        from torch.distributed._tools import fake_collectives  # noqa: F401

    return FakeStore()


def max_ranks(engine: Engine) -> int | None:
    """The most ranks that this machine can have: one on each GPU; None for any number."""
    if engine is not Engine.NCCL:
        return None
    select_device(engine, 0)  # or a refusal with its reason
    return gpu_count()


def select_device(engine: Engine, local_rank: int) -> torch.device:
    """The device on which a rank of this machine computes; it becomes the current one."""
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
    """True if a launcher shows each rank a single device, its own. torchrun shows every rank all devices."""
    shown = [environ[name] for name in meeting.VISIBLE_DEVICES if environ.get(name)]
    foreign = meeting.detect_launcher(environ) not in (None, TORCHRUN)
    return foreign and bool(shown) and all("," not in devices for devices in shown)


# The network that NCCL chose, as its log says.

NETWORK = re.compile(r"Using network (?P<name>.+?)\s*$", re.MULTILINE)
LOG_OF_NCCL, OWN_LOG = "NCCL_DEBUG_FILE", "harness-nccl-"
LOGGING = ("NCCL_DEBUG", LOG_OF_NCCL)
"""The variables by which a user directs NCCL's log; the harness then leaves it alone."""
LOG_READ = 1 << 22
"""The bytes of NCCL's log that are read: it names its network when it starts."""


def _log_network(at: RankPlace) -> None:
    """Lets NCCL on rank 0 write its choices to a file of this machine, unless the user directs its log."""
    if at.rank == 0 and not os.environ.keys() & LOGGING:
        remove_leftovers(
            Path(tempfile.gettempdir()), scratch_names(OWN_LOG)
        )  # where nobody asked for the network
        file, name = tempfile.mkstemp(prefix=f"{OWN_LOG}{owner_tag()}.")
        os.close(file)
        os.environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", LOG_OF_NCCL: name})


def read_network() -> str | None:
    """The network that NCCL uses between machines, on rank 0; None without NCCL, or if its log goes elsewhere."""
    log = Path(os.environ.get(LOG_OF_NCCL, ""))
    if not log.is_file():
        return None
    found = parse_network(read_head(log, LOG_READ))
    if log.name.startswith(OWN_LOG):
        log.unlink()  # NCCL still writes to it, and nobody reads on
    return found


def parse_network(log: str) -> str | None:
    """The network that a log of NCCL or RCCL names."""
    found = NETWORK.search(log)
    return found["name"] if found else None
