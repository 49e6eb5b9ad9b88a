"""The rank processes of a run on this machine: started, watched and ended together.

A run ends soon after its first rank does: the others get a moment to leave their own reasons. A run in which nobody
uses the processor any more is ended too, with every rank's stack. Ranks die with the process that started them.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL
from pathlib import Path
from typing import NamedTuple

from harness.launch.stillness import Stillness
from harness.run.unfinished import LEAVE

POLL_SECONDS = 0.05
GRACE = 3.0
"""Seconds that ranks have for their own reasons once another has ended."""
NOTICE = 1.0
"""Seconds that ranks have to write down their stacks."""
LEAVING = 10.0
"""Seconds that ranks have to write down what they finished, and to end."""
STACKS = signal.SIGUSR1
PR_SET_PDEATHSIG = 1


class Death(NamedTuple):
    """A rank that ended by itself, and not well."""

    rank: int
    code: int
    at: float
    """By the clock of the day, not later than a poll after it happened."""


class Watched(NamedTuple):
    """How a run ended."""

    deaths: Sequence[Death] = ()
    """In the order in which they were seen."""
    still: bool = False
    """Nobody did anything any more."""
    stopped: Sequence[int] = ()
    """Ranks that were stopped by a signal, when everybody was still."""
    expired: bool = False
    """Their time was up, and they were told to leave."""
    out_of_memory: bool = False
    """Whoever started them says that their memory ran out."""
    lost: str = ""
    """What the place did to them: not the run's doing."""


class Ranks:
    """`with Ranks(command, environments, log) as ranks: ranks.watch(...)`; none outlives the block.

    A process may stand for ranks elsewhere: it is ended by a signal that it can pass on.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        log: Path,
        ending: signal.Signals = signal.SIGKILL,
    ) -> None:
        self._command, self._environments, self._log, self._ending = command, environments, log, ending
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Ranks":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        tie = _die_with(os.getpid(), self._ending)
        with self._log.open("wb") as log:
            for environment in self._environments:
                self._processes.append(
                    subprocess.Popen(
                        self._command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        preexec_fn=tie,  # noqa: PLW1509  the launcher has no threads of its own
                    )
                )

    def __exit__(self, *_: object) -> None:
        self._tell(self._ending)
        self._wait(LEAVING)
        self._tell(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def watch(self, patience: float | None, limit: float | None, meanwhile: Callable[[], None]) -> Watched:
        """Until every rank has ended well, or one has not, or all were still for `patience` seconds.

        After `limit` seconds they are told to leave.
        """
        expires = float("inf") if limit is None else time.monotonic() + limit
        still = Stillness([process.pid for process in self._processes], patience)
        deaths: dict[int, Death] = {}
        until = float("inf")
        while time.monotonic() < until:
            meanwhile()
            codes = [process.poll() for process in self._processes]
            for rank, code in enumerate(codes):
                if code and rank not in deaths:
                    deaths[rank] = Death(rank, code, time.time())
                    until = min(until, time.monotonic() + GRACE)
            if None not in codes:
                break
            if not deaths and time.monotonic() > expires:
                self._tell(LEAVE)
                self._wait(LEAVING)
                return Watched(expired=True)
            if not deaths and still.now():
                stopped = [
                    rank for rank, process in enumerate(self._processes) if still.is_stopped(process.pid)
                ]
                self._tell(STACKS)
                time.sleep(NOTICE)
                return Watched(still=True, stopped=stopped)
            time.sleep(POLL_SECONDS)
        return Watched(list(deaths.values()))

    def _tell(self, what: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(what)

    def _wait(self, seconds: float) -> None:
        """Until all have ended, or so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(POLL_SECONDS)


def _die_with(parent: int, ending: signal.Signals) -> Callable[[], None]:
    """What a child does first: ask the kernel to end it when its parent dies, which may have happened already."""
    libc = CDLL(None)

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ending)
        if os.getppid() != parent:
            os._exit(1)

    return tie
