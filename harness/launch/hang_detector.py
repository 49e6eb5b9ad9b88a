"""The hang detector separates slow ranks from ranks that wait for each other for ever, or that a signal has stopped.

Ranks hang if for the whole patience none of their threads runs, waits for a core or waits for a disk (state D). Gloo
has a thread that polls a hundred times a second. On a busy machine this thread often waits for a core, which says
nothing about its rank. A rank is stopped if a signal holds it for the whole patience, whatever the others do. Once
training is over no rank waits for another, but a disk may be slow, so the remaining ranks have a patience of their own.

The detector does not see a rank whose first thread waits actively (spins, or polls often). On a GPU it looks for
stopped ranks alone. A rank that /proc does not show counts as running.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BUSY_SHARE = 0.01
"""The share of one core that working ranks use or wait for at least, summed over all ranks."""
LOOKS = 20
"""The number of looks within the patience."""
LATE = 2
"""The intervals that a late look counts for at most: the launcher itself was stopped, or got no core."""
POLLING = 1e-4
"""The seconds that a thread which only polls runs at a time, on average."""
RUNNABLE, ASLEEP, STOPPED, UNSEEN = "R", "S", "T", "?"
"""States of a process or thread: the letters of proc(5), and one for a process that /proc does not show."""
TICKS = os.sysconf("SC_CLK_TCK")
NANO = 1e-9
PROC = Path("/proc")


class Hang(NamedTuple):
    """Ranks that hang."""

    stopped: tuple[int, ...] = ()
    """The ranks that a signal has stopped; none if all ranks sleep."""


class _ProcessState(NamedTuple):
    """The state of a process's first thread, and the processor time of all threads that the process ever had."""

    state: str
    seconds: float = 0.0


class _ThreadState(NamedTuple):
    """The state of a thread, its seconds on a core and waiting for a core, and the number of its time slices."""

    state: str
    ran: float = 0.0
    waited: float = 0.0
    slices: int = 0
    """0 where the kernel keeps no account of a thread."""


