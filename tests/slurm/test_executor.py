"""Our executor against a real Slurm: an outage of the controller, jobs that can never start, and signals.

The workflow is one of the test's own, whose jobs sleep: each is as long as the test needs.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import snakemake.api

from harness.runtime.slurm.executor import NEVER_STARTS, install_executor
from tests.slurm.project import QUICK, ROOT, Project, wait_until

pytestmark = pytest.mark.long

SNAKEFILE = """
from harness.runtime.slurm.executor import install_executor, prepare_workflow

install_executor()

onstart:
    prepare_workflow(workflow)

rule all:
    input:
        [f"done-{number}" for number in range(int(config["jobs"]))]

rule sleep:
    output:
        touch("done-{number}")
    resources:
        slurm_partition="ci",
        slurm_account="nobody",
        nodes=1,
        tasks=1,
        cpus_per_task=int(config.get("cpus", 1)),
        mem_mb=800,
        runtime=int(config.get("minutes", 5)),
    shell:
        "echo begun >> begun-{wildcards.number}; sleep {config[seconds]}"
"""


def start(project: Project, *words: str, **config: int) -> "subprocess.Popen[str]":
    (project.folder / "sleepy.smk").write_text(SNAKEFILE)
    told = [f"{key}={value}" for key, value in config.items()]
    return project.start("snakemake", *QUICK, "-s", "sleepy.smk", *words, "--config", *told)


def begun(project: Project) -> dict[str, int]:
    """How often the work of each job has begun."""
    return {path.name: len(path.read_text().split()) for path in project.folder.glob("begun-*")}


def in_queue(project: Project) -> list[str]:
    """The state and the reason of each job that has not ended."""
    return project.cluster.call("squeue", "-h", "-o", "%T %r").splitlines()


def ends_untold(project: Project) -> int:
    """The number of steps whose end a node could not tell, by the logs of all nodes."""
    logs = project.cluster.folder.glob("slurmd.n*.log")
    return sum(log.read_text().count("failed sending step completion message") for log in logs)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_outage_of_the_controller_loses_and_repeats_nothing(project: Project) -> None:
    """Both jobs end while no controller answers."""
    process = start(project, jobs=2, seconds=15, cpus=4)
    wait_until(lambda: len(begun(project)) == 2, 1500)
    with project.cluster.outage():
        time.sleep(45)
        assert process.poll() is None, project.output()
    assert process.wait(timeout=1800) == 0, project.output()
    assert begun(project) == {"begun-0": 1, "begun-1": 1}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_whose_start_the_controller_forgot_is_submitted_again(project: Project, tmp_path: Path) -> None:
    """A controller saves its state some seconds late. After a crash it starts the job anew, and the node refuses.

    The node still has the job's step, which tries again and again to tell of its end.
    """
    state, kept = project.cluster.folder / "state", tmp_path / "state"
    project.cluster.call("scontrol", "update", "PartitionName=ci", "State=DOWN")
    process = start(project, jobs=1, seconds=5)
    wait_until(lambda: in_queue(project) == ["PENDING PartitionDown"], 1500)
    here = str(project.folder).encode()
    wait_until(lambda: any(here in file.read_bytes() for file in state.glob("job_state")))
    shutil.copytree(state, kept)
    project.cluster.call("scontrol", "update", "PartitionName=ci", "State=UP")
    wait_until(lambda: begun(project))
    untold = ends_untold(project)
    with project.cluster.outage():
        wait_until(lambda: ends_untold(project) > untold)
        shutil.copytree(kept, state, dirs_exist_ok=True)
    assert process.wait(timeout=1800) == 0, project.output()
    assert "launch failed requeued held" in project.output()
    assert begun(project) == {"begun-0": 2}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_is_submitted_once_a_controller_answers(project: Project) -> None:
    """Without its hook, which would wait for a controller before the first job."""
    with project.cluster.outage():
        process = start(project, "--no-hooks", jobs=1, seconds=1)
        wait_until(lambda: "will be submitted once one does" in project.output(), 1500)
    assert process.wait(timeout=1800) == 0, project.output()
    assert begun(project) == {"begun-0": 1}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_that_no_partition_may_start_is_not_submitted(project: Project) -> None:
    assert start(project, jobs=1, seconds=1, minutes=240, cpus=32).wait(timeout=1800) == 1
    assert re.search("ci .*60 minutes.* 240", project.output())
    assert "Trying to restart" not in project.output()
    assert not list(project.folder.glob(".snakemake/slurm_logs/*/*/*")) and in_queue(project) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_that_waits_for_what_never_comes_is_named_and_ended(project: Project) -> None:
    """The partition's limit falls while the job is in the queue."""
    busy = ["-N2", "-t50", "--ntasks-per-node=4", "--mem=100", "-o", "/dev/null"]
    project.cluster.call("sbatch", *busy, "--wrap", "sleep 3000")
    process = start(project, jobs=1, seconds=1)
    try:
        wait_until(lambda: {line.split()[0] for line in in_queue(project)} == {"PENDING", "RUNNING"}, 1500)
        project.cluster.call("scontrol", "update", "PartitionName=ci", "MaxTime=1")
        wait_until(lambda: any(NEVER_STARTS.search(line) for line in in_queue(project)))
        assert process.wait(timeout=1800) == 1, project.output()
    finally:
        project.cluster.call("scontrol", "update", "PartitionName=ci", "MaxTime=60")
    assert "PartitionTimeLimit" in project.output()
    assert [line for line in in_queue(project) if line.startswith("PENDING")] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_or_terminated_workflow_leaves_no_job(project: Project, sign: signal.Signals) -> None:
    process = start(project, jobs=2, seconds=1500, minutes=30)
    wait_until(lambda: begun(project), 1500)
    os.kill(process.pid, sign)
    assert process.wait(timeout=600) == 1, project.output()
    wait_until(lambda: in_queue(project) == [])


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_workflow_that_waits_for_an_earlier_one_can_be_ended(tmp_path: Path, sign: signal.Signals) -> None:
    """A stand-in for squeue shows a job that a Snakemake left in the folder, and that does not end."""
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '7|harness_x|{tmp_path}'\n")
    process = start_with_stand_in(tmp_path, "squeue", "--profile", str(ROOT / "slurm"))
    try:
        wait_until(lambda: "Waiting for jobs of an earlier" in (tmp_path / "output").read_text(), 120)
        os.kill(process.pid, sign)
        assert process.wait(timeout=60) != 0
    finally:
        process.kill()
    assert not (tmp_path / "begun-0").exists() and not list(tmp_path.glob(".snakemake/locks/*"))


