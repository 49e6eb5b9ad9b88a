"""A kept server has imported what a run or a check needs: HARNESS_KEEP_SERVER asks for one.

The first `harness run` or `harness check` starts the server when it has ended. A later one is a client: it passes its
command line, environment, working directory and standard streams to the server, which forks the launcher of the run
from itself (`harness.launch.kept_process`). The client forwards signals and exits with the launcher's exit code. The
launcher dies with its client.

A server only serves clients that passed on the same to their children as the process that started it: variables,
limits, cores, control group and so on. All these are part of the name of its socket. The socket is in a folder that
only its user can open. Client and server also ask the kernel for the user of the other one, so nothing is sent to
another user, and nothing of another user is obeyed. Messages are JSON.

Where anything is in the way, `run_by_server` returns None, and the run goes on without a server. Importing this module
imports no large library.
"""

import fcntl
import json
import math
import os
import select
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from harness.comm.launchers import LAUNCHED, STARTED
from harness.errors import RunError, UserError
from harness.files import is_own
from harness.launch.server_settings import KEEP_SERVER, LAUNCHER_PREFIXES, select_settings

SERVED_VERBS = ("run", "check")
PROGRAM = "harness.cli"
"""The module whose `main` runs a verb."""
PLACE_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", LAUNCHED, STARTED)
INHERITED_STATUS = (
    *("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
)
"""The lines of /proc/self/status that children inherit."""
INHERITED_FILES = ("limits", "cgroup", "oom_score_adj")
"""The files of /proc/self whose content children inherit."""
NAMES_OF_DESCRIPTORS = ("/dev/fd/", "/proc/self/", "/proc/thread-self/")
"""How a word names a descriptor of the client, such as `<(...)` of a shell, which the launcher does not have."""
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)
HELLO, STARTED_RUN = b"h", b"s"
LENGTH, EXIT_CODE, CREDENTIALS = struct.Struct("!Q"), struct.Struct("!i"), struct.Struct("3i")
WAIT_SECONDS = 30.0
"""The time after which a client gives up on a server that does not answer, for instance because it still imports."""


is_served = False
"""Whether a kept server forked this process, as the launcher of a run."""


class KeptServer(NamedTuple):
    """A server that runs."""

    socket: Path
    pid: int

    def to_document(self) -> dict[str, Any]:
        """Return the server as JSON data."""
        return {"pid": self.pid, "socket": str(self.socket)}

    def stop(self) -> None:
        """End the server, and wait for its end. Runs that it has started go on."""
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                os.kill(self.pid, signal.SIGTERM)
                if not select.select([handle], [], [], WAIT_SECONDS)[0]:
                    raise RunError(
                        f"The kept server, process {self.pid}, did not end in {WAIT_SECONDS:g} s. "
                        f"If it does not end, kill it: kill -9 {self.pid}"
                    )
            finally:
                os.close(handle)


def run_by_server(words: Sequence[str]) -> int | None:
    """Run `harness WORDS` by a kept server, and return the exit code. Returns None if no server can run it."""
    if not os.environ.get(KEEP_SERVER) or not can_be_served(words, os.environ):
        return None
    parse_minutes(os.environ[KEEP_SERVER])
    connection = _connect_to_own_server()
    if connection is None:
        return None
    with connection:
        return _Client(connection).run(words)