class HangDetector:
    """`look` may be called often: /proc is read only a few times within the patience, and never without patience."""

    def __init__(
        self,
        patience: float | None,
        recording: float = float("inf"),
        *,
        by_sleep: bool = True,
        proc: Path = PROC,
    ) -> None:
        """`recording` is the patience with sleep when training is over; without `by_sleep`, sleep is no sign."""
        self._patience = patience if _is_of_this_namespace(proc) else None
        self._recording, self._by_sleep, self._proc = recording, by_sleep, proc
        self._looked = self._next = 0.0
        self._held: dict[int, tuple[float, tuple[float, int]]] = {}
        """The seconds of each stopped rank's stop, and the processor time and slices that the rank had used before."""
        self._asleep = self._wanted = 0.0
        """The seconds of all ranks' sleep, and the seconds of these on a core or waiting for a core."""
        self._seconds: dict[int, float] = {}
        self._threads: dict[tuple[int, int], _ThreadState] = {}

    def look(self, pids: Mapping[int, int], recording: bool = False) -> Hang | None:
        """The hang of these ranks, or None.

        Their processes are children that were not waited for yet, so no process id can be that of another process.
        """
        now = time.monotonic()
        if self._patience is None or now < self._next:
            return None
        step = self._patience / LOOKS
        passed = min(now - self._looked, LATE * step)
        self._looked, self._next = now, now + step
        processes = {rank: self._process(pid) for rank, pid in pids.items()}
        held = self._seconds_held(pids, processes, passed)
        if stopped := tuple(rank for rank, seconds in held.items() if seconds >= self._patience):
            return Hang(stopped)
        patience = self._recording if recording else self._patience
        if (
            self._by_sleep
            and self._seconds_asleep(pids, processes, passed, BUSY_SHARE * patience) >= patience
        ):
            return Hang()
        return None

    def _seconds_held(
        self, pids: Mapping[int, int], processes: Mapping[int, _ProcessState], passed: float
    ) -> dict[int, float]:
        """The seconds of each stopped rank's stop; a rank that ran since the last look was stopped anew."""
        held: dict[int, tuple[float, tuple[float, int]]] = {}
        for rank, process in processes.items():
            if process.state == STOPPED:
                used = process.seconds, sum(thread.slices for thread in self._threads_of(pids[rank]).values())
                seconds, before = self._held.get(rank, (0.0, None))
                held[rank] = (seconds + passed if used == before else 0.0, used)
        self._held = held
        return {rank: seconds for rank, (seconds, _) in held.items()}

    def _seconds_asleep(
        self, pids: Mapping[int, int], processes: Mapping[int, _ProcessState], passed: float, enough: float
    ) -> float:
        """The seconds of all ranks' sleep. Ranks that want `enough` processor time are awake.

        Threads are read only where all processes seem to sleep, so looking at working ranks costs little.
        """
        seconds = {rank: process.seconds for rank, process in processes.items()}
        threads: dict[tuple[int, int], _ThreadState] = {}
        wanted = float("inf")
        if all(
            process.state == ASLEEP and process.seconds - self._seconds.get(rank, 0.0) < enough
            for rank, process in processes.items()
        ):
            for pid in pids.values():
                threads |= self._threads_of(pid)
            if threads.keys() == self._threads.keys():
                wanted = sum(_wanted(at, self._threads[at], now) for at, now in threads.items())
        self._seconds, self._threads = seconds, threads
        self._wanted += wanted
        if self._wanted < enough:
            self._asleep += passed
        else:
            self._asleep = self._wanted = 0.0
        return self._asleep

    def _process(self, pid: int) -> _ProcessState:
        try:
            state, *fields = _stat(self._proc / str(pid))
        except OSError:
            return _ProcessState(UNSEEN)
        return _ProcessState(state, _seconds(fields))

    def _threads_of(self, pid: int) -> dict[tuple[int, int], _ThreadState]:
        """The threads of a process, by process id and thread id."""
        try:
            folders = list((self._proc / str(pid) / "task").iterdir())
            return {(pid, int(folder.name)): _thread(folder) for folder in folders}
        except OSError:
            return {(pid, pid): _ThreadState(UNSEEN)}


def _is_of_this_namespace(proc: Path) -> bool:
    """True if /proc shows this process under its own id. A container may show the processes of its host, or none."""
    try:
        return str((proc / "self").readlink()) == str(os.getpid())
    except OSError:
        return False


def _stat(folder: Path) -> list[str]:
    """The fields of a process or thread from the state on; the name before it may have any characters."""
    return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _thread(folder: Path) -> _ThreadState:
    state, *fields = _stat(folder)
    try:
        ran, waited, slices = map(int, (folder / "schedstat").read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return _ThreadState(state, _seconds(fields))
    return _ThreadState(state, ran * NANO, waited * NANO, slices)


def _seconds(fields: Sequence[str]) -> float:
    """The processor time among the fields that follow the state: user time and system time."""
    return (int(fields[10]) + int(fields[11])) / TICKS


def _wanted(at: tuple[int, int], before: _ThreadState, now: _ThreadState) -> float:
    """The seconds that a thread ran and waited for a core; infinite if the thread runs or waits at this moment.

    A thread that polls wants nothing. The first thread of a process trains, and counts however shortly it runs. Where
    the kernel keeps no account, the state R of another thread may be that of a thread that polls.
    """
    ran, waited, slices = now.ran - before.ran, now.waited - before.waited, now.slices - before.slices
    is_first = at[0] == at[1]
    if not is_first and now.state in (ASLEEP, RUNNABLE) and ran < POLLING * slices:
        return 0.0
    sleeps = now.state == ASLEEP or (now.state == RUNNABLE and not is_first and not now.slices)
    return ran + waited if sleeps else float("inf")
