"""The memory of this machine."""

import re
from contextlib import suppress
from pathlib import Path

ALWAYS_FITS = 1 << 20
"""Up to this many bytes are used without a check of the free memory, which would take as long as reading them."""


def find_available_bytes() -> int:
    """Return the memory that is available to this process: of the machine or of its control group, if that is less."""
    facts = Path("/proc/meminfo").read_text(encoding="utf-8")
    found = re.search(r"^MemAvailable:\s*(\d+)", facts, re.MULTILINE)
    assert found, "/proc/meminfo has no MemAvailable"
    free = int(found[1]) << 10
    with suppress(OSError, ValueError):  # there is no limit, or it is "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="utf-8"))
        used = int((group / "memory.current").read_text(encoding="utf-8"))
        free = min(free, max(limit - used, 0))
    return free
