"""Child processes that end with their parent, even if the parent is killed."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import CDLL

PR_SET_PDEATHSIG = 1


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


@contextmanager
def kill_group_on_exit(group: int) -> Iterator[None]:
    """Kill a process group at the end of the block, or when this process is killed.

    `die_with_parent` only reaches direct children. To kill their children too, a small shell waits until the end of
    this process closes the pipe between the two.
    """
    command = ["/bin/sh", "-c", f"read -r _; kill -s KILL -- -{group}"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=null, stderr=null, start_new_session=True) as guard:
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # usually all processes have ended
                os.killpg(group, signal.SIGKILL)
            guard.kill()


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn a SIGTERM into SystemExit within the block, so that the block ends its children and cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def exit_on_signal(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
