"""The process of a kept server, which forks the launcher of each run from itself (`harness.launch.kept_server`).

    python -P -m harness.launch.kept_process SOCKET SECONDS STARTED

The server starts with the settings of ranks, and imports what launchers and ranks need. For every client it forks a
host, and the host forks the launcher. The host waits for both: it forwards the client's signals, kills the launcher if
the client is gone, and sends the exit code. A launcher dies with its host, and ranks die with their launcher as in any
run. Before anything else, the launcher forks the fork server of its ranks from itself, which is then as new as the
kept server.

The server ends after SECONDS without a run, and when a file has changed since STARTED that it has imported. STARTED is
a time of day in nanoseconds. Strategies of plugins are not imported here, but by the launchers and ranks that use them.
"""

import atexit
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any, NoReturn

from harness.children import die_with_parent
from harness.launch import kept_server
from harness.launch.fork_server import PRELOADED_MODULES, fork_server_from_here, import_modules
from harness.launch.kept_server import (
    EXIT_CODE,
    HELLO,
    LENGTH,
    PROGRAM,
    STARTED_RUN,
    WAIT_SECONDS,
    connect,
    is_peer_own,
    lock_folder,
)
from harness.launch.server_settings import select_settings

LAUNCHER_MODULES = (
    "harness.cli.app",
    "harness.cli.terminal",
    "harness.commands.checking",
    "harness.commands.running",
    "harness.commands.rendering",
    "harness.launch.launch",
    "harness.conformance",
)
"""The modules that a launcher needs and a rank of a run does not."""
CLOCK_TICK = 20_000_000
"""Nanoseconds by which the time of a change may be behind the clock."""
Version = dict[str, int]
"""The time of the last change of each file or folder."""


def main() -> int:
    """Serve clients until the server is idle for too long, or out of date."""
    path, seconds, started = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) - CLOCK_TICK
    settings = select_settings(os.environ)
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _listen(path) as (listener, retire):
        try:
            import_modules([*PRELOADED_MODULES, *LAUNCHER_MODULES])
        except Exception:
            traceback.print_exc()
            return 1
        version = read_version()
        # What changed during the imports may be imported in part.
        if not any(started <= changed <= time.time_ns() for changed in version.values()):
            _serve(listener, retire, seconds, version, settings)
    return 0


@contextmanager
def _listen(path: Path) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
    """Listen at a socket within the block, which gets the function that makes room for another server.

    Exits if another server listens.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with lock_folder(path.parent):
            if other := connect(path):
                other.close()
                sys.exit(0)
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(64)
            own = path.lstat().st_ino

        def retire() -> None:
            with lock_folder(path.parent), suppress(FileNotFoundError):
                if path.lstat().st_ino == own:  # the number is not used again before `listener` is closed
                    path.unlink()
                    if not path.with_suffix(".log").stat().st_size:  # else it may have the reason of this end
                        path.with_suffix(".log").unlink()

        try:
            yield listener, retire
        finally:
            retire()


def read_version() -> Version:
    """Return the times of all modules that are imported, and of the folders of packages instead of their modules."""
    folders = [folder for folder in sys.path if folder.endswith("-packages")]
    libraries = (*folders, os.path.dirname(os.__file__))  # noqa: PTH120  called for every client
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    own = {file for file in files if file and not file.startswith(libraries)}
    return {path: _read_time(path) for path in (*folders, *own)}


def _read_time(path: str) -> int:
    """Return the time of a file's last change, or 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _serve(
    listener: socket.socket,
    retire: Callable[[], None],
    seconds: float,
    version: Version,
    settings: Mapping[str, str],
) -> None:
    """Fork a host for every client, until the server is idle for too long, out of date, or told to stop."""
    with _watch_signals(signal.SIGCHLD, signal.SIGTERM) as arrived:
        hosts, last = set[int](), time.monotonic()
        while hosts or time.monotonic() - last < seconds:
            timeout = None if hosts else max(last + seconds - time.monotonic(), 0.0)
            ready = _select([listener, arrived], timeout)
            if arrived in ready:
                if signal.SIGTERM in arrived.recv(4096):
                    return
                hosts -= {pid for pid, _ in _reap(hosts)}
                last = time.monotonic()
            if listener in ready:
                connection, _ = listener.accept()
                with connection:
                    if not is_peer_own(connection):
                        continue
                    if any(_read_time(path) != changed for path, changed in version.items()):
                        retire()  # before the client goes on and looks for a server
                        return
                    host = os.fork()
                    if host == 0:
                        _run_host(connection, [listener, arrived], settings)
                    hosts.add(host)


