"""The processes of a run's ranks: started, watched and ended together, with the cause if the run fails.

A run ends soon after its first rank fails: the other ranks have a moment to report their own faults. A run that hangs
is ended too, with the stack of every rank. After training no rank needs another, so a rank that writes the record may
finish. Ranks die with the process that started them.
"""

import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.base.files import read_tail
from harness.runtime.fault import Fault, is_consequence, read_faults, read_stacks
from harness.runtime.launch.fork_server import describe_exit
from harness.runtime.launch.hang_detector import Hang, HangDetector
from harness.runtime.launch.time_limits import LIMITS, TimeLimits

STACKS_SIGNAL = signal.SIGUSR1
LOG_BYTES_KEPT, LOG_BYTES_SEARCHED = 4000, 1 << 25
"""The number of bytes at the end of the ranks' log that a record keeps, and that are searched for the cause."""
TORCH_DISTRIBUTED = "torch/distributed"
"""A folder that is in the stack of every rank that waits for another rank."""
CURRENT_THREAD = "Current thread"
"""The heading of the stack of the thread that trains."""
NCCL_HANG = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<call>\w+)"
    r".*ran for (?P<milliseconds>\d+) milliseconds"
)
"""The message of torch's watchdog, which ends a rank when a call over NCCL exceeds the library's timeout."""
NCCL_GROUP = re.compile(r"PG GUID \w+\((?P<group>[^)]+)\)")
"""The group of the call, by the name that torch gives to an axis: mesh_x."""
FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')


class Death(NamedTuple):
    """A rank that ended with an error, not by the launcher."""

    rank: int
    code: int
    at: float
    """The wall-clock time at which the death was noticed, at most one poll after it happened."""


class RunEnd(NamedTuple):
    """How the ranks of a run ended."""

    deaths: Sequence[Death] = ()
    """The deaths, in the order in which they were noticed."""
    hang: Hang | None = None
    """The hang that ended the run."""
    recording: bool = False
    """The run hung after training."""
    expired: bool = False
    """The run exceeded its time limit."""
    out_of_memory: bool = False
    """The scheduler reported that the ranks ran out of memory."""
    lost: str = ""
    """The scheduler's message about a failure of the machine, or an empty string."""
    never_started: bool = False
    """The scheduler did not answer, and no rank started."""


class Process(Protocol):
    """A rank, or a process such as srun that represents ranks on other machines."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: signal.Signals, /) -> None: ...


class Ranks:
    """Starts the processes of a run's ranks and ends them: `with Ranks(processes) as ranks: ranks.watch(...)`.

    No process outlives the block. `ending_signal` ends the processes; srun passes a SIGTERM on to its ranks.
    """

    def __init__(
        self,
        starting: Iterable[Process],
        ending_signal: signal.Signals = signal.SIGKILL,
        limits: TimeLimits = LIMITS,
    ) -> None:
        self._starting, self._ending_signal, self._limits = starting, ending_signal, limits
        self._processes: list[Process] = []

    def __enter__(self) -> "Ranks":
        try:
            self._processes.extend(self._starting)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._send_signal(self._ending_signal)
        self._wait_for_exits(self._limits.ending)
        self._send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def watch(
        self,
        detector: HangDetector,
        limit: float | None,
        on_poll: Callable[[], None],
        is_recording: Callable[[], bool] = lambda: False,
    ) -> RunEnd:
        """Wait until all ranks have ended, one has failed, the detector finds a hang, or `limit` seconds have passed.

        While `is_recording()` is true, a rank writes the record, and may finish it whatever happens to the others.
        """
        expires = float("inf") if limit is None else time.monotonic() + limit
        deaths: dict[int, Death] = {}
        until = float("inf")
        while (recording := is_recording()) or time.monotonic() < until:
            on_poll()
            codes = [process.poll() for process in self._processes]
            for rank, code in enumerate(codes):
                if code and rank not in deaths:
                    deaths[rank] = Death(rank, code, time.time())
                    until = min(until, time.monotonic() + self._limits.grace)
            if None not in codes:
                break
            if recording or not deaths:
                if time.monotonic() > expires + (self._limits.ending if recording else 0):
                    return RunEnd(expired=True)
                trained = recording or 0 in codes
                if hang := detector.detect_hang(self._running_pids(codes), trained):
                    self._send_signal(STACKS_SIGNAL)
                    time.sleep(self._limits.stack_dump)
                    return RunEnd(hang=hang, recording=trained)
            time.sleep(self._limits.poll)
        return RunEnd(list(deaths.values()))

    def _running_pids(self, codes: Sequence[int | None]) -> dict[int, int]:
        """Return the process id of each rank that has not ended."""
        return {rank: self._processes[rank].pid for rank, code in enumerate(codes) if code is None}

    def _send_signal(self, sig: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(sig)

    def _wait_for_exits(self, timeout: float) -> None:
        """Wait until all processes have ended, or the timeout in seconds has passed."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(self._limits.poll)


# The cause of a failed run is its first fault. Later faults of other ranks are mostly consequences.


