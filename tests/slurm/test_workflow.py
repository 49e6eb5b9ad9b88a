"""`snakemake --profile slurm` against a real Slurm, and what is left when jobs, nodes or Snakemake come to grief.

Whatever happens, it ends in a record or in a clean retry: no finished run is lost or repeated, no job is left behind.
"""

import os
import re
import signal
import subprocess
import time
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.slurm.project import QUICK, ROOT, Project, wait_until

FAULTY = f"{ROOT / 'tests' / 'launch' / 'faulty.py'}:Faulty"
TRAINING = {"epochs": 3, "warmup": 1}


def run(strategy: Any = "cagnet-1d", **more: Any) -> dict[str, Any]:
    return {"strategy": strategy, "dataset": "tiny-sbm", "training": TRAINING, **more}


def faulty(way: str, **more: Any) -> dict[str, Any]:
    return {"name": FAULTY, "params": {"way": way, **more}}


def running(project: Project, step: str = r"\d+") -> list[str]:
    """Jobs of Slurm in which a run's ranks are at work: those of the rule, as their comment says, with a step.

    A job has none between two runs. The number of a step is that of its run in the job.
    """
    runs = [
        line.partition("|")[0]
        for line in project.cluster.call("squeue", "-h", "-o", "%i|%k").splitlines()
        if line.partition("|")[2].startswith("rule_run_")
    ]
    steps = project.cluster.call("squeue", "--steps", "-h", "-o", "%i").split()
    return [job for job in runs if any(re.fullmatch(rf"{job}\.{step}", other) for other in steps)]


def second_run(project: Project) -> str:
    """The job whose first run is recorded and whose second run is at work, once it is."""
    (job,) = wait_until(lambda: len(project.records()) == 1 and running(project, "1"), 1500)
    return str(job)


def half_way(project: Project, ranks: int) -> tuple["subprocess.Popen[str]", str, dict[str, Any]]:
    """A workflow of two slow runs, one of them finished and the other at work; their job; the records until then."""
    words = project.experiment(run(faulty("slow"), ranks=ranks, launch=[0, 1]))
    process = project.start("snakemake", *QUICK, *words)
    return process, second_run(project), project.records()


def preempt(project: Project, job: str) -> str:
    """Submits a more urgent job to the node of a job. Returns what Slurm says of that job once it has left the node."""
    node = project.cluster.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%B")
    urgent = ["-p", "urgent", "-N1", "-w", node, "--ntasks-per-node=4", "-o", "/dev/null"]
    project.cluster.call("sbatch", *urgent, "--wrap", "sleep 5")

    def left() -> str | None:
        said = project.cluster.call("scontrol", "show", "job", job)
        return said if re.search(r"Restarts=1|JobState=COMPLETED", said) else None

    return str(wait_until(left))


