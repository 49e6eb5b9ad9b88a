"""Ranks as one step of a job: the srun command, and the errors that srun prints when a step fails.

The executor removes Slurm's variables from the environment of a rule. Without them srun silently starts one task per
node, so the command states nodes, tasks, their order, processors and devices.
"""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from harness.runtime.slurm.resources import (
    OUTAGE_SECONDS,
    UNREACHABLE,
    ask_slurm,
    gpu_options,
    parse_seconds,
    plan_nodes,
)
from harness.spec.machine_card import Slurm

# The job in which this process runs, and the time that is left.

JOB_VARIABLES = {"flux": "FLUX_URI", "slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID"}
"""A variable that each scheduler sets in its jobs. Flux comes first, because it runs inside jobs of the others."""
RANK_VARIABLES = {"flux": "FLUX_TASK_RANK", "pbs": "PALS_RANKID", "lsf": "JSM_NAMESPACE_RANK"}
"""A variable that is set only in the ranks of such a job."""
FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""From this number on, steps are batch scripts and interactive shells."""


def find_scheduler(environ: Mapping[str, str]) -> str | None:
    """Return the scheduler in whose job this process runs; None outside a job."""
    return next((name for name, job in JOB_VARIABLES.items() if job in environ), None)


def can_start_steps(environ: Mapping[str, str], scheduler: str = "slurm") -> bool:
    """Return whether this process is in a job and can start steps, which tasks of a step cannot."""
    if scheduler in RANK_VARIABLES:
        return JOB_VARIABLES[scheduler] in environ and RANK_VARIABLES[scheduler] not in environ
    step = int(environ.get("SLURM_STEP_ID", FIRST_SPECIAL_STEP))
    return JOB_VARIABLES["slurm"] in environ and step >= FIRST_SPECIAL_STEP


RECORD_SECONDS = 60.0
"""Seconds of a job that are reserved for writing the record of its last run."""
UNLIMITED = 0xFFFFFFFF
"""What Flux prints for a job without a time limit."""
WALLTIME = re.compile(r"^\s*(Resource_List|resources_used)\.walltime = ([\d:]+)$", re.MULTILINE)


def read_seconds_left(environ: Mapping[str, str]) -> float | None:
    """Return the seconds left for runs in the job of this process; None outside a job, or without a time limit."""
    scheduler = find_scheduler(environ)
    left = None if scheduler is None else _read_job_seconds_left(scheduler, environ[JOB_VARIABLES[scheduler]])
    return None if left is None else left - RECORD_SECONDS


def _read_job_seconds_left(scheduler: str, job: str) -> float | None:
    """Return the seconds left of a job by the command of its scheduler. Wait for a Slurm controller that is away."""
    if scheduler == "slurm":
        query = ("squeue", "--noheader", f"--jobs={job}", "--format=%L")
        return parse_seconds(ask_slurm(*query, outage=OUTAGE_SECONDS) or "")
    if scheduler == "flux":
        seconds = ask_slurm("flux", "job", "timeleft") or ""
        return float(seconds) if seconds.isdecimal() and int(seconds) < UNLIMITED else None
    if scheduler == "pbs":
        times = dict(WALLTIME.findall(ask_slurm("qstat", "-f", job) or ""))
        limit, used = times.get("Resource_List", ""), times.get("resources_used", "")
    else:
        words = ask_slurm("bjobs", "-noheader", "-hms", "-o", "runtimelimit run_time", job) or ""
        limit, used = [*words.split(), "", ""][:2]
    most = parse_seconds(limit)
    return None if most is None else most - (parse_seconds(used) or 0.0)


def make_step_command(ranks: int, slurm: Slurm) -> list[str]:
    """Return the command that starts ranks, without the command of a rank. A rank that fails ends all others."""
    shape = plan_nodes(ranks, slurm)
    cores, gpus = slurm.cpus_per_rank, slurm.gpus_per_node // slurm.ranks_per_node
    if slurm.scheduler == "flux":
        size = [f"--nodes={shape.nodes}", f"--ntasks={ranks}", f"--cores-per-task={cores}"]
        if gpus:
            size.append(f"--gpus-per-task={gpus}")
        return ["flux", "run", *size, "--exclusive", "-oexit-on-error", *slurm.srun.split()]
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
        *gpu_options(slurm),
        *slurm.srun.split(),
        "--kill-on-bad-exit=1",
        "--export=ALL",
        "--input=none",
    ]


def make_staging_commands(ranks: int, slurm: Slurm) -> list[list[str]]:
    """Return the commands that copy the archives of a card to every node of a step and unpack them."""
    nodes = plan_nodes(ranks, slurm).nodes
    on_each_node = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--export=ALL"]
    copies = [(archive, f"{slurm.local}/{PurePath(archive).name}") for archive in slurm.stage]
    sent = [["sbcast", "--force", "--preserve", archive, copy] for archive, copy in copies]
    return sent + [[*on_each_node, "tar", "-xf", copy, "-C", slurm.local] for _, copy in copies]


def make_python_command(slurm: Slurm, folders: Sequence[Path], working: Path) -> list[str]:
    """Return the command that starts Python in a rank, on the node or in the card's container.

    A rank in a container sees the given folders, the environment of the step and the network of the node.
    """
    box = slurm.container
    if box is None:
        return slurm.python.split() or [sys.executable]
    command, *words = slurm.python.split() or ["python"]
    options = box.options.split()
    if box.runtime == "shifter":  # it mounts the file systems of the site
        return ["shifter", f"--image={box.image}", *options, command, *words]
    if box.runtime == "apptainer":
        seen = ",".join(map(str, folders))
        place = [f"--bind={seen}", f"--pwd={working}"]
        return ["apptainer", "exec", *place, *options, box.image, command, *words]
    host = ["--env-host", "--network=host", "--ipc=host", "--pid=host", "--uts=host"]
    volumes = [f"--volume={folder}:{folder}" for folder in folders]
    # `--entrypoint` replaces the image's own, which would come before the command. The dashes end the options of
    # podman-hpc, which would otherwise take options of the program, such as --scratch, for its own.
    place = [f"--workdir={working}", f"--entrypoint={command}"]
    return ["podman-hpc", "run", "--rm", *host, *volumes, *place, *options, "--", box.image, *words]


# The errors of srun for a failed step. The first task that srun names is the cause; srun ended the others itself.

TASK_ENDED = re.compile(
    r"^srun: error: [^:\n]+: tasks? (?P<tasks>[\d,-]+): (?P<how>.+?)( \(core dumped\))?$", re.MULTILINE
)
EXITED = re.compile(r"Exited with exit code (\d+)")
ENDED_BY_SRUN = ("Terminated", "Exited with exit code 143")
MEMORY_ERRORS = ("exceeded memory limit", "oom_kill", "oom-kill", "Out Of Memory")
NODE_ERRORS = (
    "Node failure on",
    "DUE TO NODE FAILURE",
    "Communication connection failure",
    "Zero Bytes were transmitted",
)
STEP_REFUSED = re.compile(r"Unable to (create step|confirm allocation) for job")
SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()}


class SrunErrors(NamedTuple):
    """The causes of a failed step."""

    deaths: list[tuple[int, int]]
    """Rank and exit code of the ranks that srun did not end itself."""
    out_of_memory: bool
    lost_node: bool
    never_started: bool
    """Whether the controller created no step, so that no rank started."""


def parse_srun_errors(log: str) -> SrunErrors:
    """Return the errors of srun and of Slurm's daemons in the output of the ranks."""
    ended = [(match["tasks"], match["how"].strip()) for match in TASK_ENDED.finditer(log)]
    first = next(((tasks, how) for tasks, how in ended if how not in ENDED_BY_SRUN), None)
    deaths = [] if first is None else [(task, _parse_exit_code(first[1])) for task in _parse_tasks(first[0])]
    is_refused = STEP_REFUSED.search(log) is not None and UNREACHABLE.search(log) is not None
    return SrunErrors(
        deaths,
        out_of_memory=any(word in log for word in MEMORY_ERRORS),
        lost_node=any(word in log for word in NODE_ERRORS),
        never_started=is_refused and not deaths,
    )


def _parse_exit_code(how: str) -> int:
    """Return the exit code as Python has it: minus the number of a signal."""
    exited = EXITED.match(how)
    if exited:
        return int(exited[1])
    return -SIGNALS.get(how, signal.SIGKILL)


def _parse_tasks(text: str) -> list[int]:
    """Return the task numbers in a list as 0,2-3."""
    ranges = [part.partition("-")[::2] for part in text.split(",")]
    return [task for low, high in ranges for task in range(int(low), int(high or low) + 1)]
