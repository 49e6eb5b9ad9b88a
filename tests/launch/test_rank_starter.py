"""Ranks that srun starts, by one that a test put in its place; and runs whose time is up, however they are started."""

import json
import os
import re
import stat
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.base.errors import RunError, UserError
from harness.experiment.requests import make_spec
from harness.results.record import Record, read_record
from harness.runtime.launch import processes
from harness.runtime.launch.launch import launch
from harness.runtime.launch.library_caches import (
    CACHE_FOLDERS,
    CACHE_VARIABLE,
    make_cache_environment,
    secure_caches,
)
from harness.runtime.launch.rank_starter import make_rank_starter
from harness.runtime.launch.series import launch_series
from harness.runtime.launch.time_limits import TimeLimits
from harness.spec.machine_card import load_machine
from harness.spec.spec import Spec

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
FAULTY = f"{Path(__file__).parent / 'faulty.py'}:Faulty"
CARD = {"slurm": {"ranks_per_node": 2, "interfaces": ["lo"], "environment": {"MINE": "yes"}, "minutes": 1}}


def ignore(_: str) -> None: ...


def job_has(tmp_path: Path, left: str) -> None:
    """What squeue says of the time that the job has left, of which a minute is kept."""
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(f"#!/bin/sh\necho {left}\n")
    squeue.chmod(0o755)


def quick(runs: Path, asked: Spec) -> None:
    """A record of a run like this one, of another launch, that took two seconds."""
    folder = runs / "quick"
    folder.mkdir(parents=True)
    told = {"status": "ok", "provenance": {"started": 10.0, "finished": 12.0}}
    (folder / "record.json").write_text(json.dumps(told))
    like = asked.model_copy(update={"launch": 7})
    (folder / "spec.json").write_text(json.dumps(like.model_dump(mode="json")))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project root inside a job of a cluster, as the executor leaves a rule's environment."""
    root = tmp_path / "root"
    (root / "config" / "machines").mkdir(parents=True)
    (root / "config" / "machines" / "mine.yaml").write_text(yaml.safe_dump(CARD))
    (root / "datasets").symlink_to(ROOT / "datasets")
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent}/srun.py "$@"\n')
    srun.chmod(0o755)
    job_has(tmp_path, "2:30")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    return root


def spec(root: Path, ranks: int, params: dict[str, Any] | None = None, **more: Any) -> Spec:
    strategy = {"name": FAULTY, "params": params} if params else "cagnet-1d"
    training = {"epochs": 4, "warmup": 1}
    asked = {"strategy": strategy, "dataset": "tiny-sbm", "ranks": ranks, "training": training, **more}
    return make_spec(root, {"machine": "mine", **asked}, "test")


def launched(root: Path, tmp_path: Path, asked: Spec) -> Record:
    record = read_record(launch(asked, root, tmp_path / "results" / "runs", ignore))
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["runs"], "nothing is left behind"
    return record


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_ranks_of_a_step_meet_without_configuration(job: Path, tmp_path: Path, ranks: int) -> None:
    record = launched(job, tmp_path, spec(job, ranks))
    assert record.record["status"] == "ok", record.record["error"]
    assert set(record.table("epochs").rank_id) == set(range(ranks))
    stages = record.record["provenance"]["start"]
    assert list(stages) == ["spawn", "import", "open", "meet", "grid", "ready"]
    assert all(seconds >= 0 for seconds in stages.values())
    environment = record.record["provenance"]["env"]
    assert f"--ntasks={ranks}" in environment["HARNESS_STEP"]
    assert environment["GLOO_SOCKET_IFNAME"] == "lo", "as the card says"
    assert environment["OMP_NUM_THREADS"] == "1"


