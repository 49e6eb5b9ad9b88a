"""Why a run did not end well: its first cause, not what the other ranks say of the consequences."""

import re
import signal
import time
from pathlib import Path

from harness.launch.fork_server import how_it_ended
from harness.launch.hang_detector import Hang
from harness.launch.processes import Watched
from harness.run.fault import Fault, faults, is_consequence, stacks_of

LOG_KEPT = 4000
WAITING = "torch/distributed"
"""In the stack of a rank that waits for another."""
CURRENT = "Current thread"
"""In a rank's stacks, what stands before that of the thread that trains."""
FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')


def find_cause(watched: Watched, scratch: Path, world: int, memory_ran_out: bool) -> Fault:
    """The fault that goes on record for a run that left none."""
    if watched.hang:
        return _hang(watched.hang, watched.recording, scratch, world)
    if watched.expired:
        return _expiry()
    told = faults(scratch)
    deaths = [
        _death(death.rank, death.code, death.at, scratch, memory_ran_out)
        for death in watched.deaths
        if death.rank not in {fault["rank"] for fault in told}
    ]
    causes = [fault for fault in told if not is_consequence(fault)] + deaths
    found: Fault = min(causes or told, key=lambda fault: float(fault["time"]), default=_nothing(scratch))
    return found


def nobody_is_to_blame(watched: Watched, scratch: Path) -> bool:
    """Whether all that is known is that a machine was lost, or that ranks of several machines lost each other."""
    told = faults(scratch)
    if watched.hang or watched.expired or not all(map(is_consequence, told)):
        return False
    spoke = {fault["rank"] for fault in told}
    return bool(watched.lost) or all(death.rank in spoke for death in watched.deaths)


def _death(rank: int, code: int, at: float, scratch: Path, memory_ran_out: bool) -> Fault:
    """A rank that could not say anything any more."""
    by_kernel = code == -signal.SIGKILL and memory_ran_out
    why = ", the machine's memory had run out" if by_kernel else ""
    return {
        "rank": rank,
        "type": "Died",
        "message": f"{how_it_ended(code)}{why}; `trace` has the end of the ranks' log",
        "status": "oom" if by_kernel else "failed",
        "trace": _end_of(scratch / "log"),
        "time": at,
    }


def _hang(hang: Hang, recording: bool, scratch: Path, world: int) -> Fault:
    """All ranks wait: the cause is the rank that does not wait for another, or that writes the record."""
    stacks = {rank: stacks_of(scratch, rank) for rank in range(world)}
    asleep = [0] if recording else [rank for rank, stack in stacks.items() if WAITING not in stack]
    suspects = hang.stopped or asleep
    rank = suspects[0] if len(suspects) == 1 else -1
    named = f"rank {rank}" if rank >= 0 else f"ranks {', '.join(map(str, suspects))}"
    if hang.stopped:
        told = f"{named} {'was' if rank >= 0 else 'were'} stopped by a signal, and not continued"
    elif recording:
        told = f"training was over, and {named} hangs{_where(stacks[rank])} before the record was written"
    elif suspects:
        told = f"no rank did anything any more: {named} {f'hangs{_where(stacks[rank])}' if rank >= 0 else 'hang'}"
    else:
        told = "no rank did anything any more: the ranks wait for each other"
    return {
        "rank": rank,
        "type": "Hang",
        "message": f"{told}; `trace` has every rank's stack",
        "status": "timeout",
        "trace": "\n".join(f"Rank {rank}:\n{stack or '(no answer)'}" for rank, stack in stacks.items()),
        "time": time.time(),
    }


def _where(stack: str) -> str:
    frame = FRAME.search(stack, max(stack.find(CURRENT), 0))
    return f" in {frame['function']} ({frame['file']}:{frame['line']})" if frame else ""


def _expiry() -> Fault:
    return {
        "rank": -1,
        "type": "TimeLimit",
        "message": "stopped when its time was up; its tables hold the epochs that all ranks had finished",
        "status": "timeout",
        "trace": "",
        "time": time.time(),
    }


def _nothing(scratch: Path) -> Fault:
    return {
        "rank": -1,
        "type": "Exit",
        "message": "the ranks ended without a record and without a reason; `trace` has the end of their log",
        "status": "failed",
        "trace": _end_of(scratch / "log"),
        "time": time.time(),
    }


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_KEPT:] if log.exists() else ""