def find_cause(end: RunEnd, scratch: Path, world: int, memory_ran_out: bool) -> Fault:
    """Return the fault to record for a run of which no rank wrote the record."""
    if end.hang:
        return _describe_hang(end.hang, end.recording, scratch, world)
    if end.expired:
        message = "stopped at its time limit; the tables hold the epochs that all ranks finished"
        return _make_fault("TimeLimit", "timeout", message)
    reported = read_faults(scratch)
    deaths = [
        _describe_death(death, scratch, memory_ran_out)
        for death in end.deaths
        if death.rank not in {fault["rank"] for fault in reported}
    ]
    causes = [fault for fault in reported if not is_consequence(fault)] + deaths
    if end.out_of_memory and not causes:  # the rank that took the memory was not the first to end
        how = "the scheduler ended the ranks when the memory had run out; `trace` has the end of their log"
        causes = [_make_fault("Died", "oom", how, _read_log_end(scratch / "log"))]
    silent = "the ranks ended without a record and without a reason; `trace` has the end of their log"
    unexplained = _make_fault("Exit", "failed", silent, _read_log_end(scratch / "log"))
    return min(causes or reported, key=lambda fault: float(fault["time"]), default=unexplained)


def is_infrastructure_failure(end: RunEnd, scratch: Path) -> bool:
    """Return True if a machine was lost, or ranks only lost their connections to each other."""
    reported = read_faults(scratch)
    if end.hang or end.expired or end.out_of_memory or not all(map(is_consequence, reported)):
        return False
    reporters = {fault["rank"] for fault in reported}
    return bool(end.lost) or all(death.rank in reporters for death in end.deaths)


def _describe_death(death: Death, scratch: Path, memory_ran_out: bool) -> Fault:
    """Return the fault of a rank that ended without a report."""
    if hung := _find_nccl_hang(scratch / "log"):
        return {**hung, "rank": death.rank, "time": death.at}
    killed_for_memory = death.code == -signal.SIGKILL and memory_ran_out
    why = " when the machine's memory had run out" if killed_for_memory else ""
    message = f"{describe_exit(death.code)}{why}; `trace` has the end of the ranks' log"
    fault = _make_fault(
        "Died", "oom" if killed_for_memory else "failed", message, _read_log_end(scratch / "log")
    )
    return {**fault, "rank": death.rank, "time": death.at}


def _find_nccl_hang(log: Path) -> Fault | None:
    """Return the fault of a call over NCCL that timed out, from the ranks' log, or None."""
    text = read_tail(log, LOG_BYTES_SEARCHED)
    call = NCCL_HANG.search(text)
    if call is None:
        return None
    group = NCCL_GROUP.search(text)
    where = f"of the group {group['group']} " if group else ""
    what = (
        f"call {call['number']} {where}over NCCL, {call['call']}, did not end within "
        f"{int(call['milliseconds']) / 1e3:.0f} s: a member never made the call, made another one, or is slower"
    )
    message = f"{what}; `trace` has the end of the ranks' log"
    return _make_fault("Hang", "timeout", message, _read_log_end(log))


def _describe_hang(hang: Hang, recording: bool, scratch: Path, world: int) -> Fault:
    """Return the fault of a hang, which names the rank that does not wait for others, or that writes the record."""
    stacks = {rank: read_stacks(scratch, rank) for rank in range(world)}
    asleep = [0] if recording else [rank for rank, stack in stacks.items() if TORCH_DISTRIBUTED not in stack]
    suspects = hang.stopped or asleep
    rank = suspects[0] if len(suspects) == 1 else -1
    named = f"rank {rank}" if rank >= 0 else f"ranks {', '.join(map(str, suspects))}"
    if hang.stopped:
        what = f"{named} {'was' if rank >= 0 else 'were'} stopped by a signal, and not continued"
    elif recording:
        what = f"training was over, and {named} hangs{_describe_frame(stacks[rank])} before the record was written"
    elif suspects:
        what = f"no rank makes progress: {named} {f'hangs{_describe_frame(stacks[rank])}' if rank >= 0 else 'hang'}"
    else:
        what = "no rank makes progress: the ranks wait for each other"
    trace = "\n".join(f"Rank {rank}:\n{stack or '(no answer)'}" for rank, stack in stacks.items())
    return {**_make_fault("Hang", "timeout", f"{what}; `trace` has every rank's stack", trace), "rank": rank}


def _describe_frame(stack: str) -> str:
    """Return the innermost frame of the thread that trains, or an empty string."""
    frame = FRAME.search(stack, max(stack.find(CURRENT_THREAD), 0))
    return f" in {frame['function']} ({frame['file']}:{frame['line']})" if frame else ""


def _make_fault(kind: str, status: str, message: str, trace: str = "") -> Fault:
    """Return a fault of no particular rank, with the current time."""
    return {
        "rank": -1,
        "type": kind,
        "message": message,
        "status": status,
        "trace": trace,
        "time": time.time(),
    }


def _read_log_end(log: Path) -> str:
    return read_tail(log, LOG_BYTES_KEPT)
