"""The errors that srun prints, as Slurm 22.05 writes them, and later ones if different; and the time a job has left."""

import os
import signal
from pathlib import Path

import pytest

from harness.runtime.slurm.resources import parse_seconds
from harness.runtime.slurm.srun import can_start_steps, parse_srun_errors, read_seconds_left

KILLED = """epoch 3
srun: error: n2: task 2: Killed
srun: launch/slurm: _step_signal: Terminating StepId=3.3
slurmstepd-n1: error: *** STEP 3.3 ON n1 CANCELLED AT 2026-11-21T20:45:25 ***
srun: error: n2: task 3: Terminated
srun: error: n1: tasks 0-1: Terminated
srun: Force Terminated StepId=3.3
"""
EXITED = """srun: error: n1: task 1: Exited with exit code 7
srun: error: n1: task 0: Terminated
srun: error: n2: task 3: Exited with exit code 143
"""
LATE = """srun: error: n2: task 3: Exited with exit code 143
srun: error: n1: task 1: Segmentation fault (core dumped)
"""
MEMORY = """slurmstepd-n1: error: StepId=3.6 exceeded memory limit (1160175616 > 943718400), being killed
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: n2: tasks 0,2-3: Killed
"""
CGROUP = """slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.
srun: error: nid001: task 5: Out Of Memory
"""
NODE = """srun: error: Node failure on n4
slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-21T20:45:25 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***
srun: error: n1: task 0: Killed
"""
AWAY = """srun: error: Unable to confirm allocation for job 5: Unable to contact slurm controller (connect failure)
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 5
"""
BUSY = "srun: error: Unable to create step for job 5: Socket timed out on send/recv operation\n"


@pytest.mark.parametrize(
    ("log", "deaths"),
    [
        (KILLED, [(2, -signal.SIGKILL)]),
        (EXITED, [(1, 7)]),
        (LATE, [(1, -signal.SIGSEGV)]),
        (MEMORY, [(rank, -signal.SIGKILL) for rank in (0, 2, 3)]),
        (CGROUP, [(5, -signal.SIGKILL)]),
        ("srun: error: Unable to create step for job 5: Job/step already completing\n", []),
        ("", []),
    ],
)
def test_the_first_that_srun_did_not_end_itself_is_the_cause(log: str, deaths: list[tuple[int, int]]) -> None:
    assert parse_srun_errors(log).deaths == deaths


def test_out_of_memory_and_lost_nodes_are_recognized() -> None:
    assert [parse_srun_errors(log).out_of_memory for log in (MEMORY, CGROUP, KILLED, NODE)] == [
        True,
        True,
        False,
        False,
    ]
    assert [parse_srun_errors(log).lost_node for log in (NODE, KILLED, MEMORY, EXITED)] == [
        True,
        False,
        False,
        False,
    ]


def test_unstarted_step_differs_from_an_ended_one() -> None:
    logs = (AWAY, BUSY, KILLED + AWAY, NODE, "srun: error: Unable to create step for job 5: Invalid job id\n")
    assert [parse_srun_errors(log).never_started for log in logs] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:07", 7), ("12:34", 754), ("1:02:03", 3723), ("2-00:00:01", 172801), ("UNLIMITED", None), ("", None)],
)
def test_time_left_is_parsed_to_seconds(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


QSTAT = """Job Id: 7.pbs
    Job_Name = STDIN
    resources_used.cput = 00:00:08
    resources_used.walltime = 00:10:30
    Resource_List.select = 4:ncpus=256
    Resource_List.walltime = 01:00:00
"""
USED = "    resources_used.walltime = 00:10:30\n"


@pytest.mark.parametrize(
    ("environ", "command", "answer", "left"),
    [
        ({"FLUX_URI": "local:///x", "SLURM_JOB_ID": "7"}, "flux job timeleft", "3600", 3540),
        ({"FLUX_URI": "local:///x"}, "flux job timeleft", "4294967295", None),
        ({"FLUX_URI": "local:///x"}, "flux job timeleft", "", None),
        ({"SLURM_JOB_ID": "7"}, "squeue --noheader --jobs=7 --format=%L", "1:00:00", 3540),
        ({"PBS_JOBID": "7.pbs"}, "qstat -f 7.pbs", QSTAT, 2910),
        ({"PBS_JOBID": "7.pbs"}, "qstat -f 7.pbs", QSTAT.replace(USED, ""), 3540),
        ({"PBS_JOBID": "7.pbs"}, "qstat -f 7.pbs", "Job Id: 7.pbs", None),
        ({"LSB_JOBID": "7"}, "bjobs -noheader -hms -o runtimelimit run_time 7", "02:00:00 00:30:00", 5340),
        ({"LSB_JOBID": "7"}, "bjobs -noheader -hms -o runtimelimit run_time 7", "- 00:30:00", None),
        ({}, "", "", None),
    ],
)
def test_each_scheduler_is_asked_by_its_own_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    command: str,
    answer: str,
    left: float | None,
) -> None:
    """By their documentation; of these, Slurm alone was tried."""
    (tmp_path / "answer").write_text(answer)
    for name in ("flux", "squeue", "qstat", "bjobs"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\n[ "{name} $*" = "{command}" ] && cat {tmp_path}/answer\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert read_seconds_left(environ) == left


@pytest.mark.parametrize(
    ("environ", "starts_steps"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(0xFFFFFFFB)}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(0xFFFFFFFA)}, True),
    ],
    ids=[
        "outside",
        "as the executor leaves it",
        "a task of a step",
        "a batch script",
        "an interactive shell",
    ],
)
def test_process_in_a_job_outside_a_task_starts_steps(environ: dict[str, str], starts_steps: bool) -> None:
    assert can_start_steps(environ) is starts_steps
