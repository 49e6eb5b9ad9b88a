"""The fault of a rank that ended early: one small file a rank. Most files only report that another rank is gone."""

import faulthandler
import json
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.files import text_at_end

Fault = dict[str, Any]
"""The keys are rank, type, message, status, trace and time."""

LONGEST = 100_000
"""The most characters of a message, and of a trace, that a fault keeps."""
LOST_SIGNS = ("closed by peer", "reset by peer", "broken pipe", "gloo/transport")
TIMEOUT_SIGNS = ("timed out", "operation timeout")
MEMORY_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "std::bad_alloc")


def status_of(error: BaseException) -> str:
    """The status of a run that this error ends: refused, oom, timeout or failed."""
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, UserError):
        return "refused"
    if isinstance(error, MemoryError) or any(sign in text for sign in MEMORY_SIGNS):
        return "oom"
    if isinstance(error, TimeoutError) or any(sign in text for sign in TIMEOUT_SIGNS):
        return "timeout"
    return "failed"


def describe(rank: int, error: BaseException) -> Fault:
    """The fault of an error, as a record has it."""
    return {
        "rank": rank,
        "type": type(error).__name__,
        "message": _bounded(str(error) or type(error).__name__),
        "status": status_of(error),
        "trace": _bounded("".join(traceback.format_exception(error))),
        "time": time.time(),
    }


def _bounded(text: str) -> str:
    """The text; of one that is longer than `LONGEST`, the two ends."""
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    return f"{text[: LONGEST // 2]}\n[{left_out:,} characters left out]\n{text[-LONGEST // 2 :]}"


def write_fault(scratch: Path, rank: int, error: BaseException) -> None:
    """Leaves the fault for the launcher, in a file that is whole or absent."""
    path = _file(scratch, rank)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(describe(rank, error)), encoding="utf-8")
    partial.replace(path)


def fault_of(scratch: Path, rank: int) -> Fault | None:
    """The fault that a rank left, if it did."""
    path = _file(scratch, rank)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def faults(scratch: Path) -> list[Fault]:
    """The faults of all ranks that left one."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(scratch.glob("fault-*.json"))]


def is_consequence(fault: Fault) -> bool:
    """True if a fault only says that another rank is gone or does not answer."""
    text = fault["message"].lower()
    return any(sign in text for sign in LOST_SIGNS)


def answer_for_stacks(scratch: Path, rank: int) -> None:
    """Makes this process write its stacks into a file for the launcher at every SIGUSR1."""
    file = _stacks(scratch, rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def stacks_of(scratch: Path, rank: int) -> str:
    """The stacks that a rank wrote, or an empty text."""
    path = _stacks(scratch, rank)
    return text_at_end(path, LONGEST)


def _file(scratch: Path, rank: int) -> Path:
    return scratch / f"fault-{rank}.json"


def _stacks(scratch: Path, rank: int) -> Path:
    return scratch / f"stacks-{rank}"