@contextmanager
def _watch_signals(*numbers: signal.Signals) -> Iterator[socket.socket]:
    """Yield a socket from which the numbers of signals can be read when they have arrived.

    A handler that raises would not do: Python ignores exceptions in the functions that modules run around a fork.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _select(sockets: Sequence[socket.socket], timeout: float | None) -> list[Any]:
    """Return the sockets that have data, or a client, within the timeout."""
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout)]


def _reap(children: set[int]) -> list[tuple[int, int]]:
    """Return the children that have ended, with their exit codes."""
    ended = []
    for child in children:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


# A host.


def _run_host(
    connection: socket.socket, of_server: Sequence[socket.socket], settings: Mapping[str, str]
) -> NoReturn:
    """Serve one client, and exit."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for each in of_server:
            each.close()
        with suppress(OSError):  # the client is gone
            _host_launcher(connection, settings)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _host_launcher(connection: socket.socket, settings: Mapping[str, str]) -> None:
    """Receive a request, fork its launcher, and send its exit code."""
    connection.settimeout(WAIT_SECONDS)
    connection.sendall(HELLO)
    header, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 4)
    if len(header) < LENGTH.size or len(descriptors) < 4:
        return
    request = json.loads(_receive(connection, LENGTH.unpack(header)[0]))
    connection.settimeout(None)
    with _watch_signals(signal.SIGCHLD) as ended:
        bind_to_host = die_with_parent(os.getpid())
        waiting, ready = os.pipe()
        launcher = os.fork()
        if launcher == 0:
            bind_to_host()
            connection.close()
            ended.close()
            os.close(waiting)
            _run_launcher(request, descriptors, settings, ready)
        for each in (*descriptors, ready):
            os.close(each)
        os.read(waiting, 1)  # from now on the launcher is interrupted by signals that it ignored before
        os.close(waiting)
        connection.sendall(STARTED_RUN)
        code = _watch(connection, ended, launcher)
        connection.sendall(EXIT_CODE.pack(code))


def _receive(connection: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes."""
    data = bytearray()
    while len(data) < size:
        received = connection.recv(min(size - len(data), 1 << 20))
        if not received:
            raise ConnectionResetError("the client is gone")
        data += received
    return bytes(data)


def _watch(connection: socket.socket, ended: socket.socket, launcher: int) -> int:
    """Forward the client's signals until the launcher has ended, and return its exit code."""
    sources = [connection, ended]
    while True:
        ready = _select(sources, None)
        if connection in ready:
            try:
                numbers = connection.recv(64)
            except ConnectionError:
                numbers = b""
            if not numbers:
                sources.remove(connection)
            _send_signals(launcher, numbers or bytes([signal.SIGKILL]))
        if ended in ready:
            ended.recv(4096)
            for _, code in _reap({launcher}):
                return code


def _send_signals(launcher: int, numbers: bytes) -> None:
    """Send signals to a launcher that has not been reaped. A stop also stops its ranks, as it does in a terminal."""
    for number in numbers:
        with suppress(ProcessLookupError):
            if number in (signal.SIGTSTP, signal.SIGCONT):
                os.killpg(launcher, signal.SIGSTOP if number == signal.SIGTSTP else number)
            else:
                os.kill(launcher, number)


# A launcher.


def _run_launcher(
    request: Mapping[str, Any], descriptors: Sequence[int], settings: Mapping[str, str], ready: int
) -> NoReturn:
    """Run the command of a client as if the client had done so itself, and exit with its exit code.

    The descriptor `ready` is closed as soon as signals reach the command.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(ready)
        fork_server_from_here(settings, descriptors)
        _become_client(request, descriptors)
        kept_server.is_served = True
        code = import_module(PROGRAM).main(request["words"])
        atexit._run_exitfuncs()
    except BaseException as error:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            code = error.code
        elif isinstance(error, KeyboardInterrupt):  # before the command ran
            code = 128 + signal.SIGINT
        else:
            traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _become_client(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Take over the folder, the streams, the arguments and the environment of a client."""
    folder, *streams = descriptors
    os.fchdir(folder)
    os.close(folder)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    _open_streams()
    sys.argv[:] = [request["program"], *request["words"]]
    sys.path[:] = request["path"]
    invalidate_caches()
    os.environ.clear()
    os.environ.update(request["environment"])
    _choose_threads()


def _open_streams() -> None:
    """Open the standard streams anew: the old ones remember that they are files of the server."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)
        new = open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        is_line_buffered = name == "stderr" or new.isatty()
        new.reconfigure(line_buffering=is_line_buffered, write_through=old.write_through)  # type: ignore[attr-defined]
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _choose_threads() -> None:
    """Give thread pools the size that the environment names. The server's pools have the size for ranks."""
    import torch
    from numba.core.config import reload_config

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or cores))
    reload_config()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(main())
