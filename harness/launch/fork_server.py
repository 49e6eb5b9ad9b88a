"""A process that has imported what ranks need: they are forked from it, and nobody waits for torch again.

It starts with the settings of the machine card, which allocators and thread pools read before any Python runs. A rank
is a child's child whose parent has gone, so that the kernel gives it to the launcher, which sees itself how it ended.
Ranks and fork server die with the launcher.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CDLL, byref, c_int
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from harness.errors import RunError

IMPORTED = ("harness.run.rank", "harness.run.recording", "torch._dynamo")
"""What takes seconds."""
PLACE = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
"""Variables that are read by Python, and so may differ from those of the fork server."""
PATIENCE = 120.0
"""Seconds until the first rank is there."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 1, 36, 37


class Child:
    """A rank as its launcher sees it: what `subprocess.Popen` tells of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def send_signal(self, what: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, what)


class ForkServer:
    """`with ForkServer() as server: server.start(...)`: its process is started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._settings: Mapping[str, str] = {}

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def start(
        self, program: Sequence[str], environments: Sequence[Mapping[str, str]], log: Path
    ) -> Iterator[Child]:
        """A module with a `main` and its words, once in each environment."""
        with _adopting():
            for environment in environments:
                order = {"program": [*program], "environment": {**environment}, "log": str(log)}
                yield Child(self._fork(order))

    def _fork(self, order: dict[str, Any]) -> int:
        process = self._with({key: text for key, text in order["environment"].items() if key not in PLACE})
        assert process.stdin and process.stdout, "pipes"
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        pid = process.stdout.readline() if ready else ""
        if not pid:
            self._close()
            raise RunError(f"No rank could be started: {' '.join(_command())} ended, or said nothing.")
        return int(pid)

    def _with(self, settings: Mapping[str, str]) -> "subprocess.Popen[str]":
        """The process, with these settings."""
        if self._process and self._settings != settings:
            self._close()
        if self._process is None:
            self._settings = settings
            self._process = subprocess.Popen(
                _command(),
                env=settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=tie(os.getpid(), signal.SIGKILL),  # noqa: PLW1509  the launcher has no threads of its own
            )
        return self._process

    def _close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _command() -> list[str]:
    return [sys.executable, "-m", __name__, str(os.getpid())]


@contextmanager
def _adopting() -> Iterator[None]:
    """Inside, children whose parents are gone become this process's own."""
    libc, before = CDLL(None), c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, byref(before))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value)


def tie(parent: int, ending: signal.Signals) -> Callable[[], None]:
    """What a child does first: ask the kernel to end it when its parent dies, which may have happened already."""
    libc = CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ending)
        if os.getppid() != parent:
            os._exit(1)

    return ask


# What follows runs in the fork server.


def main() -> int:
    """Forks a rank for every line that it reads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in IMPORTED:
        import_module(module)
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        if _forked_away(launcher=int(sys.argv[1])):
            _be(json.loads(line))
    return 0


def _forked_away(launcher: int) -> bool:
    """True in the rank, False here."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)
    tie(launcher, signal.SIGKILL)()
    return True


def _be(order: dict[str, Any]) -> NoReturn:
    """The rank, to its end: at once, without taking apart module by module what was imported."""
    code = 1
    try:
        print(os.getpid(), flush=True)
        module, *sys.argv[1:] = order["program"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(order["environment"])
        _redirect(order["log"])
        code = import_module(module).main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: str) -> None:
    """Standard streams as a process has them that nobody talks to."""
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for target, stream in enumerate((nothing, file, file)):
        os.dup2(stream, target)
    os.close(nothing)
    os.close(file)


if __name__ == "__main__":
    sys.exit(main())
