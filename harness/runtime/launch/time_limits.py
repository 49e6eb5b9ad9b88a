"""The time limits of a run and of a start of ranks, in seconds. Tests pass shorter ones."""

from collections.abc import Callable
from typing import NamedTuple


class TimeLimits(NamedTuple):
    """The time limits of a run, of a hang, and of the end of its ranks."""

    still: float = 20.0
    """The time after which a stopped rank, or ranks on CPUs that all sleep, count as hung
    (`runtime.launch.hang_detector`)."""
    recording: float = 1800.0
    """The same for ranks that sleep after training: much longer than a slow disk takes."""
    run: float | None = None
    """The time after which a run is stopped and recorded as a timeout, with its finished epochs."""
    job: float | None = None
    """The time that the job has left for the run. A run that this limit stops has no record."""
    grace: float = 3.0
    """The time that ranks have to report their own faults after another rank has failed."""
    stack_dump: float = 1.0
    """The time that ranks have to write their stacks after a signal."""
    ending: float = 10.0
    """The time that processes have to end after a signal, and that a writer has to finish a record after `run`."""
    folder_visible: float = 30.0
    """The time within which a folder that rank 0 makes becomes visible on other machines."""
    poll: float = 0.05
    """The interval at which ranks are polled."""


class StartLimits(NamedTuple):
    """The time limits of a start of ranks, and the receiver of messages about a slow start."""

    seconds: float = 120.0
    """The time after which the start fails."""
    way_out: str = ""
    """The end of the error message: how to raise the limit."""
    progress: Callable[[str], None] = lambda _: None
    """Receives the stage of a slow start."""
    report_interval: float = 5.0
    """The interval at which a slow start reports its stage."""
    ending: float = 5.0
    """The time that the fork server has to end after it has closed its channel."""


LIMITS = TimeLimits()
POOL_LIMITS = TimeLimits(grace=5.0, stack_dump=0.5)
"""The limits of the pool's jobs (`runtime.launch.worker_pool`)."""
START_LIMITS = StartLimits()
