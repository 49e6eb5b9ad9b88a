"""What srun says of a step that did not end well: who died, in which way, and whether it was the machine.

The first that it names is the cause; the others it ended itself.
"""

import re
import signal
from typing import NamedTuple

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
