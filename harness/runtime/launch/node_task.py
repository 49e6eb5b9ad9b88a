"""A task of a step represents one rank. The first task of a node imports torch once and forks the node's ranks.

    python -m harness.runtime.launch.node_task harness.runtime.rank WORDS

The scheduler starts one task per rank, binds it to its cores and devices, and sees how it ends. A task does not import
torch: it asks the first task of its node for a rank, which is forked with the task's environment, cores and streams.
The task waits for its rank and exits as the rank did. If a task dies, its rank is killed.

A task runs its rank itself if the rank cannot be forked: if the scheduler confines the task to its own devices, if the
task has other library settings, or if it cannot connect to the first task.

In a container, Slurm's task is the program that made the container. It may be killed while the container goes on, so
the first task of a node watches it, and ends all ranks of the node when it ends.
"""

import os
import platform
import random
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from hashlib import sha256
from importlib import import_module
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from struct import calcsize, unpack

from harness.base.errors import RunError
from harness.comm.launchers import STARTED, read_place
from harness.comm.rendezvous import FIRST_PAUSE, RENDEZVOUS
from harness.runtime.launch.fork_server import Child, ForkServer, can_share_server
from harness.runtime.launch.library_caches import secure_caches
from harness.runtime.launch.time_limits import StartLimits

CONNECT_SECONDS = 30.0
"""The seconds after which a task that cannot connect to the first task of its node runs its rank itself."""
POLL_SECONDS = 0.02
BACKLOG = 4096
LEADER_GONE = 128 + signal.SIGTERM
"""The exit code of a task whose node's first task has ended."""
CREDENTIALS = "3i"
"""The format of `struct ucred`: process, user and group."""
NO_LIMITS = StartLimits(float("inf"))
"""The scheduler limits how long a step may take to start."""
TASK_PID = "SLURM_TASK_PID"
"""The variable with the process that Slurm started for a task: in a container, the program that made it."""
DEVICE_PATTERNS = ("nvidia[0-9]*", "dri/renderD*", "kfd", "accel[0-9]*")
STREAMS = (0, 1, 2)


def main() -> int:
    """Run the task, and return its exit code."""
    os.environ[STARTED] = str(time.time())
    secure_caches(os.environ)
    program = sys.argv[1:]
    if read_place(os.environ).local_rank > 0:
        return _exit_like_rank(_run_other_task(program))
    try:
        return _exit_like_rank(_run_first_task(program))
    except RunError as error:
        print(error, file=sys.stderr)
        return 1


def _make_socket_name() -> str:
    """Return the name of the node's socket, which is abstract: it identifies the step and the node.

    Every user of the node can read the name, so it has a digest of the rendezvous's secret name. Nodes that one
    machine simulates have the same host name and different numbers.
    """
    step = sha256(os.environ.get(RENDEZVOUS, "").partition(" ")[0].encode()).hexdigest()[:16]
    return f"\0harness-{step}-{platform.node()}-{os.environ.get('SLURM_NODEID', '')}"


def _make_order(program: Sequence[str]) -> dict[str, object]:
    """Return the order for a task's rank."""
    environment, cores = dict(os.environ), sorted(os.sched_getaffinity(0))
    return {"program": [*program], "environment": environment, "cores": cores, "devices": find_devices()}


def find_devices(folder: Path = Path("/dev")) -> list[str]:
    """Return the devices that this process may open. A scheduler may confine a task to some, and renumber them."""
    allowed = []
    for path in sorted(chain.from_iterable(folder.glob(pattern) for pattern in DEVICE_PATTERNS)):
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            allowed.append(path.name)
    return allowed


def _is_same_user(link: socket.socket) -> bool:
    """Return True if the process at the other end of a socket belongs to the same user: the name is public."""
    packed = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(CREDENTIALS))
    _, user, _ = unpack(CREDENTIALS, packed)
    return bool(user == os.getuid())


# The first task of a node.


