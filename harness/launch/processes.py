"""The ranks of a run as processes: started, watched and ended together, with the cause if the run does not end well.

A run ends soon after its first rank fails: the others have a moment to leave their own reasons. A run that hangs is
ended too, with every rank's stack. Once training is over no rank needs another, so a rank that writes the record may
finish. Ranks die with the process that started them.
"""

import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.files import read_tail
from harness.launch.fork_server import how_it_ended
from harness.launch.hang_detector import Hang, HangDetector
from harness.run.fault import Fault, is_consequence, read_faults, read_stacks

POLL_SECONDS = 0.05
GRACE = 3.0
"""The seconds that ranks have to leave their own reasons once another rank has ended."""
NOTICE = 1.0
"""The seconds in which ranks write down their stacks."""
LEAVING = 10.0
"""The seconds that processes have to end after a signal, and a writer to finish a record after the time limit."""
STACKS = signal.SIGUSR1
LOG_KEPT, LOG_SEARCHED = 4000, 1 << 25
"""The bytes at the end of the ranks' log that a record keeps, and in which the cause is looked for."""
WAITING = "torch/distributed"
"""A folder that is in the stack of a rank that waits for another rank."""
CURRENT = "Current thread"
"""The words before the stack of the thread that trains."""
NCCL_HANG = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<call>\w+)"
    r".*ran for (?P<milliseconds>\d+) milliseconds"
)
"""The words of torch's watchdog, which ends a rank whose call over NCCL takes longer than the library's patience."""
NCCL_GROUP = re.compile(r"PG GUID \w+\((?P<group>[^)]+)\)")
"""The group of the call, by the name that torch gives to an axis: mesh_x."""
FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')


class Death(NamedTuple):
    """A rank that ended by itself, and not well."""

    rank: int
    code: int
    at: float
    """The time of day at which the death was seen, at most one poll after it happened."""


class Watched(NamedTuple):
    """The end of a run."""

    deaths: Sequence[Death] = ()
    """The deaths in the order of their discovery."""
    hang: Hang | None = None
    """The hang that ended the run."""
    recording: bool = False
    """Training was over when the run hung."""
    expired: bool = False
    """The run reached its time limit."""
    out_of_memory: bool = False
    """The scheduler says that the ranks ran out of memory."""
    lost: str = ""
    """The scheduler's message about a loss that is not the fault of the run."""
    never_started: bool = False
    """The scheduler was away, and no rank began."""


class Process(Protocol):
    """A rank, or a process that stands for ranks elsewhere."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: signal.Signals, /) -> None: ...


class Ranks:
    """`with Ranks(processes) as ranks: ranks.watch(...)`: each is started in its turn, and none outlives the block.

    A process that stands for ranks elsewhere is ended by a signal that it can pass on to them.
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
        self._send(self._ending)
        self._wait(LEAVING)
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def watch(
        self,
        detector: HangDetector,
        limit: float | None,
        meanwhile: Callable[[], None],
        recording: Callable[[], bool] = lambda: False,
    ) -> Watched:
        """Waits until every rank has ended well, one has failed, the detector sees a hang, or `limit` seconds are over.

        A rank that is `recording` has no such limit, whatever becomes of the others.
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
                    self._send(STACKS)
                    time.sleep(NOTICE)
                    return Watched(hang=hang, recording=over or 0 in codes)
            time.sleep(POLL_SECONDS)
        return Watched(list(deaths.values()))

    def _living(self, codes: Sequence[int | None]) -> dict[int, int]:
        """The process ids of the ranks that have not ended."""
        return {rank: self._processes[rank].pid for rank, code in enumerate(codes) if code is None}

    def _send(self, what: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(what)

    def _wait(self, seconds: float) -> None:
        """Returns when all processes have ended, or after so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(POLL_SECONDS)


# The cause of a run that did not end well: its first fault, not what other ranks say of the consequences.


