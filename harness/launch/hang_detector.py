"""Whether processes do anything: they are still if together they used no processor time worth the name for a while.

A deadlock looks like this, and a rank that was stopped or sleeps while the others wait for it. Who waits for a disk is
not still. A rank that spins is not seen; nor is one that waits for a GPU, so those are not watched.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

BUSY_SHARE = 0.01
"""Of one core, used by all of them together."""
LOOKS = 20
"""How often one looks within the time of patience."""
TICKS = os.sysconf("SC_CLK_TCK")


class HangDetector:
    """Looks at /proc now and then; without patience, or without /proc, nobody is ever still."""

    def __init__(self, pids: Sequence[int], patience: float | None) -> None:
        self._pids = pids
        self._patience = patience if Path("/proc/self/stat").exists() else None
        self._next = 0.0
        self._looks: deque[tuple[float, float]] = deque(maxlen=LOOKS + 1)

    def now(self) -> bool:
        """Whether they have been still for the whole time of patience."""
        now = time.monotonic()
        if self._patience is None or now < self._next:
            return False
        self._next = now + self._patience / LOOKS
        states = [_look(pid) for pid in self._pids]
        if any(state == "D" for state, _ in states):
            self._looks.clear()
        self._looks.append((now, sum(seconds for _, seconds in states)))
        since, before = self._looks[0]
        used = self._looks[-1][1] - before
        return len(self._looks) > LOOKS and used < BUSY_SHARE * (now - since)

    def is_stopped(self, pid: int) -> bool:
        """Whether a signal stopped it."""
        return _look(pid)[0] in ("T", "t")


def _look(pid: int) -> tuple[str, float]:
    """The state of a process and the seconds of processor time it has used; nothing of one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / TICKS