@pytest.mark.timeout(3600)
def test_the_smoke_experiment_on_two_nodes_of_two_ranks(project: Project) -> None:
    """The literal command of the README, but for how often Slurm is asked."""
    (project.folder / "config" / "site.yaml").write_text(yaml.safe_dump({"machine": "test-cluster"}))
    project.run("snakemake", "all", "verify", *QUICK, seconds=3000)
    runs = pd.read_parquet(project.folder / "results" / "runs.parquet")
    assert set(runs.status) == {"ok"}
    assert set(runs["machine.name"]) == {"test-cluster"}
    smoke = yaml.safe_load((ROOT / "workflows" / "experiments" / "smoke.yaml").read_text())
    asked = sum(len(one["ranks"]) if isinstance(one["ranks"], list) else 1 for one in smoke["runs"])
    assert len(runs) > asked
    epochs = pd.read_parquet(project.folder / "results" / "epochs.parquet")
    worlds = epochs.groupby("run_id").rank_id.nunique()
    asked_for = runs.set_index("run_id").ranks.reindex(worlds.index)
    assert (worlds == asked_for).all(), "as many ranks as were asked for, of every run"
    jobs = len(list(project.folder.glob(".snakemake/slurm_logs/rule_run/*/*.log")))
    assert jobs < len(runs) / 2, "small runs share jobs"
    assert "Nothing to be done" in project.run("snakemake", *QUICK, "--dry-run")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_oom_and_timeout_are_results_and_are_not_tried_again(project: Project) -> None:
    runs = [run(faulty("swallow"), ranks=2), run(faulty("hang"), ranks=2), run("serial", ranks=1)]
    words = project.experiment(*runs, minutes=4)
    project.run("snakemake", *QUICK, *words)
    statuses = sorted(record["status"] for record in project.records().values())
    assert statuses == ["ok", "oom", "timeout"]
    drawn = pd.read_parquet(project.folder / "results" / "runs.parquet")
    assert sorted(drawn.status) == statuses
    assert "Nothing to be done" in project.run("snakemake", *QUICK, *words, "--dry-run")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_d2_cancelled_job_is_retried_without_waiting(project: Project) -> None:
    process, job, before = half_way(project, 2)
    project.cluster.call("scancel", job)
    assert process.wait(timeout=1800) == 0, project.output()
    assert "CANCELLED" in project.output()
    assert {key: project.records()[key] for key in before} == before, "what was finished is as it was"
    assert [record["status"] for record in project.records().values()] == ["ok", "ok"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_preempted_job_is_started_again(project: Project) -> None:
    """By Slurm itself, two minutes later."""
    process, job, before = half_way(project, 4)
    assert "Restarts=1" in preempt(project, job)
    assert process.wait(timeout=1800) == 0, project.output()
    assert {key: project.records()[key] for key in before} == before
    assert [record["status"] for record in project.records().values()] == ["ok", "ok"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_runs_of_a_node_that_fails_are_tried_again(project: Project) -> None:
    process, _, before = half_way(project, 4)
    project.cluster.lose("n2")
    project.cluster.repair("n2")
    assert process.wait(timeout=1800) == 0, project.output()
    assert {key: project.records()[key] for key in before} == before
    assert [record["status"] for record in project.records().values()] == ["ok", "ok"]


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("seconds", [45, 600])
def test_a_step_that_begins_while_no_controller_answers_is_begun_again(
    project: Project, seconds: int
) -> None:
    """The first run ends meanwhile, and the second begins."""
    runs = run(faulty("slow"), ranks=2, launch=[0, 1])
    words = project.experiment(runs, minutes=20, job_minutes=50)  # both in one job
    process = project.start("snakemake", *QUICK, *words)
    wait_until(lambda: running(project), 1500)
    with project.cluster.outage():
        time.sleep(seconds)
        assert process.poll() is None, project.output()
    assert process.wait(timeout=1800) == 0, project.output()
    assert [record["status"] for record in project.records().values()] == ["ok", "ok"]


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_hundred_runs_on_four_nodes_lose_and_repeat_nothing(project: Project) -> None:
    """Through an edit of the experiment, an outage, a preemption and a lost node, each at its number of records.

    A record is kept as it was first seen: a run that were repeated would have another one.
    """
    asked = [
        run(strategy, ranks=[2, 4], launch=list(range(25))) for strategy in ("cagnet-1d", "cagnet-sa-1d")
    ]
    site = {"partition": "wide", "minutes": 5, "job_minutes": 50}  # five launches a job
    words = project.experiment(*asked, **site)
    process = project.start("snakemake", *QUICK, "--jobs", "4", *words)
    seen: dict[str, dict[str, Any]] = {}

    def until(number: int) -> None:
        def look() -> bool:
            for key, record in project.records().items():
                assert seen.setdefault(key, record) == record, "a finished run is left alone"
            return len(seen) >= number or process.poll() is not None

        wait_until(look, 2400)
        assert process.poll() is None or number == 100, project.output()

    until(5)
    for one in asked:
        one["launch"].append(50)
    project.experiment(*asked, **site)
    until(15)
    with project.cluster.outage():
        time.sleep(30)
    until(35)
    preempt(project, wait_until(lambda: running(project))[0])
    until(55)
    busy = wait_until(lambda: running(project))[0]
    node = project.cluster.call("squeue", "-h", "-t", "all", "-j", busy, "-o", "%B")
    project.cluster.lose(node)
    project.cluster.repair(node)
    until(100)
    assert process.wait(timeout=1800) == 0, project.output()
    assert len(seen) == 100 and project.records() == seen
    assert {record["status"] for record in seen.values()} == {"ok"}
    project.run("snakemake", *QUICK, *words, seconds=1200)
    records = project.records()
    assert len(records) == 104, "the edit asked for four more"
    assert {key: records[key] for key in seen} == seen
    assert "Nothing to be done" in project.run("snakemake", *QUICK, *words, "--dry-run")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_snakemake_is_resumed_and_its_jobs_are_waited_for(project: Project) -> None:
    words = project.experiment(run(faulty("slow"), ranks=2, launch=[0, 1, 2]))
    process = project.start("snakemake", *QUICK, *words)
    second_run(project)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = project.records()
    assert running(project), "the job goes on without it"
    assert "locked" in project.run("snakemake", *QUICK, *words, code=1)
    project.run("snakemake", "--unlock", *words)
    project.run("snakemake", *QUICK, *words)
    assert {key: project.records()[key] for key in before} == before
    assert [record["status"] for record in project.records().values()] == ["ok"] * 3
    logs = "".join(path.read_text() for path in project.folder.glob("results/logs/run/*.log"))
    assert logs.count("recorded earlier") == 3, "the second job found all of them done"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_second_snakemake_in_the_folder_is_refused_and_disturbs_nothing(project: Project) -> None:
    words = project.experiment(run(faulty("slow"), ranks=2))
    process = project.start("snakemake", *QUICK, *words)
    wait_until(lambda: running(project), 1500)
    assert "locked" in project.run("snakemake", *QUICK, *words, code=1)
    assert process.wait(timeout=1800) == 0, project.output()
    assert [record["status"] for record in project.records().values()] == ["ok"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_interrupted_snakemake_cancels_its_jobs(project: Project) -> None:
    words = project.experiment(run(faulty("hang"), ranks=4))
    process = project.start("snakemake", *QUICK, *words)
    wait_until(lambda: running(project), 1500)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=300)
    wait_until(lambda: not project.cluster.call("squeue", "-h"))
    assert project.records() == {}, "no record of a run that was given up"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_queued_job_runs_what_was_written_at_its_submission(project: Project) -> None:
    """Meanwhile its experiment is broken, and the time of jobs changes. Afterwards that change plans nothing again."""
    runs = [run(ranks=2, launch=[0, 1]), run("plexus", grid="2x1x1", ranks=2, launch=[0, 1])]
    words = project.experiment(*runs)
    project.run("harness", "data", "build", "tiny-sbm")
    filler = project.cluster.call(
        "sbatch",
        "--parsable",
        "-N2",
        "-t50",
        "--ntasks-per-node=4",
        "--mem=100",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 3000",
    )
    process = project.start("snakemake", *QUICK, *words)
    waiting = ("squeue", "-h", "-t", "PD", "-o", "%j")
    wait_until(lambda: "harness" in project.cluster.call(*waiting), 1500)
    asked = (project.folder / "mine.yaml").read_text()
    (project.folder / "mine.yaml").write_text("name: [")
    site = project.folder / "config" / "site.yaml"
    site.write_text(site.read_text() + "job_minutes: 6\n")
    project.cluster.call("scancel", filler)
    wait_until(lambda: len(project.records()) == 4, 1500)
    (project.folder / "mine.yaml").write_text(asked)
    assert process.wait(timeout=1800) == 0, project.output()
    assert "Nothing to be done" in project.run("snakemake", *QUICK, *words, "--dry-run")
    table = pd.read_parquet(project.folder / "results" / "runs.parquet").set_index("run_id")
    assert set(table["provenance.nodes"]) <= {"localhost", os.uname().nodename}
    for launch, block in table.groupby("launch"):
        assert block["provenance.block"].nunique() == 1 and block["provenance.block"].iloc[0].endswith(
            f"-launch-{launch}"
        )
        first = block.sort_values("provenance.position")["strategy.name"].iloc[0]
        assert first == ("cagnet-1d", "plexus")[int(launch)], "the order is rotated"
    assert "B over A" in project.run("harness", "compare", "results")
