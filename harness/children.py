"""Child processes that end when their parent ends, whatever ends the parent."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import CDLL

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, ending: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A function for a child to call first: the kernel then sends this signal when the parent dies, or has died.

    The kernel takes the thread that forked for the parent, so this thread must stay as long as the child.
    """
    libc = CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ending)
        if os.getppid() != parent:
            os._exit(1)

    return ask


@contextmanager
def kill_group_on_exit(group: int) -> Iterator[None]:
    """Ends a process group at the end of the block, and also if this process is killed meanwhile.

    The kernel sends the signal of `die_with_parent` to children alone. A small shell waits for the end of this process,
    which closes the pipe between the two, and then ends the children's own children too.
    """
    words = ["/bin/sh", "-c", f"read -r _; kill -s KILL -- -{group}"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    ) as guard:
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # its processes have ended, as a rule
                os.killpg(group, signal.SIGKILL)
            guard.kill()
