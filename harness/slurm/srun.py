"""Ranks as one step of a job: the srun line, and the errors that srun prints when a step fails.

The executor takes Slurm's variables out of a rule's environment. An srun that relies on them silently starts one task a
node, so nodes, tasks, their order, processors and devices all stand on the line.
"""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from harness.slurm.resources import OUTAGE, UNREACHABLE, as_seconds, ask, devices, geometry
from harness.spec.machine_card import Slurm

# The job in which this process runs, and the time that it has left.

JOBS = {"flux": "FLUX_URI", "slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID"}
"""A variable that is set in every job of a scheduler. Flux, which runs inside jobs of the others, comes first."""
RANKS = {"flux": "FLUX_TASK_RANK", "pbs": "PALS_RANKID", "lsf": "JSM_NAMESPACE_RANK"}
"""A variable that is set in the ranks of such a job alone."""
NO_STEP = 0xFFFFFFF0
"""The least number of a step that is a batch script or an interactive shell."""


def scheduler_of(environ: Mapping[str, str]) -> str | None:
    """The scheduler in whose job this process runs; None outside a job."""
    return next((name for name, job in JOBS.items() if job in environ), None)


def in_allocation(environ: Mapping[str, str], scheduler: str = "slurm") -> bool:
    """True if this process is in a job and can start steps, which a task of a step cannot."""
    if scheduler in RANKS:
        return JOBS[scheduler] in environ and RANKS[scheduler] not in environ
    step = int(environ.get("SLURM_STEP_ID", NO_STEP))
    return JOBS["slurm"] in environ and step >= NO_STEP


LEAVING = 60.0
"""Seconds of a job kept for writing the record of its last run."""
UNLIMITED = 0xFFFFFFFF
"""What Flux says of a job without a time limit."""
WALLTIME = re.compile(r"^\s*(Resource_List|resources_used)\.walltime = ([\d:]+)$", re.MULTILINE)


def seconds_left(environ: Mapping[str, str]) -> float | None:
    """The seconds left for runs in the job of this process; None outside a job, or without a time limit."""
    scheduler = scheduler_of(environ)
    left = None if scheduler is None else _left_of(scheduler, environ[JOBS[scheduler]])
    return None if left is None else left - LEAVING


def _left_of(scheduler: str, job: str) -> float | None:
    """The seconds left of a job, by the command of its scheduler. For Slurm an absent controller is waited for."""
    if scheduler == "slurm":
        return as_seconds(ask("squeue", "--noheader", f"--jobs={job}", "--format=%L", outage=OUTAGE) or "")
    if scheduler == "flux":
        told = ask("flux", "job", "timeleft") or ""
        return float(told) if told.isdigit() and int(told) < UNLIMITED else None
    if scheduler == "pbs":
        times = dict(WALLTIME.findall(ask("qstat", "-f", job) or ""))
        limit, used = times.get("Resource_List", ""), times.get("resources_used", "")
    else:
        words = ask("bjobs", "-noheader", "-hms", "-o", "runtimelimit run_time", job) or ""
        limit, used = [*words.split(), "", ""][:2]
    most = as_seconds(limit)
    return None if most is None else most - (as_seconds(used) or 0.0)


def step(ranks: int, slurm: Slurm) -> list[str]:
    """The line that starts ranks, without their command. A rank that fails ends all others."""
    shape = geometry(ranks, slurm)
    cores, gpus = slurm.cpus_per_rank, slurm.gpus_per_node // slurm.ranks_per_node
    if slurm.scheduler == "flux":
        size = [f"--nodes={shape.nodes}", f"--ntasks={ranks}", f"--cores-per-task={cores}"]
        devices_of_ranks = [f"--gpus-per-task={gpus}"] if gpus else []
        return [
            "flux",
            "run",
            *size,
            *devices_of_ranks,
            "--exclusive",
            "-oexit-on-error",
            *slurm.srun.split(),
        ]
    if slurm.scheduler == "pbs":
        size = ["-n", str(ranks), "--ppn", str(shape.per_node), "-d", str(cores)]
        return ["mpiexec", *size, "--cpu-bind", "depth", *slurm.srun.split()]
    if slurm.scheduler == "lsf":
        size = [f"--nrs={ranks}", "--tasks_per_rs=1", f"--cpu_per_rs={cores}", f"--gpu_per_rs={gpus}"]
        return ["jsrun", *size, f"--rs_per_host={shape.per_node}", "--exit_on_error=1", *slurm.srun.split()]
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


