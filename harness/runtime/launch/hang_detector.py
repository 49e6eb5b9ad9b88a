"""Distinguishes slow ranks from ranks that wait for each other forever, or that a signal has stopped.

Ranks hang if during the whole patience none of their threads runs, waits for a core or waits for a disk (state D). Gloo
has a thread that polls a hundred times a second. On a busy machine this thread often waits for a core, even if its
rank hangs. A rank is stopped if a signal holds it for the whole patience, whatever the others do. After
training no rank waits for another, but a disk may be slow, so the remaining ranks have a separate patience.

The detector misses a rank whose first thread waits actively (spins, or polls often). On a GPU it detects only stopped
ranks. A rank that /proc does not show counts as running.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BUSY_SHARE = 0.01
"""The minimum share of one core that working ranks use or wait for, summed over all ranks."""
CHECKS = 20
"""The number of checks within the patience."""
LONGEST_INTERVALS = 2
"""The maximum number of intervals that a late check counts for: the launcher was stopped, or got no core."""
POLL_SLICE = 1e-4
"""The maximum mean length of a time slice, in seconds, of a thread that only polls."""
RUNNABLE, ASLEEP, STOPPED, UNSEEN = "R", "S", "T", "?"
"""The states of a process or thread: the letters of proc(5), and one for a process that /proc does not show."""
TICKS = os.sysconf("SC_CLK_TCK")
NANO = 1e-9
PROC = Path("/proc")


class Hang(NamedTuple):
    """Ranks that hang."""

    stopped: tuple[int, ...] = ()
    """The ranks that a signal has stopped; empty if all ranks sleep."""


class _ProcessState(NamedTuple):
    """The state of a process's first thread, and the CPU time of all threads that the process has had."""

    state: str
    seconds: float = 0.0


class _ThreadState(NamedTuple):
    """The state of a thread, its seconds on a core and in wait for a core, and the number of its time slices."""

    state: str
    ran: float = 0.0
    waited: float = 0.0
    slices: int = 0
    """0 if the kernel does not count them."""


