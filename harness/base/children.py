"""Child processes: the output of a short command, and processes that end with their parent, even if it is killed."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ctypes import CDLL
from typing import Any, TypeVar

PR_SET_PDEATHSIG = 1
PATIENCE = 20
"""The time limit of a short command in seconds."""


def run_tool(*command: str) -> str | None:
    """Return the output of a command; None if it is not installed, fails or exceeds the time limit."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def die_with_parent(parent: int, ending: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return a `preexec_fn` with which the kernel sends the signal `ending` to the child when the parent dies.

    For the kernel the parent is the thread that forked, so that thread must outlive the child.
    """
    libc = CDLL(None)  # loaded before the fork, after which little is safe

    def request_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ending)
        if os.getppid() != parent:
            os._exit(1)

    return request_signal


T = TypeVar("T")
R = TypeVar("R")
_forked_work: list[Callable[[int], Any]] = []
"""In a forked process: the function that it calls."""


def map_in_forks(function: Callable[[T], R], items: Sequence[T], least: int = 2) -> Iterator[R]:
    """Yield the results of a function in order, computed by forked processes, one for each core.

    Forked processes share what this process has imported and read: neither the function nor its arguments are copied,
    only its results. Fewer than `least` items are not worth the processes.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    cores = min(len(os.sched_getaffinity(0)), len(items))
    with ExitStack() as stack:
        results: Iterator[R] = map(function, items)
        if cores > 1 and len(items) >= least:
            start = (os.getpid(), lambda number: function(items[number]))
            with suppress(OSError):  # no semaphores, for example because /dev/shm is read-only
                pool = stack.enter_context(
                    ProcessPoolExecutor(cores, get_context("fork"), _start_work, start)
                )
                at_once = max(1, min(16, len(items) // (32 * cores)))
                results = pool.map(_do_work, range(len(items)), chunksize=at_once)
        yield from results


def _start_work(parent: int, function: Callable[[int], Any]) -> None:
    die_with_parent(parent)()
    _forked_work.append(function)


def _do_work(number: int) -> Any:
    return _forked_work[-1](number)


class SessionGuard:
    """Kills the processes of a session when it is closed, or when this process ends for any reason.

    `die_with_parent` only reaches direct children. To kill their children too, a small shell reads the process group
    from a pipe, and waits until the other end is closed. The group is known to it before the session's program starts.
    """

    def __init__(self) -> None:
        command = ["/bin/sh", "-c", "read -r group && { read -r _; kill -s KILL -- -$group; }"]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._shell = subprocess.Popen(
            command, stdin=pipe, stdout=null, stderr=null, bufsize=0, start_new_session=True
        )

    def make_preexec(self) -> Callable[[], None]:
        """Return the `preexec_fn` of the session's first process, which dies with this one (`die_with_parent`)."""
        assert self._shell.stdin is not None
        request_signal, pipe = die_with_parent(os.getpid()), self._shell.stdin.fileno()

        def announce_group() -> None:
            request_signal()
            os.write(pipe, b"%d\n" % os.getpid())

        return announce_group

    def close(self) -> None:
        """Kill the processes that are left, and wait until they are killed."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait()

    def __enter__(self) -> "SessionGuard":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a process to end; SIGHUP says that its terminal was closed."""


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn a signal of `ENDINGS` into SystemExit within the block, so that the block ends its children and cleans up.

    A signal that is ignored, such as SIGHUP under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def exit_on_signal(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {each: signal.getsignal(each) for each in ENDINGS}
    caught = {each: handler for each, handler in before.items() if handler is not signal.SIG_IGN}
    for each in caught:
        signal.signal(each, exit_on_signal)
    try:
        yield
    finally:
        for each, handler in caught.items():
            signal.signal(each, handler)
