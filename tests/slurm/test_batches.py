"""Which runs share a job, for how long, and what earlier runs say about it."""

import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.slurm.jobs import (
    AROUND,
    MARGIN,
    START,
    TOGETHER,
    Jobs,
    RunHistory,
    batches,
    job_minutes,
    run_minutes,
)
from harness.slurm.site import Site
from harness.spec.machine_card import Slurm

SLURM = Slurm(ranks_per_node=4, minutes=10, job_minutes=45)
GIVEN = {"cluster": SLURM, "laptop": None}


def run(ranks: int, dataset: str = "a", machine: str = "cluster", **more: Any) -> dict[str, Any]:
    machine_spec = {"name": machine, "threads_per_rank": 1}
    return {
        "label": "x",
        "spec": {"ranks": ranks, "dataset": {"name": dataset}, "machine": machine_spec, **more},
    }


def runs(*asked: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{number:016x}": one for number, one in enumerate(asked)}


def test_every_run_has_one_job() -> None:
    asked = runs(*(run(ranks, name) for ranks, name in product([1, 2, 4, 5, 16], "ab")))
    held = [run_id for batch in batches(asked, GIVEN).values() for run_id in batch]
    assert sorted(held) == sorted(asked)


def test_small_runs_of_a_graph_share_jobs_of_the_time_that_a_job_has() -> None:
    asked = runs(*(run(ranks) for ranks in [1, 2, 3, 4] * 3))
    assert [len(batch) for batch in batches(asked, GIVEN).values()] == [4, 4, 4]
    wide = {"cluster": SLURM.model_copy(update={"job_minutes": 1000})}
    assert [len(batch) for batch in batches(asked, wide).values()] == [12]


def test_large_runs_have_a_job_each_named_as_they_are() -> None:
    asked = runs(run(5), run(8), run(4), run(4))
    found = batches(asked, GIVEN)
    assert [name for name, batch in found.items() if len(batch) == 1] == [f"{0:016x}", f"{1:016x}"]
    two = {"cluster": SLURM.model_copy(update={"shared_nodes": 2})}
    assert [len(batch) for batch in batches(asked, two).values()] == [2, 2]


def test_on_a_machine_whose_card_knows_no_slurm_runs_of_a_graph_share_jobs() -> None:
    asked = runs(*(run(ranks, name, machine="laptop") for ranks, name in product([1, 2, 8] * 6, "ab")))
    assert [len(batch) for batch in batches(asked, GIVEN).values()] == [TOGETHER, 2] * 2


def test_competitors_take_turns() -> None:
    """Launch by launch, in the order of the plan."""
    asked = runs(run(1, launch=0), run(1, launch=1), run(2, launch=0), run(2, launch=1))
    (batch,) = batches(asked, GIVEN).values()
    assert [int(run_id, 16) for run_id in batch] == [0, 2, 1, 3]


def test_another_run_changes_no_job_but_its_own() -> None:
    """A rerun asks for the same jobs, and a changed experiment only for what is new."""
    before = runs(*(run(ranks, name) for ranks, name in product([1, 5], "ab")))
    after = {**before, "f" * 16: run(1, "a")}
    assert batches(before, GIVEN) == batches(before, GIVEN)
    assert len(batches(after, GIVEN).keys() - batches(before, GIVEN).keys()) == 1


def record(folder: Path, run_id: str, spec: dict[str, Any], seconds: float, status: str = "ok") -> None:
    place = folder / run_id
    place.mkdir(parents=True)
    finished = time.time() + len(list(folder.iterdir()))
    told = {"status": status, "provenance": {"started": finished - seconds, "finished": finished}}
    (place / "record.json").write_text(json.dumps(told))
    (place / "spec.json").write_text(json.dumps(spec))


def test_a_run_may_take_what_the_last_like_it_took_with_a_margin(tmp_path: Path) -> None:
    asked = run(4, launch=3, seed=1)["spec"]
    assert run_minutes(asked, SLURM, RunHistory(tmp_path)) == SLURM.minutes
    record(tmp_path, "a", {**asked, "launch": 0, "seed": 0}, 3600)
    record(tmp_path, "b", {**asked, "launch": 1}, 1200)
    record(tmp_path, "c", {**asked, "ranks": 8}, 60)
    record(tmp_path, "d", {**asked, "launch": 2}, 6, status="failed")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text('{"status": "ok"')
    assert run_minutes(asked, SLURM, RunHistory(tmp_path)) == pytest.approx(MARGIN * 20 + START)


def test_a_job_has_time_for_all_its_runs_and_no_more_than_it_may() -> None:
    assert job_minutes([10], SLURM) == 10 + AROUND
    assert job_minutes([10] * 3, SLURM) == pytest.approx(3 * (10 - START) + START + AROUND)
    assert job_minutes([10] * 50, SLURM) == SLURM.job_minutes + AROUND
    assert job_minutes([300], SLURM) == 300 + AROUND, "a run that is longer than shared jobs gets its time"
    assert 0 < job_minutes([], SLURM) <= START + AROUND, "a job that finds all done"


def test_a_prediction_lengthens_the_limit_of_a_run_that_was_never_made(tmp_path: Path) -> None:
    asked, never = run(4)["spec"], RunHistory(tmp_path)
    assert run_minutes(asked, SLURM, never, predicted=2.0) == SLURM.minutes, "no prediction shortens a limit"
    assert run_minutes(asked, SLURM, never, predicted=3600.0) == MARGIN * 60 + START
    record(tmp_path, "a", asked, 600)
    assert run_minutes(asked, SLURM, RunHistory(tmp_path), predicted=3600.0) == MARGIN * 10 + START


def test_the_job_of_a_run_has_the_time_that_its_plan_tells(tmp_path: Path) -> None:
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "cluster.yaml").write_text(
        "slurm: {ranks_per_node: 4, minutes: 30}\n"
    )
    asked = {run_id: {**one, "cost": {"most": 7200.0}} for run_id, one in runs(run(4)).items()}
    jobs = Jobs(tmp_path, asked, Site(), tmp_path / "runs")
    (batch,) = jobs.batches
    assert jobs.run(batch, 1)["runtime"] == MARGIN * 120 + START + AROUND


def test_a_job_that_is_tried_again_asks_for_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "cluster.yaml").write_text(
        "slurm: {ranks_per_node: 4, minutes: 10}\n"
    )
    asked = runs(run(1), run(2), run(4))
    jobs = Jobs(tmp_path, asked, Site(), tmp_path / "runs")
    (batch,) = jobs.batches
    first = jobs.run(batch, 1)
    record(tmp_path / "runs", f"{0:016x}", asked[f"{0:016x}"]["spec"], 6)
    record(tmp_path / "runs", f"{1:016x}", asked[f"{1:016x}"]["spec"], 6, status="timeout")
    again = jobs.run(batch, 2)
    assert first["runtime"] == 3 * 9 + 1 + AROUND and again["runtime"] == 10 + AROUND
    assert {key for key in first if first[key] != again[key]} == {"runtime"}
    assert not RunHistory(tmp_path / "runs").settled(f"{2:016x}")
