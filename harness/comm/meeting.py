"""The place of a rank, as any launcher gives it, and how ranks learn where they meet; without torch.

The launcher of ranks on several machines listens at a socket, the board: rank 0 posts its address there, and every
other rank asks once. Where no rank reaches the board, rank 0's address is in a file of a folder that all machines
share. Ranks that another launcher started meet at a port of the first host.
"""

import argparse
import os
import random
import re
import resource
import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from fcntl import ioctl
from math import inf
from pathlib import Path
from struct import pack
from typing import NamedTuple
from zlib import crc32

from harness.errors import UserError


class RankPlace(NamedTuple):
    """The place of a process in the world: its rank, the size of the world, and its rank on its machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0


class Launcher(NamedTuple):
    """The variables by which a launcher gives each process its place."""

    name: str
    rank: str
    world: str
    local_rank: str
    local_world: str = ""
    """The variable with the number of ranks on the machine, where the launcher sets one."""
    job: tuple[str, ...] = ()
    """The variables that together name the world, the same for all its ranks."""
    also: str = ""
    """A variable that must be set too: without a step, Slurm's variables are those of a batch script."""

    def is_active(self, environ: Mapping[str, str]) -> bool:
        """True if the variables of this launcher are set."""
        return all(name in environ for name in (self.rank, self.world, self.also or self.rank))


