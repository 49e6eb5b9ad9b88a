"""A task of a step stands for one rank; the first task of a node imports torch once, and forks the ranks of its node.

    python -m harness.launch.node_task harness.run.rank WORDS

The scheduler starts a task for every rank, so it binds the task to its cores and devices, and sees how the task ends. A
task imports no torch. It asks the first task of its node for a rank, which is forked with the environment, the cores
and the streams of its own task; it waits, and ends as its rank ended. If a task dies, so does its rank.

A rank that cannot be forked is run by its task: where the scheduler confines the task to devices of its own, where the
task has other settings of libraries, or where the first task is out of reach.

In a container the task of Slurm is the program that made the container, and may be killed while the container lives on.
The first task of a node watches for this end, and ends all ranks of the node.
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

from harness.comm.launchers import STARTED, read_place
from harness.comm.rendezvous import FIRST_PAUSE, RENDEZVOUS
from harness.errors import RunError
from harness.launch.fork_server import Child, ForkServer, Waiting, alike
from harness.launch.library_caches import secure_caches

REACHING = 30.0
"""The seconds after which a task that does not reach the first one of its node runs its rank by itself."""
POLL = 0.02
BACKLOG = 4096
ENDED = 128 + signal.SIGTERM
"""The exit code of a task whose node's first task is gone, which is the cause."""
CREDENTIALS = "3i"
TASK = "SLURM_TASK_PID"
"""The variable with the process that Slurm started for a task, which is another one where it made a container."""
DEVICES = ("nvidia[0-9]*", "dri/renderD*", "kfd", "accel[0-9]*")
STREAMS = (0, 1, 2)


def main() -> int:
    os.environ[STARTED] = str(time.time())
    secure_caches(os.environ)
    program = sys.argv[1:]
    if read_place(os.environ).local_rank > 0:
        return _end_as(_follow(program))
    try:
        return _end_as(_lead(program))
    except RunError as error:
        print(error, file=sys.stderr)
        return 1


def _address() -> str:
    """The name of the node's socket, which is in no file system: the step by its board, and the node.

    Every user of the node can read the name, so it holds a digest of the board's, a secret. Nodes that are played by
    one machine have one host name and different numbers.
    """
    step = sha256(os.environ.get(RENDEZVOUS, "").partition(" ")[0].encode()).hexdigest()[:16]
    return f"\0harness-{step}-{platform.node()}-{os.environ.get('SLURM_NODEID', '')}"


def _order(program: Sequence[str]) -> dict[str, object]:
    """What a task asks for its rank."""
    environment, cores = dict(os.environ), sorted(os.sched_getaffinity(0))
    return {"program": [*program], "environment": environment, "cores": cores, "devices": devices()}


def devices(folder: Path = Path("/dev")) -> list[str]:
    """The devices that this process may open. A scheduler may confine a task to some, and renumber what it sees."""
    allowed = []
    for path in sorted(chain.from_iterable(folder.glob(pattern) for pattern in DEVICES)):
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            allowed.append(path.name)
    return allowed


def _is_of_my_user(link: socket.socket) -> bool:
    """True if the process at the other end of a socket belongs to the same user: anyone may know the name."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(CREDENTIALS))
    _, user, _ = unpack(CREDENTIALS, told)
    return bool(user == os.getuid())


# The first task of a node.


def _lead(program: Sequence[str]) -> int:
    """Forks the own rank and those of the other tasks; the exit code of the own rank."""
    mine = _order(program)
    with (
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as door,
        selectors.DefaultSelector() as selector,
        ForkServer() as server,
    ):
        try:
            door.bind(_address())
        except OSError:
            return _run_here(program, "another task of its node calls itself the first one")
        door.listen(BACKLOG)
        selector.register(door, selectors.EVENT_READ)
        if (outside := _outside()) is not None:
            selector.register(outside, selectors.EVENT_READ)
        (own,) = server.start(program, [dict(os.environ)], STREAMS, Waiting(float("inf")))
        ranks: dict[Connection, Child] = {}
        while own.poll() is None or ranks:
            failed = own.poll()
            for key, _ in selector.select(POLL):
                if key.fileobj is door:
                    asked = _fork_for_a_task(door, server, mine)
                    ranks |= asked
                    for task in asked:
                        selector.register(task, selectors.EVENT_READ)
                elif key.fileobj == outside:
                    return ENDED
                else:  # a task that has asked says nothing more: it has ended
                    ranks[key.fileobj].send_signal(signal.SIGKILL)  # type: ignore[index]
            _pass_on_ends(ranks, selector)
            if failed:
                break  # the scheduler ends the others
        return own.wait()


def _pass_on_ends(ranks: dict[Connection, Child], selector: selectors.BaseSelector) -> None:
    """Tells each task whose rank has ended how it ended, and forgets both."""
    for task, rank in list(ranks.items()):
        if (code := rank.poll()) is not None:
            with suppress(OSError):
                task.send(code)
            selector.unregister(task)
            task.close()
            del ranks[task]


def _outside() -> int | None:
    """A descriptor that can be read when the process that made this container has ended; None outside a container."""
    task = int(os.environ.get(TASK, os.getpid()))
    with suppress(OSError):  # of another namespace of processes
        return None if task == os.getpid() else os.pidfd_open(task)
    return None


def _fork_for_a_task(
    door: socket.socket, server: ForkServer, mine: dict[str, object]
) -> dict[Connection, Child]:
    """The rank of the task that is at the door; none where the task has to run its rank by itself."""
    link, _ = door.accept()
    if not _is_of_my_user(link):
        link.close()
        return {}
    task = Connection(link.detach())
    try:
        order = task.recv()
        if order["devices"] != mine["devices"]:
            task.send(f"it may open {order['devices']} of /dev, and the first task {mine['devices']}")
        elif not alike(order["environment"], os.environ):
            task.send("its variables for libraries are not those of the first task")
        else:
            task.send("")
            streams = [recv_handle(task) for _ in STREAMS]
            (rank,) = server.start(
                order["program"], [order["environment"]], streams, Waiting(float("inf")), order["cores"]
            )
            for stream in streams:
                os.close(stream)
            return {task: rank}
    except (EOFError, OSError):
        pass  # the task has ended
    task.close()
    return {}


# The other tasks.


def _follow(program: Sequence[str]) -> int:
    """The exit code of the rank that the first task of the node forks for this one, or that this one runs."""
    leader = _reach_leader()
    if leader is None:
        return _run_here(program, "the first task of its node is out of reach")
    try:
        leader.send(_order(program))
        if why := leader.recv():
            return _run_here(program, why)
        for stream in STREAMS:
            send_handle(leader, stream, 0)
        return int(leader.recv())
    except (EOFError, OSError):
        return ENDED


def _run_here(program: Sequence[str], why: str) -> int:
    print(f"Rank {read_place(os.environ).rank} imports by itself: {why}.", file=sys.stderr)
    del os.environ[STARTED]
    module, *sys.argv[1:] = program
    return int(import_module(module).main())


def _reach_leader() -> Connection | None:
    deadline, pause = time.monotonic() + REACHING, FIRST_PAUSE
    while time.monotonic() < deadline:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(_address())
        except OSError:
            link.close()
            time.sleep(pause * random.random())
            pause = min(2 * pause, 1.0)
            continue
        if _is_of_my_user(link):
            return Connection(link.detach())
        link.close()
        return None
    return None


def _end_as(code: int) -> int:
    """Ends this process by the signal that ended its rank; or the exit code of its rank."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank left what it had to leave
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(1)
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main())
