"""Snakemake's executor for Slurm, held to what a night of runs needs.

The executor that Snakemake loads forgets its jobs when the controller does not answer once, waits for jobs that can
never start, and leaves jobs behind that are being submitted when a user interrupts. This one submits as that one does,
and asks and cancels by itself. Only the Snakemake of a login node uses it (workflows/rules/common.smk).
"""

import asyncio
import re
import shlex
import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import get_job_wildcards
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from harness.slurm.jobs import orphans
from harness.slurm.resources import AGAIN, PARTITIONS, PATIENCE, UNREACHABLE, ask, forbidden, partitions_of

FAILED = (
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "FAILED",
    "OUT_OF_MEMORY",
    "TIMEOUT",
)
"""The states of jobs that ended without success."""
REQUEUED = ("NODE_FAIL", "PREEMPTED")
"""The states of jobs that Slurm starts again. A job that stays in such a state is not started again."""
SETTLING, GRACE = 30.0, 150.0
"""Seconds after which the outputs of a job that Slurm no longer knows show its success; and after which such a job, or
one that Slurm should have started again, counts as failed."""
NEVER = re.compile(
    r"PartitionConfig|PartitionTimeLimit|PartitionNodeLimit|BadConstraints|DependencyNeverSatisfied|NodeNotInPartition"
    r"|AccountNotAllowed|QOSNotAllowed|QosNotAllowed|Invalid(Account|QOS)|AssociationNotFound"
    r"|(QOS|Assoc)Max(Wall|Node|Cpu|CPU|GRES|Mem|Job)\w*(PerJob|PerNode)\w*",
    re.IGNORECASE,
)
"""Reasons for which a pending job waits and that no other job's end removes."""
HELD = re.compile(r"launch.failed.requeued.held", re.IGNORECASE)
"""The reason of a job that its node would not start, as one that had begun there before the controller crashed. Slurm
never starts that job again, and a new job may do better."""


