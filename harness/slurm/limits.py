"""How long a run may take, and how long a job for several of them."""

from collections.abc import Sequence
from typing import Any

from harness.slurm.past import Past
from harness.spec.machine import Slurm

MARGIN = 2.0
"""Of what a run may take over what the last one like it took."""
START = 1.0
"""Minutes for what does not depend on the run: starting Python everywhere, a busy file system."""
AROUND = 5.0
"""Minutes of a job before its first run and after its last."""


def run_minutes(spec: dict[str, Any], slurm: Slurm, past: Past) -> float:
    """After so long a run counts as one that takes too long."""
    last = past.seconds(spec)
    return slurm.minutes if last is None else MARGIN * last / 60 + START


def job_minutes(specs: Sequence[dict[str, Any]], slurm: Slurm, past: Past) -> float:
    """For runs one after the other, and for any of them to take all that it may.

    No more than the machine's jobs may take, unless one run may take more: what does not fit is left for another job.
    """
    each = [run_minutes(spec, slurm, past) for spec in specs]
    most = max(each, default=START)
    known = sum(minutes - START for minutes in each) + START
    return min(max(known, most), max(slurm.job_minutes, most)) + AROUND
