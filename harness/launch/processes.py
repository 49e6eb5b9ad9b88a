"""The rank processes of a run on this machine: started, watched and ended together.

A run ends soon after its first rank fails: the others get a moment to leave their own reasons. A run that hangs is
ended too, with every rank's stack. Once training is over no rank needs another any more: then the rank that writes the
record is left in peace. Ranks die with the process that started them.
"""

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from harness.launch.hang_detector import Hang, HangDetector

POLL_SECONDS = 0.05
GRACE = 3.0
"""Seconds that ranks have for their own reasons once another has ended."""
NOTICE = 1.0
"""Seconds that ranks have to write down their stacks."""
LEAVING = 10.0
"""Seconds that processes have to end when they are told to, and a writer to finish a record once time is up."""
STACKS = signal.SIGUSR1


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
    hang: Hang | None = None
    """The hang that ended the run."""
    recording: bool = False
    """Training was over when the run hung."""
    expired: bool = False
    """The time limit of the run was up."""
    out_of_memory: bool = False
    """Whoever started them says that their memory ran out."""
    lost: str = ""
    """What the place did to them: not the run's doing."""


class Process(Protocol):
    """A rank, or what stands for ranks elsewhere."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: signal.Signals, /) -> None: ...


class Ranks:
    """`with Ranks(processes) as ranks: ranks.watch(...)`: each is started in its turn, and none outlives the block.

    A process may stand for ranks elsewhere: it is ended by a signal that it can pass on.
    """

    def __init__(self, processes: Iterable[Process], ending: signal.Signals = signal.SIGKILL) -> None:
        self._coming, self._ending = processes, ending
        self._processes: list[Process] = []

    def __enter__(self) -> "Ranks":
        try:
            self._processes.extend(self._coming)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(self._ending)
        self._wait(LEAVING)
        self._tell(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def watch(
        self,
        detector: HangDetector,
        limit: float | None,
        meanwhile: Callable[[], None],
        recording: Callable[[], bool] = lambda: False,
    ) -> Watched:
        """Waits until every rank has ended well, or one has not, or the detector sees a hang.

        After `limit` seconds the run is over. Once a rank says that it is `recording`, it has as long as it
        needs, whatever becomes of the others.
        """
        expires = float("inf") if limit is None else time.monotonic() + limit
        deaths: dict[int, Death] = {}
        until = float("inf")
        while (over := recording()) or time.monotonic() < until:
            meanwhile()
            codes = [process.poll() for process in self._processes]
            for rank, code in enumerate(codes):
                if code and rank not in deaths:
                    deaths[rank] = Death(rank, code, time.time())
                    until = min(until, time.monotonic() + GRACE)
            if None not in codes:
                break
            if over or not deaths:
                if time.monotonic() > expires + (LEAVING if over else 0):
                    return Watched(expired=True)
                if hang := detector.look(self._living(codes), over or 0 in codes):
                    self._tell(STACKS)
                    time.sleep(NOTICE)
                    return Watched(hang=hang, recording=over or 0 in codes)
            time.sleep(POLL_SECONDS)
        return Watched(list(deaths.values()))

    def _living(self, codes: Sequence[int | None]) -> dict[int, int]:
        """The process ids of the ranks that have not ended."""
        return {rank: self._processes[rank].pid for rank, code in enumerate(codes) if code is None}

    def _tell(self, what: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(what)

    def _wait(self, seconds: float) -> None:
        """Until all have ended, or so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(POLL_SECONDS)
