"""A Slurm executor for Snakemake that survives controller outages.

The executor of Snakemake's plugin loses its jobs when the controller fails to answer once, waits for jobs that can
never start, and leaves jobs behind that are being submitted when a user interrupts. This one submits jobs in the same
way, but queries and cancels them itself. Only the Snakemake on a login node uses it (workflows/rules/common.smk).
"""

import asyncio
import re
import shlex
import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake_executor_plugin_slurm import Executor
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import get_job_wildcards
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from harness.runtime.slurm.jobs import find_orphans
from harness.runtime.slurm.resources import (
    COMMAND_SECONDS,
    PARTITION_QUERY,
    RETRY_SECONDS,
    UNREACHABLE,
    ask_slurm,
    explain_refusal,
    parse_partitions,
)

FAILED_STATES = ("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT")
"""The states of jobs that failed."""
REQUEUED_STATES = ("NODE_FAIL", "PREEMPTED")
"""The states of jobs that Slurm usually restarts. A job that stays in such a state was not restarted."""
OUTPUT_SECONDS, GRACE_SECONDS = 30.0, 150.0
"""Seconds after which a job that Slurm no longer knows counts as successful if its outputs exist; and seconds after
which such a job, or one that Slurm should have restarted, counts as failed."""
NEVER_STARTS = re.compile(
    r"PartitionConfig|PartitionTimeLimit|PartitionNodeLimit|BadConstraints|DependencyNeverSatisfied|NodeNotInPartition"
    r"|AccountNotAllowed|QOSNotAllowed|QosNotAllowed|Invalid(Account|QOS)|AssociationNotFound"
    r"|(QOS|Assoc)Max(Wall|Node|Cpu|CPU|GRES|Mem|Job)\w*(PerJob|PerNode)\w*",
    re.IGNORECASE,
)
"""Reasons for which a pending job can never start, whatever other jobs do."""
HELD = re.compile(r"launch.failed.requeued.held", re.IGNORECASE)
"""The reason for a job that its node refused to start, for example because it ran there before the controller crashed.
Slurm does not restart that job, but a new job may start."""


