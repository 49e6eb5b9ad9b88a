"""The network interfaces of a machine, and the one that a rank uses. Does not import torch."""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from fcntl import ioctl
from struct import pack

from harness.base.errors import UserError
from harness.comm.launchers import RankPlace

ADDRESS_OF_INTERFACE = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def add_interface_options(parser: argparse.ArgumentParser) -> None:
    """Add the options with which a launcher passes the network interfaces of a machine."""
    parser.add_argument("--interfaces", nargs="+", default=[], help="network interfaces of this machine")
    parser.add_argument("--per-node", type=int, default=1, help="ranks that share them")


def choose_interface(options: argparse.Namespace, at: RankPlace) -> None:
    """Set the network interface of this rank, unless the environment does. Raises if an interface does not exist."""
    nearest = select_interfaces(at.local_rank, options.per_node, options.interfaces)
    os.environ.update({key: value for key, value in nearest.items() if key not in os.environ})
    if at.world > 1:
        get_own_address(os.environ)


def select_interfaces(local_rank: int, per_node: int, interfaces: Sequence[str]) -> dict[str, str]:
    """Return the network interface of a rank, in the variables that libraries read. Neighbouring ranks share one.

    NCCL gets all interfaces and chooses among them.
    """
    if not interfaces:
        return {}
    gloo, nccl = INTERFACES
    return {gloo: interfaces[local_rank * len(interfaces) // per_node], nccl: ",".join(interfaces)}


def get_own_address(environ: Mapping[str, str]) -> str:
    """Return the address of the network interface that the environment names, else the host name."""
    named = [(name, environ[name]) for name in INTERFACES if environ.get(name, "^").strip()[0] != "^"]
    there = [name for _, name in socket.if_nameindex()]
    for variable, words in named:
        missing = [word for word in words.split(",") if not _match_interfaces(word, there)]
        if missing:
            raise UserError(
                f"{variable} names the network interface {', '.join(missing)}, which {socket.gethostname()} does not "
                f"have: it has {', '.join(there)}. Correct `interfaces` in the machine's card, or set {variable}."
            )
    for _, words in named:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as link, suppress(OSError):
            name = _match_interfaces(words.split(",")[0], there)[0]
            return socket.inet_ntoa(ioctl(link, ADDRESS_OF_INTERFACE, pack("256s", name.encode()))[20:24])
    return socket.gethostname()


def _match_interfaces(word: str, there: Sequence[str]) -> list[str]:
    """Return the interfaces matched by a word of NCCL_SOCKET_IFNAME: =eth0 matches eth0, and eth is a prefix."""
    exact = word.removeprefix("=")
    return [name for name in there if name == exact] or [
        name for name in there if exact and word[0] != "=" and name.startswith(exact)
    ]