def _run_first_task(program: Sequence[str]) -> int:
    """Fork the ranks of this task and of the other tasks. Return the exit code of this task's rank."""
    own_order = _make_order(program)
    with (
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as door,
        selectors.DefaultSelector() as selector,
        ForkServer() as server,
    ):
        try:
            door.bind(_make_socket_name())
        except OSError:
            return _run_in_task(program, "another task of its node calls itself the first one")
        door.listen(BACKLOG)
        selector.register(door, selectors.EVENT_READ)
        if (container_parent := _open_container_parent()) is not None:
            selector.register(container_parent, selectors.EVENT_READ)
        (own,) = server.start(program, [dict(os.environ)], STREAMS, NO_LIMITS)
        ranks: dict[Connection, Child] = {}
        while own.poll() is None or ranks:
            failed = own.poll()
            for key, _ in selector.select(POLL_SECONDS):
                if key.fileobj is door:
                    forked = _fork_for_task(door, server, own_order)
                    ranks |= forked
                    for task in forked:
                        selector.register(task, selectors.EVENT_READ)
                elif key.fileobj == container_parent:
                    return LEADER_GONE
                else:  # tasks send nothing after their order, so this task has ended
                    ranks[key.fileobj].send_signal(signal.SIGKILL)  # type: ignore[index]
            _report_exits(ranks, selector)
            if failed:
                break  # the scheduler ends the others
        return own.wait()


def _report_exits(ranks: dict[Connection, Child], selector: selectors.BaseSelector) -> None:
    """Send the exit code of each rank that has ended to its task, and drop both."""
    for task, rank in list(ranks.items()):
        if (code := rank.poll()) is not None:
            with suppress(OSError):
                task.send(code)
            selector.unregister(task)
            task.close()
            del ranks[task]


def _open_container_parent() -> int | None:
    """Return a descriptor that is readable once the process that made this container has ended, or None."""
    task = int(os.environ.get(TASK_PID, os.getpid()))
    with suppress(OSError):  # the process is in another PID namespace
        return None if task == os.getpid() else os.pidfd_open(task)
    return None


def _fork_for_task(
    door: socket.socket, server: ForkServer, own_order: dict[str, object]
) -> dict[Connection, Child]:
    """Fork the rank of the task that connects. Return it by its task; empty if the task must run its rank itself."""
    link, _ = door.accept()
    if not _is_same_user(link):
        link.close()
        return {}
    task = Connection(link.detach())
    try:
        order = task.recv()
        if order["devices"] != own_order["devices"]:
            task.send(f"it may open {order['devices']} of /dev, and the first task {own_order['devices']}")
        elif not can_share_server(order["environment"], os.environ):
            task.send("its variables for libraries differ from the first task's")
        else:
            task.send("")
            streams = [recv_handle(task) for _ in STREAMS]
            (rank,) = server.start(
                order["program"], [order["environment"]], streams, NO_LIMITS, order["cores"]
            )
            for stream in streams:
                os.close(stream)
            return {task: rank}
    except (EOFError, OSError):
        pass  # the task has ended
    task.close()
    return {}


# The other tasks.


def _run_other_task(program: Sequence[str]) -> int:
    """Return the exit code of the rank, which the node's first task forks or this task runs itself."""
    leader = _connect_to_leader()
    if leader is None:
        return _run_in_task(program, "the first task of its node is out of reach")
    try:
        leader.send(_make_order(program))
        if why := leader.recv():
            return _run_in_task(program, why)
        for stream in STREAMS:
            send_handle(leader, stream, 0)
        return int(leader.recv())
    except (EOFError, OSError):
        return LEADER_GONE


def _run_in_task(program: Sequence[str], why: str) -> int:
    """Run the rank in this task, and return its exit code."""
    print(f"Rank {read_place(os.environ).rank} imports by itself: {why}.", file=sys.stderr)
    del os.environ[STARTED]
    module, *sys.argv[1:] = program
    return int(import_module(module).main())


def _connect_to_leader() -> Connection | None:
    """Return a connection to the node's first task, or None if it cannot be reached."""
    deadline, pause = time.monotonic() + CONNECT_SECONDS, FIRST_PAUSE
    while time.monotonic() < deadline:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(_make_socket_name())
        except OSError:
            link.close()
            time.sleep(pause * random.random())
            pause = min(2 * pause, 1.0)
            continue
        if _is_same_user(link):
            return Connection(link.detach())
        link.close()
        return None
    return None


def _exit_like_rank(code: int) -> int:
    """End this process by the signal that ended its rank, or return the exit code of its rank."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has dumped its own core
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(1)
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main())
