"""An item of the survey, and commands and files that are asked for it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 20
"""Seconds that a command may take to answer."""


@dataclass(frozen=True)
class Examined:
    """An item of the survey. `missing` is for items that the harness needs; a merely useful one is never missing."""

    what: str
    found: str
    missing: bool = False


def answer(*command: str) -> str | None:
    """The output of a command; None if the command is absent, fails or does not end in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def text_of(path: Path) -> str:
    """The text of a small file; nothing if the file cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
