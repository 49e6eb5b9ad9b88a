"""The fault of a rank that ended early, in one small file per rank.

Most faults only report that another rank is gone.
"""

import faulthandler
import json
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.files import read_tail

Fault = dict[str, Any]
"""The keys are rank, type, message, status, trace and time."""

MAX_CHARACTERS = 100_000
"""The maximum number of characters of a message, and of a traceback, in a fault."""
LOST_SIGNS = ("closed by peer", "reset by peer", "broken pipe", "gloo/transport")
TIMEOUT_SIGNS = ("timed out", "operation timeout")
MEMORY_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "std::bad_alloc")


def status_of_error(error: BaseException) -> str:
    """Return the status of a run that ends with this error: refused, oom, timeout or failed."""
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, UserError):
        return "refused"
    if isinstance(error, MemoryError) or any(sign in text for sign in MEMORY_SIGNS):
        return "oom"
    if isinstance(error, TimeoutError) or any(sign in text for sign in TIMEOUT_SIGNS):
        return "timeout"
    return "failed"


def describe_error(rank: int, error: BaseException) -> Fault:
    """Return an error as the fault of a rank."""
    return {
        "rank": rank,
        "type": type(error).__name__,
        "message": _cut_middle(str(error) or type(error).__name__),
        "status": status_of_error(error),
        "trace": _cut_middle("".join(traceback.format_exception(error))),
        "time": time.time(),
    }


def _cut_middle(text: str) -> str:
    """Return the text, or the two ends of a text longer than `MAX_CHARACTERS`."""
    left_out = len(text) - MAX_CHARACTERS
    if left_out <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[{left_out:,} characters left out]\n{text[-half:]}"


def write_fault(scratch: Path, rank: int, error: BaseException) -> None:
    """Write the fault to a file for the launcher, atomically."""
    path = _fault_path(scratch, rank)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(describe_error(rank, error)), encoding="utf-8")
    partial.replace(path)


def read_fault(scratch: Path, rank: int) -> Fault | None:
    """Return the fault that a rank wrote, or None."""
    path = _fault_path(scratch, rank)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_faults(scratch: Path) -> list[Fault]:
    """Return the faults of all ranks that wrote one."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(scratch.glob("fault-*.json"))]


def is_consequence(fault: Fault) -> bool:
    """Return True if a fault only says that another rank is gone or does not answer."""
    text = fault["message"].lower()
    return any(sign in text for sign in LOST_SIGNS)


def dump_stacks_on_signal(scratch: Path, rank: int) -> None:
    """Make this process write its stacks to a file for the launcher at every SIGUSR1."""
    file = _stacks_path(scratch, rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def read_stacks(scratch: Path, rank: int) -> str:
    """Return the stacks that a rank wrote, or an empty string."""
    return read_tail(_stacks_path(scratch, rank), MAX_CHARACTERS)


def _fault_path(scratch: Path, rank: int) -> Path:
    return scratch / f"fault-{rank}.json"


def _stacks_path(scratch: Path, rank: int) -> Path:
    return scratch / f"stacks-{rank}"