class SteadyExecutor(Executor):  # type: ignore[misc]  # of a package without types
    """The executor of Snakemake's plugin, which queries and cancels jobs in its own way."""

    def __post_init__(self, test_mode: bool = False) -> None:
        super().__post_init__(test_mode)
        self._ending = threading.Event()
        self._silent_since: float | None = None
        self._since: dict[tuple[str, str], float] = {}

    # Submission.

    def run_job(self, job: Any) -> None:
        """Submit a job, unless no partition can ever start it."""
        if reason := explain_refusal(job.resources, parse_partitions(ask_slurm(*PARTITION_QUERY) or "")):
            self._use_up_attempts(job)
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"This job can never start: {reason}.")
        else:
            super().run_job(job)

    def get_account_arg(self, job: Any) -> Iterator[str]:
        """Yield the option for the account of config/site.yaml. Without one, Slurm takes the user's default account.

        The plugin would guess one from earlier jobs, and warn for each job.
        """
        if job.resources.get("slurm_account"):
            yield from super().get_account_arg(job)
        else:
            yield ""

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        """Report a failed submission. If no controller answered, submit the job again once one does."""
        if not UNREACHABLE.search(msg) or self._ending.is_set():
            super()._report_job_error_threadsafe(job_info, msg)
            return
        self.logger.warning(
            f"No Slurm controller answers; job {job_info.job.jobid} will be submitted once one does."
        )
        while ask_slurm("sinfo", "--noheader") is None:
            if self._ending.wait(RETRY_SECONDS):
                return
        self._cancel_lost(job_info.job)
        self.run_job(job_info.job)

    def _cancel_lost(self, job: Any) -> None:
        """Cancel a job that the controller accepted without its answer arriving."""
        wildcards = get_job_wildcards(job)
        comment = f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"
        answer = ask_slurm("squeue", f"--name={self.run_uuid}", "--noheader", "--format=%i|%k") or ""
        jobs = [line.partition("|") for line in answer.splitlines()]
        numbers = [number for number, _, each in jobs if each == comment]
        if numbers:
            ask_slurm("scancel", *numbers)

    @staticmethod
    def _use_up_attempts(job: Any) -> None:
        """Use up the attempts of a job that would fail in the same way again."""
        job.attempt = max(job.attempt, job.restart_times + 1)

    # States.

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncGenerator[Any, None]:
        """Report the jobs that ended, and yield the others. Without an answer from Slurm all jobs are active."""
        self.next_seconds_between_status_checks = (
            self.workflow.executor_settings.init_seconds_before_status_checks
        )
        if not active_jobs:
            return
        states = await asyncio.to_thread(self._query_states)
        if states is None:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
                self.logger.warning(
                    "No Slurm controller answers. Jobs continue; their states will be queried again."
                )
        elif self._silent_since is not None:
            silent, self._silent_since = time.monotonic() - self._silent_since, None
            self.logger.warning(f"A Slurm controller answers again after {silent:.0f} s.")
        for active in active_jobs:
            state, reason = (states or {}).get(active.external_jobid, ("GONE", ""))
            if states is None or not self._report_if_ended(active, state, reason):
                yield active

    def _query_states(self) -> dict[str, tuple[str, str]] | None:
        """Return the state and the reason of each job by its number; None if no controller answers."""
        options = ["--states=all", "--noheader", "--format=%i|%T|%r"]
        answer = ask_slurm("squeue", f"--name={self.run_uuid}", *options)
        if answer is None:
            return None
        rows = [line.split("|", 2) for line in answer.splitlines() if line.count("|") > 1]
        return {number: (state, reason) for number, state, reason in rows}

    def _report_if_ended(self, active: Any, state: str, reason: str) -> bool:
        """Report a job if it has ended or can never start, and return whether it has."""
        number, job = active.external_jobid, active.job
        lasted = self._measure_duration(number, state, reason)
        if state == "GONE" and lasted > OUTPUT_SECONDS and _has_outputs(job):
            state = "COMPLETED"  # its outputs were removed before it was submitted
        if state == "COMPLETED":
            self.report_job_success(active)
            return True
        held = HELD.search(reason) is not None
        if state == "PENDING" and (held or NEVER_STARTS.search(reason)):
            if lasted <= 0 or ask_slurm("scancel", number) is None:
                return False
            if not held:
                self._use_up_attempts(job)
            fault = "was refused by its node" if held else "can never start"
            message = f"Slurm job {number} {fault}, and was cancelled: Slurm gives the reason {reason}."
        elif state in FAILED_STATES or (state in (*REQUEUED_STATES, "GONE") and lasted > GRACE_SECONDS):
            message = f"Slurm job {number} ended: {state}{'' if reason in ('', 'None') else f' ({reason})'}."
        else:
            return False
        self.report_job_error(active, msg=f"{message} ", aux_logs=[str(active.aux.get("slurm_logfile"))])
        return True

    def _measure_duration(self, number: str, state: str, reason: str) -> float:
        """Return the seconds since a job was first seen in this state for this reason."""
        key = (number, f"{state} {reason if state == 'PENDING' else ''}")
        kept = self._since.get(key, time.monotonic())
        self._since = {other: since for other, since in self._since.items() if other[0] != number}
        self._since[key] = kept
        return time.monotonic() - kept

    # The end.

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel all jobs of this Snakemake, including those that are being submitted."""
        self._ending.set()
        self._job_submission_executor.shutdown(wait=True, cancel_futures=True)
        if ask_slurm("scancel", f"--name={self.run_uuid}", outage=2 * COMMAND_SECONDS) is None:
            self.logger.error(
                f"No Slurm controller answers, so jobs may continue. `scancel --name={self.run_uuid}` cancels them."
            )


def _has_outputs(job: Any) -> bool:
    """Return True if all outputs of a job exist."""
    return all(Path(str(file)).exists() for file in job.output)


REQUEUE_SETTINGS = SimpleNamespace(requeue=True, no_requeue=False, qos=None, reservation=None)
"""The settings of workflows/profiles/slurm that appear on the sbatch line."""


def make_sbatch_line(asked: Mapping[str, Any]) -> str:
    """Return the sbatch line of a job without what differs from job to job, as the executor writes it."""
    resources = _Resources({key: value for key, value in asked.items() if value is not None})
    account, partition = (
        f" {option} {shlex.quote(str(resources[key]))}" if key in resources else ""
        for option, key in (("-A", "slurm_account"), ("-p", "slurm_partition"))
    )
    placeholders = dict.fromkeys(("run_uuid", "slurm_logfile", "comment_str", "workdir"), "x")
    line = get_submit_command(
        SimpleNamespace(resources=resources, threads=1),
        {**placeholders, "account": account, "partition": partition},
        REQUEUE_SETTINGS,
    )
    kept = re.sub(r" --(parsable|export=ALL|(job-name|output|comment) x)(?= |$)| -D x(?= |$)", "", line)
    return " ".join(kept.split())


GPU_OPTION = re.compile(r"--gpus-per-node=(\d+) ?")
BATCH_LINES = {
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
"""The parts of the submission lines of other schedulers, by the value that each part needs. A slot of Flux and a chunk
of PBS are a whole node, on which ranks start later."""


def make_batch_line(asked: Mapping[str, Any], scheduler: str = "slurm") -> str:
    """Return the line that submits a job to its scheduler."""
    if scheduler == "slurm":
        return make_sbatch_line(asked)
    nodes, extra = asked["nodes"], asked.get("slurm_extra") or ""
    tasks = asked.get("tasks_per_node") or -(-(asked.get("tasks") or 1) // nodes)
    gpus = GPU_OPTION.search(extra)
    values = {
        "nodes": nodes,
        "cores": tasks * (asked.get("cpus_per_task") or 1),
        "gpus": gpus and gpus[1],
        "minutes": asked["runtime"],
        "seconds": 60 * asked["runtime"],
        "queue": _quote_word(asked.get("slurm_partition")),
        "account": _quote_word(asked.get("slurm_account")),
    }
    parts = [part for key, part in BATCH_LINES[scheduler].items() if not key or values[key]]
    return " ".join(["".join(parts).format(**values), *GPU_OPTION.sub("", extra).split()])


def _quote_word(word: Any) -> str | None:
    """Return a word quoted for a shell; None if there is no word."""
    return word and shlex.quote(str(word))


class _Resources(dict[str, Any]):
    """The resources of a job, which the executor reads as keys and as attributes."""

    __getattr__ = dict.__getitem__


def install_executor() -> None:
    """Make `snakemake --executor slurm` use this executor, and make SIGTERM end any Snakemake.

    Snakemake's signal handler takes a lock that the interrupted thread may hold, which would deadlock. This happens in
    the Snakemake of a job when the same signal ended the job's command. So the handler runs in another thread.
    """
    from snakemake.workflow import JobScheduler

    ExecutorPluginRegistry().get_plugin("slurm").executor = SteadyExecutor
    graceful = JobScheduler.exit_gracefully
    JobScheduler.exit_gracefully = lambda scheduler, *_: start_new_thread(graceful, (scheduler,))


# Before the first job.


def prepare_workflow(workflow: Any) -> None:
    """Prepare a workflow for its jobs. Call this in the hook `onstart` of the main Snakefile.

    SIGTERM then ends a Snakemake that submits jobs as an interrupt does, which cancels the jobs. By default Snakemake
    would wait for them.
    """
    if not workflow.local_exec and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    _remove_default_rate_limit(workflow.scheduler)
    _wait_for_orphans()


def _remove_default_rate_limit(scheduler: Any) -> None:
    """Remove Snakemake's default limit of 100 new jobs per second. A limit that the user sets stays.

    With a limit, each job that ends makes the scheduler examine all jobs again in every timespan until the workflow
    ends. After a hundred jobs it is always busy, and takes a core from the timed run (snakemake, pull 3744).
    """
    limit = scheduler.job_rate_limiter
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        scheduler.job_rate_limiter = None


POLL_SECONDS = 10.0


def _wait_for_orphans() -> None:
    """Wait for the jobs of a Snakemake that was killed in this folder: their runs need not be repeated."""
    while jobs := find_orphans(Path.cwd()):
        ids = " ".join(jobs)
        print(
            f"Waiting for jobs of an earlier Snakemake in this folder. `scancel {ids}` cancels them.",
            file=sys.stderr,
        )
        time.sleep(POLL_SECONDS)