class SteadyExecutor(Executor):  # type: ignore[misc]  # of a package without types
    """The executor of Snakemake's plugin, with its own way to ask for the state of jobs and to end them."""

    def __post_init__(self, test_mode: bool = False) -> None:
        super().__post_init__(test_mode)
        self._ending = threading.Event()
        self._silent_since: float | None = None
        self._since: dict[tuple[str, str], float] = {}

    # Submission.

    def run_job(self, job: Any) -> None:
        """Submits a job, unless no partition could ever start it."""
        if reason := forbidden(job.resources, partitions_of(ask(*PARTITIONS) or "")):
            self._give_up(job)
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"This job can never start: {reason}.")
        else:
            super().run_job(job)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        """A job that found no controller is submitted again once one answers."""
        if not UNREACHABLE.search(msg) or self._ending.is_set():
            super()._report_job_error_threadsafe(job_info, msg)
            return
        self.logger.warning(
            f"No Slurm controller answers; job {job_info.job.jobid} will be submitted once one does."
        )
        while ask("sinfo", "--noheader") is None:
            if self._ending.wait(AGAIN):
                return
        self._cancel_lost(job_info.job)
        self.run_job(job_info.job)

    def _cancel_lost(self, job: Any) -> None:
        """Cancels a job that the controller took, although its answer never came."""
        wildcards = get_job_wildcards(job)
        comment = f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"
        answer = ask("squeue", f"--name={self.run_uuid}", "--noheader", "--format=%i|%k") or ""
        numbers = [
            line.partition("|")[0] for line in answer.splitlines() if line.partition("|")[2] == comment
        ]
        if numbers:
            ask("scancel", *numbers)

    @staticmethod
    def _give_up(job: Any) -> None:
        """Leaves no attempt to a job that would fail alike."""
        job.attempt = max(job.attempt, job.restart_times + 1)

    # States.

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncGenerator[Any, None]:
        """Reports the jobs that ended, and yields the others. Without an answer all jobs are active."""
        self.next_seconds_between_status_checks = (
            self.workflow.executor_settings.init_seconds_before_status_checks
        )
        if not active_jobs:
            return
        states = await asyncio.to_thread(self._states)
        if states is None:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
                self.logger.warning(
                    "No Slurm controller answers. Jobs go on; their states are asked for again."
                )
        elif self._silent_since is not None:
            silent, self._silent_since = time.monotonic() - self._silent_since, None
            self.logger.warning(f"A Slurm controller answers again after {silent:.0f} s.")
        for active in active_jobs:
            if states is None or not self._ended(active, *states.get(active.external_jobid, ("GONE", ""))):
                yield active

    def _states(self) -> dict[str, tuple[str, str]] | None:
        """The state and the reason of each job by its number; None if no controller answers."""
        answer = ask("squeue", f"--name={self.run_uuid}", "--states=all", "--noheader", "--format=%i|%T|%r")
        if answer is None:
            return None
        rows = [line.split("|", 2) for line in answer.splitlines() if line.count("|") > 1]
        return {number: (state, reason) for number, state, reason in rows}

    def _ended(self, active: Any, state: str, reason: str) -> bool:
        """Reports a job that has ended, or never starts."""
        number, job = active.external_jobid, active.job
        lasted = self._lasted(number, state, reason)
        if state == "GONE" and lasted > SETTLING and all(Path(str(file)).exists() for file in job.output):
            state = "COMPLETED"  # its outputs were removed before it was submitted
        if state == "COMPLETED":
            self.report_job_success(active)
            return True
        held = HELD.search(reason) is not None
        if state == "PENDING" and (held or NEVER.search(reason)):
            if lasted <= 0 or ask("scancel", number) is None:
                return False
            if not held:
                self._give_up(job)
            fault = "was not started by its node" if held else "can never start"
            told = f"Slurm job {number} {fault}, and was cancelled: Slurm's reason is {reason}."
        elif state in FAILED or (state in (*REQUEUED, "GONE") and lasted > GRACE):
            told = f"Slurm job {number} ended: {state}{'' if reason in ('', 'None') else f' ({reason})'}."
        else:
            return False
        self.report_job_error(active, msg=f"{told} ", aux_logs=[str(active.aux.get("slurm_logfile"))])
        return True

    def _lasted(self, number: str, state: str, reason: str) -> float:
        """The seconds for which a job was seen in a state for one reason; 0 when it is seen so first."""
        key = (number, f"{state} {reason if state == 'PENDING' else ''}")
        kept = self._since.get(key, time.monotonic())
        self._since = {other: since for other, since in self._since.items() if other[0] != number}
        self._since[key] = kept
        return time.monotonic() - kept

    # The end.

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancels all jobs of this Snakemake, those that are being submitted at the same time included."""
        self._ending.set()
        self._job_submission_executor.shutdown(wait=True, cancel_futures=True)
        if ask("scancel", f"--name={self.run_uuid}", outage=2 * PATIENCE) is None:
            self.logger.error(
                f"No Slurm controller answers, and jobs may go on: `scancel --name={self.run_uuid}` ends them."
            )


REQUEUE = SimpleNamespace(requeue=True, no_requeue=False, qos=None, reservation=None)
"""The settings of workflows/profiles/slurm that are words of the line."""


def sbatch_line(asked: Mapping[str, Any]) -> str:
    """The words of the sbatch line that ask for something, as the executor writes them."""
    resources = _Resources({key: value for key, value in asked.items() if value is not None})
    account, partition = (
        f" {option} {shlex.quote(str(resources[key]))}" if key in resources else ""
        for option, key in (("-A", "slurm_account"), ("-p", "slurm_partition"))
    )
    told = dict.fromkeys(("run_uuid", "slurm_logfile", "comment_str", "workdir"), "x")
    line = get_submit_command(
        SimpleNamespace(resources=resources, threads=1),
        {**told, "account": account, "partition": partition},
        REQUEUE,
    )
    kept = re.sub(r" --(parsable|export=ALL|(job-name|output|comment) x)(?= |$)| -D x(?= |$)", "", line)
    return " ".join(kept.split())


GPUS = re.compile(r"--gpus-per-node=(\d+) ?")
BATCH = {
    "flux": {
        "": "flux batch --nodes={nodes} --nslots={nodes} --cores-per-slot={cores}",
        "gpus": " --gpus-per-slot={gpus}",
        "minutes": " --time-limit={minutes}m",
        "queue": " --queue={queue}",
        "account": " --bank={account}",
    },
    "pbs": {
        "": "qsub -l select={nodes}:ncpus={cores}",
        "gpus": ":ngpus={gpus}",
        "minutes": " -l walltime={seconds}",
        "queue": " -q {queue}",
        "account": " -A {account}",
    },
    "lsf": {
        "": "bsub -nnodes {nodes}",
        "minutes": " -W {minutes}",
        "queue": " -q {queue}",
        "account": " -P {account}",
    },
}
"""The parts of the lines of other schedulers, each with the key that it needs. A slot of Flux and a chunk of PBS are a
whole node, whose ranks start later."""


def batch_line(asked: Mapping[str, Any], scheduler: str = "slurm") -> str:
    """The words of the line that submits a job to its scheduler."""
    if scheduler == "slurm":
        return sbatch_line(asked)
    nodes, extra = asked["nodes"], asked.get("slurm_extra") or ""
    tasks = asked.get("tasks_per_node") or -(-(asked.get("tasks") or 1) // nodes)
    gpus = GPUS.search(extra)
    told = {
        "nodes": nodes,
        "cores": tasks * (asked.get("cpus_per_task") or 1),
        "gpus": gpus and gpus[1],
        "minutes": asked["runtime"],
        "seconds": 60 * asked["runtime"],
        "queue": _quoted(asked.get("slurm_partition")),
        "account": _quoted(asked.get("slurm_account")),
    }
    parts = [part for key, part in BATCH[scheduler].items() if not key or told[key]]
    return " ".join(["".join(parts).format(**told), *GPUS.sub("", extra).split()])


def _quoted(word: Any) -> str | None:
    """A word for a shell, if there is one."""
    return word and shlex.quote(str(word))


class _Resources(dict[str, Any]):
    """The resources of a job as the executor reads them: as keys and as attributes."""

    __getattr__ = dict.__getitem__


def install() -> None:
    """Lets the option `--executor slurm` of Snakemake start this executor, and a SIGTERM end any Snakemake.

    Snakemake's handler takes a lock. The thread that the signal interrupts may hold it, and would wait for itself: that
    of a job's Snakemake does when the job's command has ended by the same signal. The handler has a thread of its own.
    """
    from snakemake.workflow import JobScheduler

    ExecutorPluginRegistry().get_plugin("slurm").executor = SteadyExecutor
    graceful = JobScheduler.exit_gracefully
    JobScheduler.exit_gracefully = lambda scheduler, *_: start_new_thread(graceful, (scheduler,))


# Before the first job.


def prepare(workflow: Any) -> None:
    """Prepares a workflow for its jobs: the hook `onstart` of the main Snakefile.

    A SIGTERM ends a Snakemake that submits jobs as an interrupt does, which cancels the jobs. By itself Snakemake would
    wait for them.
    """
    if not workflow.local_exec and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    _let_scheduler_rest(workflow.scheduler)
    _wait_for_orphans()


def _let_scheduler_rest(scheduler: Any) -> None:
    """Drops Snakemake's usual limit of 100 new jobs a second; a limit that a user sets stays.

    Each job that ends makes the scheduler of a limit look at all jobs once more in every timespan, to the end of the
    workflow. After a hundred jobs it never rests, and takes a core from the run that is timed (snakemake, pull 3744).
    """
    limit = scheduler.job_rate_limiter
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        scheduler.job_rate_limiter = None


POLL_SECONDS = 10.0


def _wait_for_orphans() -> None:
    """Waits for the jobs of a Snakemake that was killed in this folder: their finished runs need not run again."""
    while jobs := orphans(Path.cwd()):
        ids = " ".join(jobs)
        print(f"Waiting for jobs of an earlier Snakemake here; `scancel {ids}` ends them.", file=sys.stderr)
        time.sleep(POLL_SECONDS)