def test_a_sigterm_ends_a_snakemake_that_holds_its_own_lock() -> None:
    install_executor()
    scheduler = object.__new__(snakemake.workflow.JobScheduler)
    scheduler._lock, scheduler._open_jobs = threading.Lock(), threading.Semaphore(0)
    with scheduler._lock:
        scheduler.exit_gracefully(signal.SIGTERM, None)
    assert scheduler._open_jobs.acquire(timeout=60) and scheduler._user_kill == "graceful"


FLUX = """#!/bin/sh
echo "$*" >> {folder}/asked
for last; do :; done
case "$1 $2" in
  "batch --"*)
    echo f7
    (sh "$last" && echo COMPLETED || echo FAILED) > {folder}/ended 2>> {folder}/output < /dev/null &
    ;;
  "jobs -n") tail -n 1 {folder}/ended | grep . || echo RUN ;;
esac
"""
"""A stand-in for Flux: a job is a process of this machine."""


def start_with_stand_in(folder: Path, name: str, *words: str) -> "subprocess.Popen[bytes]":
    """The sleepy workflow in a folder without Slurm, and a command of the folder before those of the machine."""
    (folder / "sleepy.smk").write_text(SNAKEFILE)
    (folder / name).chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "snakemake",
        *words,
        "-s",
        "sleepy.smk",
        "--config",
        "jobs=1",
        "seconds=1",
    ]
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            command, cwd=folder, env={**os.environ, "PATH": path}, stdout=output, stderr=output
        )


def test_the_profile_for_flux_submits_and_sees_jobs_end(tmp_path: Path) -> None:
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    (tmp_path / "flux").write_text(FLUX.format(folder=tmp_path))
    words = ["--profile", "workflows/profiles/flux", "--seconds-between-status-checks", "1"]
    process = start_with_stand_in(tmp_path, "flux", *words)
    assert process.wait(timeout=600) == 0, (tmp_path / "output").read_text()
    assert (tmp_path / "begun-0").read_text() == "begun\n"
    submitted, *others = (tmp_path / "asked").read_text().splitlines()
    line = "batch --nodes=1 --nslots=1 --cores-per-slot=1 --time-limit=5m --queue=ci --bank=nobody --output="
    assert submitted.startswith(f"{line}.snakemake/slurm_logs/{{{{id}}}}.log ")
    assert set(others) == {"jobs -n --format={status} f7"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_model_for_other_schedulers_submits_and_sees_jobs_end(project: Project) -> None:
    (project.folder / "sleepy.smk").write_text(SNAKEFILE)
    words = ["--profile", "workflows/profiles/cluster-generic", "--seconds-between-status-checks", "3"]
    project.run("snakemake", *words, "-s", "sleepy.smk", "--config", "jobs=2", "seconds=1", seconds=3000)
    assert begun(project) == {"begun-0": 1, "begun-1": 1}
    assert len(list(project.folder.glob(".snakemake/slurm_logs/*.log"))) == 2
