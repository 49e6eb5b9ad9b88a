"""Launches a series of runs one after the other, within the time that their job has left.

Runs that have a result are skipped. A run is started only if the job has as much time left as was requested for the
run. The run may then take all of the job's remaining time, up to its own limit, so a timeout is never caused by earlier
runs. Runs that are not started are left to another job.
"""

import os
import platform
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.base.errors import RunError, UserError
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.launch import Progress, build_small_store, ensure_result, has_result, launch
from harness.runtime.launch.time_limits import LIMITS, TimeLimits
from harness.runtime.provenance import BlockPlace
from harness.runtime.slurm.jobs import RunHistory, RunMinutes, estimate_run_minutes
from harness.runtime.slurm.resources import load_site, load_slurm
from harness.runtime.slurm.srun import find_scheduler, read_seconds_left
from harness.spec.dataset import DatasetChoice
from harness.spec.spec import Spec

NO_PREDICTIONS: Mapping[str, float | None] = {}


class Outcome(NamedTuple):
    """The folder of a run's record, or the reason why the run has no record."""

    spec: Spec
    folder: Path | None
    cached: bool = False
    why: str = ""


def launch_series(
    specs: Sequence[Spec],
    root: Path,
    runs: Path,
    progress: Progress,
    *,
    fresh: bool = False,
    build: bool = False,
    predicted: Mapping[str, float | None] = NO_PREDICTIONS,
) -> Iterator[Outcome]:
    """Yield the outcome of every run as soon as it is known. A run without a record does not stop the others.

    The ranks of the runs of one launch are forked from one server, and each launch starts another one: launches that
    share a process would not differ as much as fresh processes do.

    With `build`, missing stores of small graphs are built. `predicted` has the most seconds that a run is predicted to
    take, by run id.
    """
    clock, history = _make_job_clock(), RunHistory(runs)
    launched, built = None, set[DatasetChoice]()
    with ForkServer() as fork_server:
        for spec, turn in zip(specs, assign_block_places(specs), strict=True):
            if launched not in (None, number_launch(spec)):
                fork_server.close()
            launched = number_launch(spec)
            with ExitStack() as lock:  # held until the caller has read the record
                try:
                    minutes = _estimate_minutes(spec, root, history, predicted.get(spec.run_id))
                    left = clock()
                    asked = 60 * minutes.asked if minutes else 0.0
                    has_time = left is None or left >= asked
                    if has_time or (not fresh and has_result(runs / spec.run_id)):
                        limits = TimeLimits(run=60 * minutes.limit, job=left) if minutes else LIMITS
                        start = partial(launch, spec, root, runs, progress, limits, fork_server, turn)
                        is_needed = fresh or not has_result(runs / spec.run_id)
                        if build and is_needed and spec.dataset not in built:
                            build_small_store(spec, root, fork_server)
                            built.add(spec.dataset)
                        cached = lock.enter_context(ensure_result(spec, runs, progress, start, fresh=fresh))
                        outcome = Outcome(spec, runs / spec.run_id, cached)
                    else:
                        times = f"the job has {left:.0f} s left and {asked:.0f} s are asked for the run"
                        outcome = Outcome(spec, None, why=f"{times}: left for another job")
                except Exception as error:
                    outcome = Outcome(spec, None, why=describe_failure(error))
                yield outcome


def number_launch(spec: Spec) -> tuple[int, int]:
    """Return the numbers that tell launches apart: with another seed, a run of the same launch is another launch."""
    return spec.launch, spec.seed


def list_launches(specs: Sequence[Spec], launches: int) -> list[Spec]:
    """Return the launches 0, 1 and so on of each spec, launch by launch. Each spec comes first in turn."""
    firsts = list({(spec := each.model_copy(update={"launch": 0})).run_id: spec for each in specs}.values())
    ordered = []
    for number in range(launches):
        turn = number % max(1, len(firsts))
        ordered += [spec.model_copy(update={"launch": number}) for spec in [*firsts[turn:], *firsts[:turn]]]
    return ordered


def assign_block_places(specs: Sequence[Spec]) -> list[BlockPlace]:
    """Return the place of each run in its block: the runs of one launch and seed that this process starts."""
    job = os.environ.get("SLURM_JOB_ID")
    allocation = f"job-{job}" if job else f"{platform.node()}-{os.getpid()}-{time.time():.0f}"
    sizes = Counter[str]()
    places = []
    for spec in specs:
        block = f"{allocation}-launch-{spec.launch}" + (f"-seed-{spec.seed}" if spec.seed else "")
        places.append(BlockPlace(block, sizes[block]))
        sizes[block] += 1
    return places


def describe_failure(error: Exception) -> str:
    """Describe an error in one paragraph. A bug in the harness is described by its type and place."""
    if isinstance(error, RunError | UserError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"


def _make_job_clock() -> Callable[[], float | None]:
    """Return a function that returns the seconds that the job has left. The scheduler is asked once."""
    left, asked = read_seconds_left(os.environ), time.monotonic()
    return lambda: None if left is None else left - (time.monotonic() - asked)


def _estimate_minutes(
    spec: Spec, root: Path, history: RunHistory, predicted: float | None
) -> RunMinutes | None:
    """Return the minutes of a run in a job of its machine's scheduler. Outside of a job a run has no limit."""
    scheduler = find_scheduler(os.environ)
    slurm = load_slurm(root, spec.machine.name, load_site(root)) if scheduler else None
    if slurm is None or slurm.scheduler != scheduler:
        return None
    return estimate_run_minutes(spec.model_dump(mode="json"), slurm, history, predicted)