def test_step_sets_fabric_variables_across_nodes_and_local_caches(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {
        "fabric": {"NCCL_NET": "OFI"},
        "local": "/local",
        "stage": ["/home/env.tar"],
        "python": "shifter python",
    }
    (job / "config" / "machines" / "mine.yaml").write_text(yaml.safe_dump({"slurm": CARD["slurm"] | more}))
    machine = load_machine(job, "mine")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    with (
        closing(make_rank_starter(machine, 2, job, [])) as one,
        closing(make_rank_starter(machine, 3, job, ["m"])) as two,
    ):
        assert "NCCL_NET" not in one.environments[0] and two.environments[0]["NCCL_NET"] == "OFI"
        assert two.environments[0]["NUMBA_CACHE_DIR"] == f"/local/harness-{os.getuid()}/numba"
        assert two.environments[0][CACHE_VARIABLE] == f"/local/harness-{os.getuid()}", (
            "which each task checks first"
        )
        assert one.program[0] == "harness.runtime.launch.node_task", "which checks it too"
        assert " --input=none shifter python -m harness.runtime.launch.node_task m " in " ".join(two.command)
        assert [command[0] for command in two.staging_commands] == ["sbcast", "srun", "touch"]
        assert two.staging_commands[1][-4:] == ["-xf", "/local/env.tar", "-C", "/local"]
        assert not [
            name for name in two.environments[0] if name.startswith("SLURM_") and name != "SLURM_JOB_ID"
        ]


def test_caches_that_another_user_made_first_are_not_used(tmp_path: Path) -> None:
    """A library runs the code in its cache."""
    environ = make_cache_environment(str(tmp_path / "local")) | {"TRITON_CACHE_DIR": "/mine"}
    named = dict(environ)
    secure_caches(environ)
    assert environ == named, "an own folder keeps its name, for the next run"
    assert stat.S_IMODE(Path(environ[CACHE_VARIABLE]).stat().st_mode) == 0o700
    Path(environ[CACHE_VARIABLE]).chmod(0o777)
    secure_caches(environ)
    assert environ["TRITON_CACHE_DIR"] == "/mine", "a user's own choice stays"
    private = {environ[name].rpartition("/")[0] for name in CACHE_FOLDERS if name != "TRITON_CACHE_DIR"}
    assert len(private) == 1 and environ[CACHE_VARIABLE] not in private
    assert stat.S_IMODE(Path(private.pop()).stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    environ = make_cache_environment(str(tmp_path / "file"))
    secure_caches(environ)
    assert not environ.keys() & CACHE_FOLDERS.keys(), (
        "libraries choose for themselves where no folder can be made"
    )


def test_more_ranks_than_a_node_has_need_an_allocation(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    machine = load_machine(job, "mine")
    assert make_rank_starter(machine, 2, job, []).is_local
    with pytest.raises(UserError, match=r"ranks = 3.* mine .*2 ranks.*slurm"):
        make_rank_starter(machine, 3, job, [])


def test_step_of_another_size_is_refused(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SRUN_TASKS", "2")
    record = launched(job, tmp_path, spec(job, 4)).record
    assert record["status"] == "refused"
    assert all(number in record["error"]["message"] for number in ("2 ranks", "for 4"))


@pytest.mark.parametrize(
    ("way", "kind"), [("kill", "Died"), pytest.param("raise", "ZeroDivisionError", marks=pytest.mark.slow)]
)
def test_cause_is_recorded(job: Path, tmp_path: Path, way: str, kind: str) -> None:
    record = launched(job, tmp_path, spec(job, 3, {"way": way, "rank": 2, "call": 4})).record
    assert (record["status"], record["error"]["type"], record["error"]["rank"]) == ("failed", kind, 2)


@pytest.mark.parametrize(
    "words",
    [
        "srun: error: Node failure on n4",
        "srun: error: Unable to create step for job 7: Job/step already completing",
    ],
)
def test_infrastructure_failure_leaves_no_record(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("FAKE_SRUN_SAYS", words)
    with pytest.raises(RunError, match=words.rsplit(":", maxsplit=1)[-1].strip()):
        launch(spec(job, 2), job, tmp_path / "results" / "runs", ignore)
    (outcome,) = launch_series([spec(job, 2)], job, tmp_path / "results" / "runs", ignore)
    assert outcome.folder is None and words in outcome.why
    assert not list((tmp_path / "results" / "runs").iterdir())


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour passes for the launcher soon after a rank begins to hang, however long ranks took to start."""
    sign = tmp_path / "hung"
    monkeypatch.setenv("FAULTY_SIGN", str(sign))

    def clock() -> float:
        later = sign.exists() and time.time() - sign.stat().st_mtime > 1.5
        return time.monotonic() + (3600 if later else 0)

    mine = SimpleNamespace(monotonic=clock, time=time.time, sleep=time.sleep)
    monkeypatch.setattr(processes, "time", mine)


@pytest.mark.parametrize("machine", ["mine", pytest.param("local", marks=pytest.mark.slow)])
def test_run_at_its_time_limit_records_the_epochs_that_all_ranks_finished(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: None, machine: str
) -> None:
    """Rank 1 sleeps in the second timed epoch; the others wait for it in a library that hears no signals."""
    if machine == "local":
        (job / "config" / "machines" / "local.yaml").symlink_to(ROOT / "config" / "machines" / "local.yaml")
        monkeypatch.delenv("SLURM_JOB_ID")
    asked = spec(job, 3, {"way": "hang", "rank": 1, "call": 5}, machine=machine)
    runs = tmp_path / "results" / "runs"
    record = read_record(launch(asked, job, runs, ignore, TimeLimits(still=1000, run=3000)))
    assert (record.record["status"], record.record["error"]["type"]) == ("timeout", "TimeLimit")
    epochs, ledger = record.table("epochs"), record.table("ledger")
    assert epochs.groupby("rank_id").epoch.apply(list).to_dict() == {rank: [-1, 0] for rank in range(3)}
    assert set(ledger.epoch) == {-1, 0} and set(ledger.rank_id) == {0, 1, 2}
    assert record.record["summary"]["epochs"] == 1


def test_failed_run_of_a_step_records_its_finished_epochs(job: Path, tmp_path: Path) -> None:
    record = launched(job, tmp_path, spec(job, 2, {"way": "raise", "rank": 1, "call": 7}))
    assert record.record["status"] == "failed"
    assert set(record.table("epochs").epoch) == {-1, 0, 1}


def test_run_without_time_in_this_job_is_left_to_another(job: Path, tmp_path: Path) -> None:
    """The job has an hour, and the second run asks for more."""
    runs = tmp_path / "results" / "runs"
    card = job / "config" / "machines" / "mine.yaml"
    card.write_text(card.read_text().replace("minutes: 1", "minutes: 50"))
    job_has(tmp_path, "1:00:00")
    (first,) = launch_series([spec(job, 1)], job, runs, ignore)
    assert first.folder and read_record(first.folder).record["status"] == "ok"
    longer = spec(job, 2)
    again, second = launch_series([spec(job, 1), longer], job, runs, ignore, predicted={longer.run_id: 3600})
    assert again.cached
    assert second.folder is None and "for another job" in second.why


@pytest.mark.parametrize(
    ("scheduler", "variable", "program", "answer"),
    [
        ("flux", "FLUX_URI", "flux", "3600"),
        ("pbs", "PBS_JOBID", "qstat", "Resource_List.walltime = 01:00:00"),
        ("lsf", "LSB_JOBID", "bjobs", "01:00:00 00:00:00"),
    ],
)
def test_other_schedulers_jobs_limit_runs(
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheduler: str,
    variable: str,
    program: str,
    answer: str,
) -> None:
    """By stand-ins for their commands: the job has an hour, and the second run asks for more."""
    card = {"slurm": {**CARD["slurm"], "minutes": 50, "scheduler": scheduler}}
    (job / "config" / "machines" / "mine.yaml").write_text(yaml.safe_dump(card))
    (tmp_path / "bin" / program).write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tmp_path / "bin" / program).chmod(0o755)
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv(variable, "7")
    begun: list[TimeLimits] = []

    def launched(_: Spec, __: Path, runs: Path, ___: object, limits: TimeLimits, *____: object) -> Path:
        begun.append(limits)
        return runs

    monkeypatch.setattr("harness.runtime.launch.series.launch", launched)
    longer = spec(job, 2)
    first, second = launch_series(
        [spec(job, 1), longer], job, tmp_path / "runs", ignore, predicted={longer.run_id: 3600}
    )
    (limits,) = begun
    assert first.folder and limits.run == 3000 and limits.job and 3400 < limits.job <= 3540
    assert second.folder is None and "for another job" in second.why


def test_run_that_outlasts_its_job_has_no_record(job: Path, tmp_path: Path, hung: None) -> None:
    """The job has time for what was asked, by a quick run like it, and ends before the run's own limit."""
    runs = tmp_path / "results" / "runs"
    asked = spec(job, 2, {"way": "hang", "rank": 1, "call": 5})
    card = job / "config" / "machines" / "mine.yaml"
    card.write_text(card.read_text().replace("minutes: 1", "minutes: 300"))
    job_has(tmp_path, "1:00:00")
    quick(runs, asked)
    (outcome,) = launch_series([asked], job, runs, ignore)
    assert outcome.folder is None
    said = re.search(r"after (\d+) s of the 18000 s that the run may take: left for another job", outcome.why)
    assert said and 3480 < int(said[1]) <= 3540, outcome.why  # seconds pass before the launch reads the clock
    assert not (runs / asked.run_id).exists()