def staging(ranks: int, slurm: Slurm) -> list[list[str]]:
    """The commands that bring the archives of a card to every node of a step, and unpack them there."""
    nodes = geometry(ranks, slurm).nodes
    once = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--export=ALL"]
    copies = [(archive, f"{slurm.local}/{PurePath(archive).name}") for archive in slurm.stage]
    sent = [["sbcast", "--force", "--preserve", archive, copy] for archive, copy in copies]
    return sent + [[*once, "tar", "-xf", copy, "-C", slurm.local] for _, copy in copies]


def python_words(slurm: Slurm, folders: Sequence[Path], working: Path) -> list[str]:
    """The words that start Python in a rank: in the card's container, in which it sees the folders, or on the node.

    The environment of the step and the network of the node are those of a rank in a container, too.
    """
    box = slurm.container
    if box is None:
        return slurm.python.split() or [sys.executable]
    command, *words = slurm.python.split() or ["python"]
    options = box.options.split()
    if box.runtime == "shifter":  # it shows the file systems of the site
        return ["shifter", f"--image={box.image}", *options, command, *words]
    if box.runtime == "apptainer":
        seen = ",".join(map(str, folders))
        place = [f"--bind={seen}", f"--pwd={working}"]
        return ["apptainer", "exec", *place, *options, box.image, command, *words]
    host = ["--env-host", "--network=host", "--ipc=host", "--pid=host", "--uts=host"]
    volumes = [f"--volume={folder}:{folder}" for folder in folders]
    # The entry point of an image would come before the command. The dashes end the options of podman-hpc itself, which
    # would take words of the program for its own, such as --scratch.
    place = [f"--workdir={working}", f"--entrypoint={command}"]
    return ["podman-hpc", "run", "--rm", *host, *volumes, *place, *options, "--", box.image, *words]


# The errors of srun for a step that failed. The first task that srun names is the cause; srun ended the others itself.

TASK_ENDED = re.compile(
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
NO_STEP_MADE = re.compile(r"Unable to (create step|confirm allocation) for job")
SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()}


class SrunErrors(NamedTuple):
    """The causes of a failed step."""

    deaths: list[tuple[int, int]]
    """Rank and exit code of the ranks that srun did not end itself."""
    out_of_memory: bool
    lost_node: bool
    never_started: bool
    """True if the controller made no step, so that no rank has begun."""


def srun_errors(log: str) -> SrunErrors:
    """The errors of srun and of Slurm's daemons in the output of the ranks."""
    ended = [(match["tasks"], match["how"].strip()) for match in TASK_ENDED.finditer(log)]
    first = next(((tasks, how) for tasks, how in ended if how not in ENDED_BY_SRUN), None)
    deaths = [] if first is None else [(task, _code(first[1])) for task in _tasks(first[0])]
    never = not deaths and NO_STEP_MADE.search(log) is not None and UNREACHABLE.search(log) is not None
    return SrunErrors(deaths, any(word in log for word in MEMORY), any(word in log for word in NODE), never)


def _code(how: str) -> int:
    """The exit code as Python has it: minus the number of a signal."""
    exited = EXITED.match(how)
    if exited:
        return int(exited[1])
    return -SIGNALS.get(how, signal.SIGKILL)


def _tasks(text: str) -> list[int]:
    """The numbers of 0,2-3."""
    ranges = [part.partition("-")[::2] for part in text.split(",")]
    return [task for low, high in ranges for task in range(int(low), int(high or low) + 1)]
