"""Watches programs that train, and lets them take turns: each stops while another one runs.

A watched program has a private network if that is permitted, so that only its messages are on the loopback.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.workers.link import read_received
from harness.base.children import SessionGuard
from harness.base.errors import RunError

EVERY = 10
"""Epochs of a turn; some programs report only every tenth epoch."""
TICKS = os.sysconf("SC_CLK_TCK")
PRIVATE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Starts a command in a network that has only a loopback."""


class Amounts(NamedTuple):
    """What a program took."""

    wall: float
    """Seconds."""
    cpu: float
    """CPU seconds of all processes."""
    sent: float
    """Bytes on the loopback, with the headers of TCP; NaN without a private network."""

    def per_epoch(self, since: "Amounts") -> "Amounts":
        """Return the mean amounts of an epoch of a turn that began at `since`."""
        return Amounts(*((now - then) / EVERY for now, then in zip(self, since, strict=True)))


def can_isolate() -> bool:
    """Return True if this process may start commands in a private network."""
    with suppress(FileNotFoundError):
        return subprocess.run([*PRIVATE, "true"], stderr=subprocess.DEVNULL).returncode == 0
    return False


class WatchedProgram:
    """A program that reports epochs on its output. It is stopped except during its turns."""

    def __init__(
        self, command: Sequence[str], folder: Path, find_epoch: Callable[[str], int | None], *, private: bool
    ) -> None:
        """`find_epoch` returns the epoch that a line reports, counted from 0, or None."""
        self.lines: list[str] = []
        self._command, self._find_epoch = shlex.join(command), find_epoch
        self._private, self._guard = private, SessionGuard()
        self._process = subprocess.Popen(
            [*(PRIVATE if private else ()), *command],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=self._guard.make_preexec(),  # noqa: PLW1509  this process has one thread
        )

    def __enter__(self) -> Self:
        """Wait for the first turn's report, then stop the program."""
        try:
            self._wait_for_report()
            self._signal(signal.SIGSTOP)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def process(self) -> int:
        """The number of its first process, and of its session."""
        return self._process.pid

    @property
    def text(self) -> str:
        """The output so far."""
        return "".join(self.lines)

    def take_turn(self) -> Amounts:
        """Let the program run, and return the mean amounts of an epoch.

        The turn is between two reports, of which the first one comes after the program has found its caches again.
        """
        self._signal(signal.SIGCONT)
        self._wait_for_report()
        begun = self._read_amounts()
        self._wait_for_report()
        done = self._read_amounts()
        self._signal(signal.SIGSTOP)
        return done.per_epoch(begun)

    def _wait_for_report(self) -> None:
        """Read the output until the report of a tenth, twentieth, ... epoch."""
        assert self._process.stdout
        for line in self._process.stdout:
            self.lines.append(line)
            epoch = self._find_epoch(line)
            if epoch is not None and (epoch + 1) % EVERY == 0:
                return
        code = self._process.wait()
        raise RunError(
            f"{self._command} ended with exit code {code} before its last turn:\n{self.text[-4000:]}"
        )

    def _read_amounts(self) -> Amounts:
        now, sent = perf_counter(), read_received("lo", self.process) if self._private else float("nan")
        return Amounts(now, read_session_cpu(self.process), sent)

    def _signal(self, what: signal.Signals) -> None:
        os.killpg(self.process, what)

    def _end(self) -> None:
        """Kill all processes of the program."""
        assert self._process.stdout
        with closing(self._process.stdout), closing(self._guard):
            pass
        self._process.wait()


def read_session_cpu(session: int) -> float:
    """Return the CPU seconds of the processes of a session, without those that have ended."""
    return sum(cpu for owner, cpu in _read_processes() if owner == session)


def _read_processes() -> Iterator[tuple[int, float]]:
    """Yield the session and the CPU seconds of every process."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = status.read_text().rpartition(")")[2].split()
            yield int(fields[3]), (int(fields[11]) + int(fields[12])) / TICKS
