"""One thing that was looked at."""

import subprocess
from dataclasses import dataclass

PATIENCE = 20


@dataclass(frozen=True)
class Examined:
    """What is only useful is never missing."""

    what: str
    found: str
    missing: bool = False


def answer(*command: str) -> str | None:
    """What a command prints; nothing if there is none such, or it fails, or it does not come to an end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