def find_cause(watched: Watched, scratch: Path, world: int, memory_ran_out: bool) -> Fault:
    """The fault that goes on record for a run that left no record."""
    if watched.hang:
        return _hang(watched.hang, watched.recording, scratch, world)
    if watched.expired:
        return _unnamed(
            "TimeLimit",
            "timeout",
            "stopped at its time limit; the tables hold the epochs that all ranks finished",
        )
    reported = read_faults(scratch)
    deaths = [
        _death(death, scratch, memory_ran_out)
        for death in watched.deaths
        if death.rank not in {fault["rank"] for fault in reported}
    ]
    causes = [fault for fault in reported if not is_consequence(fault)] + deaths
    if watched.out_of_memory and not causes:  # others were seen to end before the rank that took the memory
        how = "the scheduler ended the ranks when the memory had run out; `trace` has the end of their log"
        causes = [_unnamed("Died", "oom", how, _end_of(scratch / "log"))]
    silent = "the ranks ended without a record and without a reason; `trace` has the end of their log"
    nothing = _unnamed("Exit", "failed", silent, _end_of(scratch / "log"))
    return min(causes or reported, key=lambda fault: float(fault["time"]), default=nothing)


def nobody_is_to_blame(watched: Watched, scratch: Path) -> bool:
    """True if a machine was lost, or ranks of several machines lost each other, and no other fault is known."""
    reported = read_faults(scratch)
    if watched.hang or watched.expired or watched.out_of_memory or not all(map(is_consequence, reported)):
        return False
    speakers = {fault["rank"] for fault in reported}
    return bool(watched.lost) or all(death.rank in speakers for death in watched.deaths)


def _death(death: Death, scratch: Path, memory_ran_out: bool) -> Fault:
    """The fault of a rank that ended without a report."""
    if hung := _nccl_hang(scratch / "log"):
        return {**hung, "rank": death.rank, "time": death.at}
    by_kernel = death.code == -signal.SIGKILL and memory_ran_out
    why = " when the machine's memory had run out" if by_kernel else ""
    return {
        "rank": death.rank,
        "type": "Died",
        "message": f"{how_it_ended(death.code)}{why}; `trace` has the end of the ranks' log",
        "status": "oom" if by_kernel else "failed",
        "trace": _end_of(scratch / "log"),
        "time": death.at,
    }


def _nccl_hang(log: Path) -> Fault | None:
    """The call over NCCL that did not end, by the log of the ranks; None if the log has no such call."""
    text = read_tail(log, LOG_SEARCHED)
    call = NCCL_HANG.search(text)
    if call is None:
        return None
    group = NCCL_GROUP.search(text)
    where = f"of the group {group['group']} " if group else ""
    what = (
        f"call {call['number']} {where}over NCCL, {call['call']}, did not end within "
        f"{int(call['milliseconds']) / 1e3:.0f} s: a member never made the call, made another one, or is slower"
    )
    return _unnamed("Hang", "timeout", f"{what}; `trace` has the end of the ranks' log", _end_of(log))


def _hang(hang: Hang, recording: bool, scratch: Path, world: int) -> Fault:
    """All ranks wait: the cause is the rank that does not wait for another, or that writes the record."""
    stacks = {rank: read_stacks(scratch, rank) for rank in range(world)}
    asleep = [0] if recording else [rank for rank, stack in stacks.items() if WAITING not in stack]
    suspects = hang.stopped or asleep
    rank = suspects[0] if len(suspects) == 1 else -1
    named = f"rank {rank}" if rank >= 0 else f"ranks {', '.join(map(str, suspects))}"
    if hang.stopped:
        what = f"{named} {'was' if rank >= 0 else 'were'} stopped by a signal, and not continued"
    elif recording:
        what = f"training was over, and {named} hangs{_where(stacks[rank])} before the record was written"
    elif suspects:
        what = f"no rank makes progress: {named} {f'hangs{_where(stacks[rank])}' if rank >= 0 else 'hang'}"
    else:
        what = "no rank makes progress: the ranks wait for each other"
    trace = "\n".join(f"Rank {rank}:\n{stack or '(no answer)'}" for rank, stack in stacks.items())
    return {**_unnamed("Hang", "timeout", f"{what}; `trace` has every rank's stack", trace), "rank": rank}


def _where(stack: str) -> str:
    frame = FRAME.search(stack, max(stack.find(CURRENT), 0))
    return f" in {frame['function']} ({frame['file']}:{frame['line']})" if frame else ""


def _unnamed(kind: str, status: str, message: str, trace: str = "") -> Fault:
    """A fault of no rank in particular, seen now."""
    return {
        "rank": -1,
        "type": kind,
        "message": message,
        "status": status,
        "trace": trace,
        "time": time.time(),
    }


def _end_of(log: Path) -> str:
    return read_tail(log, LOG_KEPT)
