"""The store of a world: where its ranks find each other. `open_world_store` chooses among three ways."""

import os
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import torch.distributed as dist

from harness.base.errors import UserError
from harness.base.files import remove_leftovers
from harness.base.locks import find_lockable_path
from harness.comm import hosts, interfaces, rendezvous
from harness.comm.launchers import RankPlace

DEFAULT_TIMEOUT = timedelta(minutes=10)
WORLD = "world"
"""The key in a store under which rank 0 stores the name of its world."""


def open_world_store(
    at: RankPlace, file: Path | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> dist.Store:  # type: ignore[name-defined]
    """Return the store of this rank's world. The way depends on what the ranks share before they meet.

    - Ranks of another launcher share what it tells them: the name of their job and its hosts. Rank 0 listens at a port
      of the first host that follows from the name of the job, or at MASTER_ADDR and MASTER_PORT.
    - Ranks that the harness started as a step share the address of the launcher's rendezvous and its secret name.
      Rank 0 listens at a free port, and publishes it there and in `file`.
    - Ranks that the harness started on one machine share a folder: the store is `file`, which must not exist yet.

    docs/develop/adr/0017-three-ways-to-meet.md says why one way cannot serve all.
    """
    if file is None:
        return _open_at_job_port(at, timeout)
    if rendezvous.RENDEZVOUS in os.environ:
        return _open_at_rendezvous(at, file, timeout)
    return open_file_store(file, at.world)


def _open_at_job_port(at: RankPlace, timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """Open the store of a world that another launcher started. Raises if the port belongs to another world."""
    os.environ.update(hosts.get_master_address(os.environ))
    name = hosts.get_world_name(os.environ)
    try:
        store, _, _ = next(dist.rendezvous("env://", at.rank, at.world, timeout=timeout))  # type: ignore[attr-defined]
    except dist.DistNetworkError as error:
        raise UserError(
            f"Rank {at.rank} of {at.world} cannot use the port MASTER_PORT = {os.environ.get('MASTER_PORT')} of "
            f"MASTER_ADDR = {os.environ.get('MASTER_ADDR')}: {error}. Set MASTER_PORT to a free port of that machine."
        ) from None
    _agree_on_world(store, at, name)
    return store


def _open_at_rendezvous(at: RankPlace, file: Path, timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """Open the store of a step: rank 0 publishes its address, and all other ranks find it."""
    name = _hash_name(os.environ[rendezvous.RENDEZVOUS].partition(" ")[0])
    if at.rank == 0:
        host = interfaces.get_own_address(os.environ)
        store = _connect(host, 0, at, timeout)  # port 0: the system chooses a port
        _agree_on_world(store, at, name)
        rendezvous.publish_address(file, host, store.port)
        return store
    store = _connect(*rendezvous.find_address(file, timeout), at, timeout)
    _agree_on_world(store, at, name)
    return store


def open_file_store(file: Path, world: int) -> dist.Store:  # type: ignore[name-defined]
    """Open a store in a file, for ranks on one machine. Only users who can write to its folder can take part.

    torch locks the file. If its file system does not support locks, the store is in a local folder of this user.
    """
    place = find_lockable_path(file)
    if place != file:
        remove_leftovers(place.parent)
    return dist.FileStore(str(place), world)  # type: ignore[attr-defined]


def _connect(host: str, port: int, at: RankPlace, timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """Open the store at a port of rank 0, without waiting for the other ranks."""
    is_master = at.rank == 0
    return dist.TCPStore(host, port, at.world, is_master, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]


def _hash_name(name: str) -> str:
    """Hash the secret name of a world for its store, which every process of the network can read."""
    return sha256(name.encode()).hexdigest()[:16]


def _agree_on_world(store: dist.Store, at: RankPlace, name: str) -> None:  # type: ignore[name-defined]
    """Store the name of the world on rank 0, and compare it on all other ranks. Raises if it is another world's."""
    if at.rank == 0:
        store.set(WORLD, name)
    elif (other := store.get(WORLD).decode(errors="replace")) != name:
        raise UserError(
            f"Ranks of {name!r} found the store of {other!r}. Set MASTER_PORT to a port that no other job uses."
        )
