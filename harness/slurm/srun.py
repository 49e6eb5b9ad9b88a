"""Ranks as one step of a job: the srun line, which says everything itself.

The executor takes Slurm's variables out of a rule's environment. An srun that relies on them starts one task a node and
says nothing, so nodes, tasks, their order, processors and devices all stand here.
"""

import re
import signal
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from harness.slurm.resources import devices, geometry
from harness.spec.machine_card import Slurm

# How long the job that this process is in will last, by Slurm's word.

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


NO_STEP = 0xFFFFFFF0
"""From this number on, a step is a batch script or an interactive shell."""


def in_allocation(environ: Mapping[str, str]) -> bool:
    """Whether this process is in a job, and no task of a step: who is one cannot start steps of its own."""
    step = int(environ.get("SLURM_STEP_ID", NO_STEP))
    return "SLURM_JOB_ID" in environ and step >= NO_STEP


def step(ranks: int, slurm: Slurm) -> list[str]:
    """The srun line without its command. One rank that fails takes the others down."""
    shape = geometry(ranks, slurm)
    return [
        "srun",
        f"--nodes={shape.nodes}",
        f"--ntasks={ranks}",
        f"--distribution=plane={shape.per_node}",
        f"--cpus-per-task={slurm.cpus_per_rank}",
        *devices(slurm),
        *slurm.srun.split(),
        "--kill-on-bad-exit=1",
        "--export=ALL",
        "--input=none",
    ]


# What srun says of a step that did not end well: who died, in which way, and whether it was the machine.
#
# The first that it names is the cause; the others it ended itself.

TOLD = re.compile(
    r"^srun: error: [^:\n]+: tasks? (?P<tasks>[\d,-]+): (?P<how>.+?)( \(core dumped\))?$", re.MULTILINE
)
EXITED = re.compile(r"Exited with exit code (\d+)")
ENDED_BY_SRUN = ("Terminated", "Exited with exit code 143")
MEMORY = ("exceeded memory limit", "oom_kill", "oom-kill", "Out Of Memory")
NODE = (
    "Node failure on",
    "DUE TO NODE FAILURE",
    "Communication connection failure",
    "Zero Bytes were transmitted",
)
SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()}


class Said(NamedTuple):
    """The deaths that are no consequences of another, as rank and exit code, and what else was to blame."""

    deaths: list[tuple[int, int]]
    out_of_memory: bool
    lost_node: bool


def said(log: str) -> Said:
    """The words of srun and of Slurm's daemons among those of the ranks."""
    told = [(found["tasks"], found["how"].strip()) for found in TOLD.finditer(log)]
    first = next(((tasks, how) for tasks, how in told if how not in ENDED_BY_SRUN), None)
    deaths = [] if first is None else [(task, _code(first[1])) for task in _tasks(first[0])]
    return Said(deaths, any(word in log for word in MEMORY), any(word in log for word in NODE))


def _code(how: str) -> int:
    """As Python has it: minus the number of a signal."""
    exited = EXITED.match(how)
    if exited:
        return int(exited[1])
    return -SIGNALS.get(how, signal.SIGKILL)


def _tasks(text: str) -> list[int]:
    """0,2-3 as numbers."""
    ranges = [part.partition("-")[::2] for part in text.split(",")]
    return [task for low, high in ranges for task in range(int(low), int(high or low) + 1)]
