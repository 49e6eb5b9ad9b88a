"""Where ranks meet: a file if they are on one machine, else a port of rank 0 that a file tells to the others.

The system chooses the port, and only then is it told, so no two worlds can want the same one. The file's folder is
shared by all machines. This file knows nothing of engines.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from fcntl import ioctl
from pathlib import Path
from struct import pack

import torch.distributed as dist

POLL_SECONDS = 0.05
ADDRESS_OF_INTERFACE = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def of_one_machine(file: Path, world: int) -> dist.Store:  # type: ignore[name-defined]
    """Through a file that is not there yet."""
    return dist.FileStore(str(file), world)  # type: ignore[attr-defined]


def of_many_machines(file: Path, rank: int, world: int, timeout: timedelta) -> dist.Store:  # type: ignore[name-defined]
    """Through a port of rank 0. Whoever reads the file finds it whole."""
    if rank == 0:
        host = own_address(os.environ)
        store = dist.TCPStore(host, 0, world, is_master=True, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]
        partial = file.with_suffix(".part")
        partial.write_text(f"{host} {store.port}")
        partial.replace(file)
        return store
    host, port = _told(file, timeout)
    return dist.TCPStore(host, port, world, is_master=False, timeout=timeout, wait_for_workers=False)  # type: ignore[attr-defined]


def own_address(environ: Mapping[str, str]) -> str:
    """Where others reach this machine: by the network interface that the environment names, else by its name."""
    for name in INTERFACES:
        if interface := environ.get(name, "").split(",")[0]:
            with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as link:
                answer = ioctl(link, ADDRESS_OF_INTERFACE, pack("256s", interface[:15].encode()))
            return socket.inet_ntoa(answer[20:24])
    return socket.gethostname()


def beside(local_rank: int, per_node: int, interfaces: Sequence[str]) -> dict[str, str]:
    """The network interface that a rank speaks through, in the names that libraries read: neighbours share one.

    NCCL chooses among all of them by itself.
    """
    if not interfaces:
        return {}
    gloo, nccl = INTERFACES
    return {gloo: interfaces[local_rank * len(interfaces) // per_node], nccl: ",".join(interfaces)}


def _told(file: Path, timeout: timedelta) -> tuple[str, int]:
    """What rank 0 wrote. Network file systems tell of a new file only to those who list its folder."""
    deadline = time.monotonic() + timeout.total_seconds()
    while file.name not in os.listdir(file.parent):  # noqa: PTH208
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank 0 did not say in {file} where to meet, within {timeout.total_seconds():.0f} s"
            )
        time.sleep(POLL_SECONDS)
    host, port = file.read_text().split()
    return host, int(port)
