"""How long the job that this process is in will last, by Slurm's word."""

import re
import subprocess
from collections.abc import Mapping

TIME = re.compile(r"((?P<days>\d+)-)?((?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")
PATIENCE = 30
LEAVING = 60.0
"""Seconds of a job kept for writing down what its last run finished."""


def seconds_left(environ: Mapping[str, str]) -> float | None:
    """Seconds that runs may still take; nothing where no job ends, or Slurm does not say."""
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    left = as_seconds(asked.stdout.strip())
    return None if left is None else left - LEAVING


def as_seconds(text: str) -> float | None:
    """1-02:03:04 or 3:04 as seconds; UNLIMITED and the like as nothing."""
    found = TIME.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (
        int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
