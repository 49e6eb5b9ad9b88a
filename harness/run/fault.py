"""How a rank says why it ended: one small file a rank, and the first in time is the cause.

The others only report that somebody closed the connection.
"""

import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from harness.errors import UserError

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


def describe(rank: int, error: BaseException) -> dict[str, Any]:
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


def first_fault(scratch: Path) -> dict[str, Any] | None:
    """The fault that came first in time, if any rank left one."""
    faults = [json.loads(path.read_text()) for path in sorted(scratch.glob("fault-*.json"))]
    return min(faults, key=lambda fault: float(fault["time"]), default=None)