TORCHRUN = Launcher(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)
)
SRUN = Launcher(
    "srun",
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    also="SLURM_STEP_ID",
)
LAUNCHERS = (
    TORCHRUN,
    Launcher(
        "jsrun",
        *(
            "JSM_NAMESPACE_RANK",
            "JSM_NAMESPACE_SIZE",
            "JSM_NAMESPACE_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        job=("LSB_JOBID",),
    ),
    Launcher(
        "Open MPI",
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("OMPI_COMM_WORLD_LOCAL_SIZE", ("PMIX_NAMESPACE",)),
    ),
    Launcher("PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", ("PBS_JOBID",)),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", also="MPI_LOCALRANKID"),
    Launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", job=("FLUX_JOB_ID",)),
    SRUN,
)
"""The innermost launcher comes first: each may run inside a job or a step of those below it."""


LAUNCHED, STARTED = "HARNESS_LAUNCHED", "HARNESS_STARTED"
"""The variables with the times of day at which the harness began to start a rank, and at which its task began."""
STAGED = "HARNESS_STAGED"
"""The variable with the seconds that bringing archives to the nodes took."""
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
OTHER_VISIBLE_DEVICES = ("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
"""The variables by which launchers show devices to a rank; the second ones are not asked whether it is bound."""


def detect_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process as a rank; None for a process that is no rank."""
    return next((each for each in LAUNCHERS if each.is_active(environ)), None)


def read_place(environ: Mapping[str, str]) -> RankPlace:
    """The place that the launcher gave this process; a world of one without a launcher."""
    launcher = detect_launcher(environ)
    if launcher is None:
        return RankPlace()
    return RankPlace(
        int(environ[launcher.rank]), int(environ[launcher.world]), int(environ.get(launcher.local_rank, 0))
    )


# The address of a world that another launcher started.

HOST = re.compile(r"(?P<stem>[^\[\],]+)(\[(?P<number>\d+)[^\]]*\])?(?P<rest>[^\[\],]*)")
FIRST_PORT, PORTS = 20_000, 12_000
"""Ports below those that the kernel gives to connections."""
HOST_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")


def is_single_machine(environ: Mapping[str, str]) -> bool:
    """True if the launcher says that all ranks are on this machine."""
    launcher = detect_launcher(environ)
    return launcher is None or environ.get(launcher.local_world) == environ[launcher.world]


def get_master_address(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which torch lets the ranks of a foreign launcher meet; none where they are set already.

    Worlds that run side by side have different ports where their launcher names them.
    """
    launcher = detect_launcher(environ)
    if launcher is None or launcher is TORCHRUN or {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return {}
    host = environ.get("MASTER_ADDR") or (
        "127.0.0.1" if is_single_machine(environ) else _find_first_host(environ)
    )
    port = environ.get("MASTER_PORT") or str(FIRST_PORT + crc32(world_name(environ).encode()) % PORTS)
    return {"MASTER_ADDR": host, "MASTER_PORT": port}


def world_name(environ: Mapping[str, str]) -> str:
    """A name of the world that all its ranks know: the job by its launcher, or else the process that started them."""
    launcher = detect_launcher(environ)
    named = [environ.get(name, "") for name in launcher.job] if launcher else []
    size = environ[launcher.world] if launcher else "1"
    return ".".join([*named, size] if any(named) else [str(os.getppid()), size])


def _find_first_host(environ: Mapping[str, str]) -> str:
    """The first host of the job's list."""
    if nodes := environ.get("SLURM_STEP_NODELIST"):
        return first_host(nodes)
    for name in HOST_FILES:
        with suppress(OSError, IndexError):
            return Path(environ.get(name, "")).read_text(encoding="utf-8").split()[0]
    if "FLUX_TASK_RANK" in environ:
        with suppress(OSError, subprocess.SubprocessError):
            hosts = subprocess.run(
                ["flux", "hostlist", "local"], capture_output=True, text=True, check=True, timeout=10
            )
            return first_host(hosts.stdout.strip())
    raise UserError(
        "The ranks are on several machines, and no list of hosts was found: set MASTER_ADDR to the host of rank 0."
    )


def first_host(nodes: str) -> str:
    """The first host of a list: nid[001004-001007,001012],login1 begins with nid001004."""
    first = HOST.match(nodes)
    if first is None:
        raise UserError(f"{nodes!r} is not a list of hosts. Set MASTER_ADDR and MASTER_PORT.")
    return f"{first['stem']}{first['number'] or ''}{first['rest']}"


# Network interfaces.

ADDRESS_OF_INTERFACE = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def add_interface_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options by which a launcher names the network interfaces of a machine."""
    parser.add_argument("--interfaces", nargs="+", default=[], help="network interfaces of this machine")
    parser.add_argument("--per-node", type=int, default=1, help="ranks that share them")


def choose_interface(options: argparse.Namespace, at: RankPlace) -> None:
    """Sets the network interface of this rank, unless the environment names one. Refuses one that is not there."""
    nearest = nearest_interface(at.local_rank, options.per_node, options.interfaces)
    os.environ.update({key: value for key, value in nearest.items() if key not in os.environ})
    if at.world > 1:
        get_own_address(os.environ)


def nearest_interface(local_rank: int, per_node: int, interfaces: Sequence[str]) -> dict[str, str]:
    """The network interface of a rank, in the variables that libraries read; neighbouring ranks share one.

    NCCL chooses among all interfaces by itself.
    """
    if not interfaces:
        return {}
    gloo, nccl = INTERFACES
    return {gloo: interfaces[local_rank * len(interfaces) // per_node], nccl: ",".join(interfaces)}


def get_own_address(environ: Mapping[str, str]) -> str:
    """The address of this machine: that of the network interface which the environment names, else the host name."""
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
    """The interfaces that a word of NCCL_SOCKET_IFNAME means: =eth0 is eth0 alone, and eth each one that begins so."""
    exact = word.removeprefix("=")
    return [name for name in there if name == exact] or [
        name for name in there if exact and word[0] != "=" and name.startswith(exact)
    ]


# The board, and the file beside it.

RENDEZVOUS = "HARNESS_BOARD"
"""The variable with the name, the host and the port of the launcher's board."""
BACKLOG = 4096
KEPT_FREE = 64
"""The descriptors that the board leaves to its process."""
CONNECT_TIMEOUT = 10.0
"""The seconds after which a rank that does not reach the board goes to the file."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
SILENCE_TIMEOUT = 10.0
"""The seconds that a guest of the board has to give its name: a rank gives it at once."""
ROUNDS = BACKLOG
"""The most rounds of one call of `serve`."""


class Rendezvous:
    """The socket of a launcher. `serve` is called often and never waits; the messages are single lines.

    It listens on all addresses, because no single one is known beforehand by which every node reaches this machine. A
    guest must give the board's name, a secret in the environment of the ranks; others are dropped. So are guests that
    say nothing for a while, or at once where descriptors run out.
    """

    def __init__(self, host: str) -> None:
        self.name, self._address = secrets.token_hex(16), ""
        self._selector, self._asking = selectors.DefaultSelector(), list[socket.socket]()
        self._silent = dict[socket.socket, float]()
        self._link = socket.create_server(("", 0), backlog=BACKLOG)
        self._link.setblocking(False)
        self._selector.register(self._link, selectors.EVENT_READ)
        self.environment = {RENDEZVOUS: f"{self.name} {host} {self._link.getsockname()[1]}"}
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most = most - KEPT_FREE

    def serve(self) -> None:
        """Takes the messages that have arrived, and answers every rank once the address of rank 0 is known.

        Ranks that would take the last descriptors are answered before, and ask again. Guests that never stop coming are
        left to the next call.
        """
        for _ in range(ROUNDS):
            ready = self._selector.select(0)
            moved = [
                self._accept() if key.fileobj is self._link else self._read_message(key.fileobj)  # type: ignore[arg-type]
                for key, _ in ready
            ]
            if self._address or len(self._asking) > self._most // 2:
                while self._asking:
                    self._answer(self._asking.pop())
            if not any(moved):
                break
        self._drop_silent(before=time.monotonic() - SILENCE_TIMEOUT)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for guest in self._asking:
            guest.close()
        self._selector.close()

    def _accept(self) -> bool:
        """Lets a guest in; False if there is none, or no descriptor for one."""
        if len(self._asking) + len(self._silent) >= self._most:
            self._drop_silent(before=inf, most=1)
        try:
            guest, _ = self._link.accept()
        except OSError:
            return self._drop_silent(before=inf, most=1)
        guest.setblocking(False)
        self._selector.register(guest, selectors.EVENT_READ)
        self._silent[guest] = time.monotonic()
        return True

    def _drop_silent(self, before: float, most: int | None = None) -> bool:
        """Drops the guests that came before a time and have said nothing yet, the first ones first."""
        late = [guest for guest, came in self._silent.items() if came < before][:most]
        for guest in late:
            self._unregister(guest)
            guest.close()
        return bool(late)

    def _unregister(self, guest: socket.socket) -> None:
        self._selector.unregister(guest)
        del self._silent[guest]

    def _read_message(self, guest: socket.socket) -> bool:
        """A message is `NAME`, or `NAME HOST PORT` from rank 0. A guest with another name is not of this run."""
        if guest not in self._silent:
            return False  # dropped in this round for lack of descriptors
        self._unregister(guest)
        try:
            name, *address = guest.recv(1024).decode(errors="replace").split() or [""]
        except OSError:
            name, address = "", []
        if not secrets.compare_digest(name.encode(), self.name.encode()) or len(address) not in (0, 2):
            guest.close()
            return True
        self._address = " ".join(address) or self._address
        self._asking.append(guest)
        return True

    def _answer(self, guest: socket.socket) -> None:
        with guest, suppress(OSError):
            guest.sendall(f"{self.name} {self._address}\n".encode())


def publish_address(file: Path, host: str, port: int) -> None:
    """Tells the other ranks where rank 0 listens. The file is renamed into place: readers see a whole file."""
    posted = query_rendezvous(f" {host} {port}", CONNECT_TIMEOUT) is not None
    try:
        partial = file.with_suffix(".part")
        partial.write_text(f"{host} {port}", encoding="utf-8")
        partial.replace(file)
    except OSError:
        if not posted:
            raise


def find_address(file: Path, timeout: timedelta) -> tuple[str, int]:
    """The host and the port of rank 0, from the board, or from the file where the board is out of reach."""
    seconds = timeout.total_seconds()
    host, port = (query_rendezvous("", seconds) or _read_address(file, seconds)).split()
    return host, int(port)


def query_rendezvous(words: str, seconds: float) -> str | None:
    """The answer of the board: the address of rank 0. None where there is no board, or no rank reaches it."""
    if RENDEZVOUS not in os.environ:
        return None
    name, host, port = os.environ[RENDEZVOUS].split()
    hosts = [host, *filter(None, [os.environ.get("SLURM_SRUN_COMM_HOST")])]
    begun, pause, reached = time.monotonic(), FIRST_PAUSE, False
    while (passed := time.monotonic() - begun) < seconds and (reached or passed < CONNECT_TIMEOUT):
        for each in hosts:
            with suppress(OSError), socket.create_connection((each, int(port)), CONNECT_TIMEOUT / 2) as link:
                link.sendall(f"{name}{words}\n".encode())
                link.settimeout(max(seconds - passed, 1.0))
                named, *address = link.recv(1024).decode(errors="replace").split() or [""]
                if named == name and address:
                    return " ".join(address)
                reached = reached or named == name
        time.sleep(pause * random.random())
        pause = min(2 * pause, LONGEST_PAUSE)
    return None


def _read_address(file: Path, seconds: float) -> str:
    """The address that rank 0 wrote. Network file systems show a new file only to processes that list its folder."""
    begun, pause = time.monotonic(), FIRST_PAUSE
    while file.name not in os.listdir(file.parent):  # noqa: PTH208
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"rank 0 wrote no address to {file} within {seconds:.0f} s")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return file.read_text(encoding="utf-8")