def can_be_served(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True unless the run depends on more of this process than a server can take over."""
    is_debugged = sys.gettrace() is not None or sys.getprofile() is not None
    is_rank = any(
        name in PLACE_OF_A_RANK or name.startswith(LAUNCHER_PREFIXES) for name in environment
    )  # or a task of a scheduler, whose job ends its own processes only
    names_descriptor = any(name in word for word in words for name in NAMES_OF_DESCRIPTORS)
    return (
        bool(words)
        and words[0] in SERVED_VERBS
        and not {"--in-process", "--launches"} & {word.partition("=")[0] for word in words}
        and not (is_debugged or is_rank or names_descriptor)
    )


def parse_minutes(text: str) -> float:
    """Return the minutes that HARNESS_KEEP_SERVER names."""
    with suppress(ValueError):
        if 0 < (minutes := float(text)) < math.inf:
            return minutes
    raise UserError(
        f"{KEEP_SERVER}={text} is not accepted: a number of minutes, such as 10, or unset to keep no server."
    )


# Where servers are, and which one is ours.


def find_folder() -> Path | None:
    """Return the folder of the sockets, or None if it cannot be made, or may be open to other users."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    if _is_closed_to_others(runtime):
        folder = runtime / "harness"
    else:
        folder = Path(tempfile.gettempdir()) / f"harness-servers-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    return folder if _is_closed_to_others(folder) else None


def _is_closed_to_others(folder: Path) -> bool:
    """Return True if `folder` is a folder of this user, not a link, and nobody else may open it."""
    return is_own(folder, stat.S_ISDIR) and not folder.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def name_socket(folder: Path) -> Path:
    """Return the socket of the server that would pass on to a launcher what this process would pass on."""
    text = json.dumps(describe_inheritance(), sort_keys=True)
    return folder / f"{sha256(text.encode()).hexdigest()[:24]}.socket"


def describe_inheritance() -> dict[str, Any]:
    """Describe what a child of this process inherits and cannot change, as JSON data."""
    process = Path("/proc/self")
    status = (line.partition(":") for line in (process / "status").read_text(encoding="utf-8").splitlines())
    policy = os.sched_getscheduler(0)
    return {
        "host": os.uname().nodename,
        "python": [sys.executable, sys.version, [*sys.flags], sys._xoptions, sys.warnoptions, sys.path],
        "settings": select_settings(os.environ),
        "status": {name: text.strip() for name, _, text in status if name in INHERITED_STATUS},
        "files": {name: (process / name).read_text(encoding="utf-8") for name in INHERITED_FILES},
        "namespaces": {path.name: str(path.readlink()) for path in (process / "ns").iterdir()},
        "root": str((process / "root").readlink()),
        "priority": [os.getpriority(os.PRIO_PROCESS, 0), policy, os.sched_getparam(0).sched_priority],
    }


def connect(path: Path) -> socket.socket | None:
    """Return a connection to the server of a socket, or None if no server of this user answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(WAIT_SECONDS)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    if not is_peer_own(connection):
        connection.close()
        return None
    return connection


def is_peer_own(connection: socket.socket) -> bool:
    """Return True if the process at the other end belongs to this user."""
    return _read_credentials(connection)[1] == os.geteuid()


def _read_credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Return the process, user and group at the other end, as the kernel knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, group = CREDENTIALS.unpack(data)
    return process, user, group


def _connect_to_own_server() -> socket.socket | None:
    try:
        folder = find_folder()
        return connect(name_socket(folder)) if folder else None
    except OSError:  # a system without one of the files of /proc
        return None


def list_servers() -> list[KeptServer]:
    """Return the servers of this user on this machine."""
    found = []
    folder = find_folder()
    for path in sorted(folder.glob("*.socket")) if folder else []:
        if connection := connect(path):
            with connection:
                found.append(KeptServer(path, _read_credentials(connection)[0]))
    return found


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other servers from making or removing sockets within the block."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# The start of a server.


def keep_server(settings: Mapping[str, str]) -> None:
    """Start a server for later runs if the user asks for one and none runs. `settings` are the variables of ranks.

    The server's process is not a child that anyone waits for: it has its own session, and outlives this process.
    """
    wanted = os.environ.get(KEEP_SERVER)
    if not wanted or not settings or is_served or not can_be_served(["run"], os.environ):
        return
    seconds = 60 * parse_minutes(wanted)
    with suppress(OSError):
        folder = find_folder()
        path = name_socket(folder) if folder else None
        connection = connect(path) if path else None
        if connection:
            connection.close()
        elif path:
            _spawn_server(path, seconds, settings)


def _spawn_server(path: Path, seconds: float, settings: Mapping[str, str]) -> None:
    """Start the process of a server, whose output goes to a file next to its socket."""
    # -P: a file of the working directory must not be imported in place of a module.
    told = [str(path), str(seconds), str(time.time_ns())]
    words = [sys.executable, "-P", "-m", "harness.launch.kept_process", *told]
    log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        streams = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        os.posix_spawn(sys.executable, words, settings, file_actions=[null, *streams], setsid=True)
    finally:
        os.close(log)


# A client.


class _Client:
    """Runs one command by the server at the other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def run(self, words: Sequence[str]) -> int | None:
        """Return the exit code of the command, or None if the server has not run it to its end."""
        if not self._is_answered(HELLO):
            return None
        with ExitStack() as forwarding:
            with _hold_signals():  # they would end this process while its launcher starts
                if not self._start(words):
                    return None
                forwarding.enter_context(self._forward_signals())
            self._connection.settimeout(None)
            code = self._wait_for_exit_code()
        if code is None:
            print(
                "harness: the kept server lost the run, which starts again without it.",
                file=sys.stderr,
                flush=True,
            )
        elif code < 0:
            _die_by_signal(-code)
        return code

    def _is_answered(self, answer: bytes) -> bool:
        """Return True if the server sends `answer` in time."""
        try:
            return self._connection.recv(1) == answer
        except OSError:  # the server is gone, or does not answer
            return False

    def _start(self, words: Sequence[str]) -> bool:
        """Return True if the server has started the command."""
        try:
            self._send_request(words)
        except OSError:
            return False
        return self._is_answered(STARTED_RUN)

    def _send_request(self, words: Sequence[str]) -> None:
        request = {
            "words": [*words],
            "program": sys.argv[0],
            "path": sys.path,
            "environment": {**os.environ},
        }
        text = json.dumps(request).encode()
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            socket.send_fds(self._connection, [LENGTH.pack(len(text))], [folder, 0, 1, 2])
        finally:
            os.close(folder)
        self._connection.sendall(text)

    def _wait_for_exit_code(self) -> int | None:
        data = b""
        while len(data) < EXIT_CODE.size:
            try:
                received = self._connection.recv(EXIT_CODE.size - len(data))
            except ConnectionError:
                received = b""
            if not received:
                return None
            data += received
        code: int = EXIT_CODE.unpack(data)[0]
        return code

    @contextmanager
    def _forward_signals(self) -> Iterator[None]:
        """Forward signals that end or stop this process to the launcher within the block."""
        before = {each: signal.getsignal(each) for each in FORWARDED_SIGNALS}
        for each, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(each, self._forward)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _forward(self, number: int, _: object) -> None:
        with suppress(OSError):
            self._connection.sendall(bytes([number]))
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
                self._connection.sendall(bytes([signal.SIGCONT]))


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Receive the signals that a client forwards only after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_by_signal(number: int) -> None:
    """End this process by the signal that ended the launcher."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
