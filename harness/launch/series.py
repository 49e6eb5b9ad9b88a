"""Runs one after the other, in the time that their job has. Those that have a result are left alone.

A run is started only if there is time for all that it may take, so that a timeout is a run's own and never the fault of
those before it. What is not started is left to another job.
"""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import RunError, UserError
from harness.launch.fork_server import ForkServer
from harness.launch.launch import Patience, Progress, launch
from harness.results.record import read_record
from harness.results.statuses import SETTLED
from harness.slurm.run_history import Past, run_minutes
from harness.slurm.site import load_site, slurm_of
from harness.slurm.srun import seconds_left
from harness.spec.spec import Spec


class Outcome(NamedTuple):
    """What became of a run: the folder of its record, or why there is none."""

    spec: Spec
    folder: Path | None
    cached: bool = False
    why: str = ""


def series(
    specs: Sequence[Spec], root: Path, runs: Path, progress: Progress, *, fresh: bool = False
) -> Iterator[Outcome]:
    """Every run's outcome as soon as it is known. One that leaves no record does not keep the others from theirs."""
    clock, past = _clock(), Past(runs)
    with ForkServer() as fork_server:
        for spec in specs:
            try:
                limit, left = _limit(spec, root, past), clock()
                if not fresh and settled(runs / spec.run_id):
                    outcome = Outcome(spec, runs / spec.run_id, cached=True)
                elif limit is not None and left is not None and left < limit:
                    why = f"{left:.0f} s are left and it may take {limit:.0f}: for another job"
                    outcome = Outcome(spec, None, why=why)
                else:
                    outcome = Outcome(
                        spec, launch(spec, root, runs, progress, Patience(limit=limit), fork_server)
                    )
            except Exception as error:
                outcome = Outcome(spec, None, why=named_reason(error))
            yield outcome


def named_reason(error: Exception) -> str:
    """An error in one paragraph; a defect of ours, which speaks to nobody, with its type and place."""
    if isinstance(error, RunError | UserError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"


def settled(folder: Path) -> bool:
    """Whether a run folder is there, is whole, and has a result."""
    return folder.is_dir() and read_record(folder).record["status"] in SETTLED


def _clock() -> Callable[[], float | None]:
    """What is left of the job, which was asked once."""
    left, asked = seconds_left(os.environ), time.monotonic()
    return lambda: None if left is None else left - (time.monotonic() - asked)


def _limit(spec: Spec, root: Path, past: Past) -> float | None:
    """Seconds that a run may take in a job; on a machine of one's own it has no limit."""
    slurm = slurm_of(root, spec.machine.name, load_site(root)) if "SLURM_JOB_ID" in os.environ else None
    return None if slurm is None else 60 * run_minutes(spec.model_dump(mode="json"), slurm, past)
