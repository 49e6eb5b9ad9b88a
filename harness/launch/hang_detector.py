"""The hang detector tells ranks that wait for each other for ever, or that a signal holds, from ranks that are slow.

Ranks hang if for the whole patience no thread of theirs works, waits for a core or is in the kernel for a disk. Gloo
has a thread that polls a hundred times a second: on a busy machine it often waits for a core, which says nothing about
its rank. A rank is stopped if a signal holds it for the whole patience, whatever the others do. Once training is over
no rank waits for another, and a disk may be slow: then the ranks that are left have a patience of their own.

The detector does not see a rank whose first thread waits actively (spins, or polls often), and on a GPU it looks for
stopped ranks alone. Where /proc does not show a rank, that rank counts as running.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BUSY_SHARE = 0.01
"""The share of one core that ranks use or wait for, all of them together, if they do anything."""
LOOKS = 20
"""The number of looks within the patience."""
LATE = 2
"""The intervals that a late look counts for at most: the launcher itself was stopped then, or got no core."""
POLLING = 1e-4
"""The seconds that a thread runs at a time, on average, if it only looks whether there is something to do."""
RUNNABLE, ASLEEP, STOPPED, UNSEEN = "R", "S", "T", "?"
"""States of a process or thread: the letters of proc(5), and one for what /proc does not show."""
TICKS = os.sysconf("SC_CLK_TCK")
NANO = 1e-9
PROC = Path("/proc")


class Hang(NamedTuple):
    """What is known of ranks that hang."""

    stopped: tuple[int, ...] = ()
    """The ranks that a signal has stopped; none if all ranks sleep."""


class _Process(NamedTuple):
    """The state of a process's first thread, and the processor time of all that it ever had."""

    state: str
    seconds: float = 0.0


class _Thread(NamedTuple):
    """The state of a thread, how long it ran and waited for a core, and how often it was given one."""

    state: str
    ran: float = 0.0
    waited: float = 0.0
    slices: int = 0
    """0 where the kernel keeps no account."""


class HangDetector:
    """`look` may be called often: it reads /proc only a few times within the patience, and never without patience."""

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
        """How long each stopped rank is known to be, and what it had used of processors before."""
        self._asleep = self._wanted = 0.0
        """How long all ranks have been asleep, and what they ran or waited for a core within that time."""
        self._seconds: dict[int, float] = {}
        self._threads: dict[tuple[int, int], _Thread] = {}

    def look(self, pids: Mapping[int, int], recording: bool = False) -> Hang | None:
        """The hang of these ranks, if they do hang. Their processes are children that were not waited for yet.

        So no process id can be that of another process.
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
        self, pids: Mapping[int, int], processes: Mapping[int, _Process], passed: float
    ) -> dict[int, float]:
        """How long each stopped rank has been so; one that ran since the last look was stopped anew."""
        held: dict[int, tuple[float, tuple[float, int]]] = {}
        for rank, process in processes.items():
            if process.state == STOPPED:
                used = process.seconds, sum(thread.slices for thread in self._threads_of(pids[rank]).values())
                seconds, before = self._held.get(rank, (0.0, None))
                held[rank] = (seconds + passed if used == before else 0.0, used)
        self._held = held
        return {rank: seconds for rank, (seconds, _) in held.items()}

    def _seconds_asleep(
        self, pids: Mapping[int, int], processes: Mapping[int, _Process], passed: float, enough: float
    ) -> float:
        """How long all ranks have been asleep. They are awake once they want `enough` processor time.

        Threads are read only where their processes seem to sleep: ranks at work are looked at in passing.
        """
        seconds = {rank: process.seconds for rank, process in processes.items()}
        threads: dict[tuple[int, int], _Thread] = {}
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

    def _process(self, pid: int) -> _Process:
        try:
            state, *fields = _stat(self._proc / str(pid))
        except OSError:
            return _Process(UNSEEN)
        return _Process(state, _seconds(fields))

    def _threads_of(self, pid: int) -> dict[tuple[int, int], _Thread]:
        """The threads of a process, by its id and theirs."""
        try:
            folders = list((self._proc / str(pid) / "task").iterdir())
            return {(pid, int(folder.name)): _thread(folder) for folder in folders}
        except OSError:
            return {(pid, pid): _Thread(UNSEEN)}


def _is_of_this_namespace(proc: Path) -> bool:
    """Whether process ids mean the same there as here: a container may show the processes of its host, or none."""
    try:
        return str((proc / "self").readlink()) == str(os.getpid())
    except OSError:
        return False


def _stat(folder: Path) -> list[str]:
    """The fields of a process or thread, from its state on; its name may have any characters."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _thread(folder: Path) -> _Thread:
    state, *fields = _stat(folder)
    try:
        ran, waited, slices = map(int, (folder / "schedstat").read_text().split())
    except (OSError, ValueError):
        return _Thread(state, _seconds(fields))
    return _Thread(state, ran * NANO, waited * NANO, slices)


def _seconds(fields: Sequence[str]) -> float:
    """The processor time among the fields that follow the state, of programs and of the kernel for them."""
    return (int(fields[10]) + int(fields[11])) / TICKS


def _wanted(at: tuple[int, int], before: _Thread, now: _Thread) -> float:
    """The seconds that a thread ran and waited for a core; infinite if it runs or waits at this moment.

    A thread that polls wants nothing. The first thread of a process trains, and counts however shortly it runs. Without
    an account of the kernel's, the state R of other threads may be that of one that polls.
    """
    ran, waited, slices = now.ran - before.ran, now.waited - before.waited, now.slices - before.slices
    is_first = at[0] == at[1]
    if not is_first and now.state in (ASLEEP, RUNNABLE) and ran < POLLING * slices:
        return 0.0
    sleeps = now.state == ASLEEP or (now.state == RUNNABLE and not is_first and not now.slices)
    return ran + waited if sleeps else float("inf")
