"""Processes that tests wait for, and those that are left when they should not be."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


def find_processes(folder: Path) -> list[int]:
    """Return the processes, except this one, that have the folder in their command lines or their output in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, output = (path / "cmdline").read_bytes(), str((path / "fd" / "1").readlink())
        except OSError:
            continue
        here = str(folder).encode() in words or output.startswith(f"{folder}/")
        if here and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], Found], seconds: float = 120) -> Found:
    """Return the first true value of the condition, which must come within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds:g} s"
        time.sleep(0.02)
    return found