class HangDetector:
    """Detects hangs of ranks by /proc. Without patience, nothing is detected.

    `detect_hang` may be called often, because it reads /proc only a few times within the patience.
    """

    def __init__(
        self,
        patience: float | None,
        recording: float = float("inf"),
        *,
        by_sleep: bool = True,
        proc: Path = PROC,
    ) -> None:
        """`recording` is the patience with sleeping ranks after training. `by_sleep` is False if sleep is normal."""
        self._patience = patience if _shows_own_namespace(proc) else None
        self._recording, self._by_sleep, self._proc = recording, by_sleep, proc
        self._checked = self._next = 0.0
        self._held: dict[int, tuple[float, tuple[float, int]]] = {}
        """The seconds for which each stopped rank has been stopped, and the CPU time and slices that it had used."""
        self._asleep = self._wanted = 0.0
        """The seconds for which all ranks have slept, and how many of these their threads ran or waited for a core."""
        self._seconds: dict[int, float] = {}
        self._threads: dict[tuple[int, int], _ThreadState] = {}

    def detect_hang(self, pids: Mapping[int, int], recording: bool = False) -> Hang | None:
        """Return the hang of these ranks, or None.

        Their processes are children that have not been reaped, so their process ids are not reused.
        """
        now = time.monotonic()
        if self._patience is None or now < self._next:
            return None
        step = self._patience / CHECKS
        passed = min(now - self._checked, LONGEST_INTERVALS * step)
        self._checked, self._next = now, now + step
        processes = {rank: self._read_process(pid) for rank, pid in pids.items()}
        held = self._measure_stops(pids, processes, passed)
        if stopped := tuple(rank for rank, seconds in held.items() if seconds >= self._patience):
            return Hang(stopped)
        patience = self._recording if recording else self._patience
        if self._by_sleep and self._measure_sleep(pids, processes, passed, BUSY_SHARE * patience) >= patience:
            return Hang()
        return None

    def _measure_stops(
        self, pids: Mapping[int, int], processes: Mapping[int, _ProcessState], passed: float
    ) -> dict[int, float]:
        """Return how long each stopped rank has been stopped. The time starts again if the rank ran in between."""
        held: dict[int, tuple[float, tuple[float, int]]] = {}
        for rank, process in processes.items():
            if process.state == STOPPED:
                slices = sum(thread.slices for thread in self._read_threads(pids[rank]).values())
                used = process.seconds, slices
                seconds, used_before = self._held.get(rank, (0.0, None))
                held[rank] = (seconds + passed if used == used_before else 0.0, used)
        self._held = held
        return {rank: seconds for rank, (seconds, _) in held.items()}

    def _measure_sleep(
        self, pids: Mapping[int, int], processes: Mapping[int, _ProcessState], passed: float, enough: float
    ) -> float:
        """Return how long all ranks have slept. Ranks that use or wait for `enough` CPU time are awake.

        Threads are read only if all processes seem to sleep, so checks of working ranks are cheap.
        """
        seconds = {rank: process.seconds for rank, process in processes.items()}
        threads: dict[tuple[int, int], _ThreadState] = {}
        wanted = float("inf")
        if all(
            process.state == ASLEEP and process.seconds - self._seconds.get(rank, 0.0) < enough
            for rank, process in processes.items()
        ):
            for pid in pids.values():
                threads |= self._read_threads(pid)
            if (before := self._threads).keys() == threads.keys():
                wanted = sum(_measure_wanted_seconds(at, before[at], now) for at, now in threads.items())
        self._seconds, self._threads = seconds, threads
        self._wanted += wanted
        if self._wanted < enough:
            self._asleep += passed
        else:
            self._asleep = self._wanted = 0.0
        return self._asleep

    def _read_process(self, pid: int) -> _ProcessState:
        """Return the state of a process."""
        try:
            state, *fields = _read_stat(self._proc / str(pid))
        except OSError:
            return _ProcessState(UNSEEN)
        return _ProcessState(state, _parse_cpu_seconds(fields))

    def _read_threads(self, pid: int) -> dict[tuple[int, int], _ThreadState]:
        """Return the threads of a process, by process id and thread id."""
        try:
            folders = list((self._proc / str(pid) / "task").iterdir())
            return {(pid, int(folder.name)): _read_thread(folder) for folder in folders}
        except OSError:
            return {(pid, pid): _ThreadState(UNSEEN)}


def _shows_own_namespace(proc: Path) -> bool:
    """Return True if /proc shows this process under its own id. A container's /proc may be the host's, or empty."""
    try:
        return str((proc / "self").readlink()) == str(os.getpid())
    except OSError:
        return False


def _read_stat(folder: Path) -> list[str]:
    """Return the fields of a process or thread from the state on. The name before it may have any characters."""
    return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _read_thread(folder: Path) -> _ThreadState:
    """Return the state of a thread."""
    state, *fields = _read_stat(folder)
    try:
        ran, waited, slices = map(int, (folder / "schedstat").read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return _ThreadState(state, _parse_cpu_seconds(fields))
    return _ThreadState(state, ran * NANO, waited * NANO, slices)


def _parse_cpu_seconds(fields: Sequence[str]) -> float:
    """Return the sum of user time and system time, from the fields that follow the state."""
    return (int(fields[10]) + int(fields[11])) / TICKS


def _measure_wanted_seconds(at: tuple[int, int], before: _ThreadState, now: _ThreadState) -> float:
    """Return the seconds that a thread ran or waited for a core, or infinity if it does so now.

    A thread that polls counts 0. The first thread of a process trains, and always counts. If the kernel does not count
    time slices, another thread in state R may be polling.
    """
    ran, waited, slices = now.ran - before.ran, now.waited - before.waited, now.slices - before.slices
    is_first = at[0] == at[1]
    if not is_first and now.state in (ASLEEP, RUNNABLE) and ran < POLL_SLICE * slices:
        return 0.0
    sleeps = now.state == ASLEEP or (now.state == RUNNABLE and not is_first and not now.slices)
    return ran + waited if sleeps else float("inf")
