"""How a rank says why it ended: one small file a rank. Most of the others only report that somebody is gone."""

import faulthandler
import json
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from harness.errors import UserError

Fault = dict[str, Any]
"""rank, type, message, status, trace and time."""

LOST_SIGNS = ("closed by peer", "reset by peer", "broken pipe", "gloo/transport")
MEMORY_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "std::bad_alloc")


def status_of(error: BaseException) -> str:
    """The status a run ends with for this error: refused, oom, timeout or failed."""
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, UserError):
        return "refused"
    if isinstance(error, MemoryError) or any(sign in text for sign in MEMORY_SIGNS):
        return "oom"
    if isinstance(error, TimeoutError) or "timed out" in text:
        return "timeout"
    return "failed"


def describe(rank: int, error: BaseException) -> Fault:
    """The error of a record."""
    return {
        "rank": rank,
        "type": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "status": status_of(error),
        "trace": "".join(traceback.format_exception(error)),
        "time": time.time(),
    }


def write_fault(scratch: Path, rank: int, error: BaseException) -> None:
    """Leaves the reason where the launcher looks; whole or not at all."""
    path = scratch / f"fault-{rank}.json"
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(describe(rank, error)))
    partial.replace(path)


def faults(scratch: Path) -> list[Fault]:
    """What every rank that failed has said."""
    return [json.loads(path.read_text()) for path in sorted(scratch.glob("fault-*.json"))]


def is_consequence(fault: Fault) -> bool:
    """Whether it only tells that another rank is gone, or does not answer."""
    text = fault["message"].lower()
    return any(sign in text for sign in LOST_SIGNS)


def answer_for_stacks(scratch: Path, rank: int) -> None:
    """From now on, the signal writes this process's stacks where the launcher looks."""
    file = _stacks(scratch, rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def stacks_of(scratch: Path, rank: int) -> str:
    """What a rank answered when it was asked for its stacks."""
    path = _stacks(scratch, rank)
    return path.read_text(errors="replace") if path.exists() else ""


def _stacks(scratch: Path, rank: int) -> Path:
    return scratch / f"stacks-{rank}"
