"""Which runs share a job, and their time limits, also with records of earlier runs."""

import json
import time
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from harness.runtime.slurm.executor import make_batch_line
from harness.runtime.slurm.jobs import (
    MARGIN,
    OVERHEAD_MINUTES,
    RUNS_PER_JOB,
    START_MINUTES,
    EndedJobs,
    Jobs,
    RunHistory,
    describe_costs,
    estimate_job_minutes,
    estimate_run_minutes,
    keep_ended_batches,
    make_batches,
)
from harness.runtime.slurm.resources import Site, parse_partitions
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
    held = [run_id for batch in make_batches(asked, GIVEN).values() for run_id in batch]
    assert sorted(held) == sorted(asked)


def test_small_runs_of_a_graph_share_jobs_of_the_time_that_a_job_has() -> None:
    asked = runs(*(run(ranks) for ranks in [1, 2, 3, 4] * 3))
    assert [len(batch) for batch in make_batches(asked, GIVEN).values()] == [4, 4, 4]
    wide = {"cluster": SLURM.model_copy(update={"job_minutes": 1000})}
    assert [len(batch) for batch in make_batches(asked, wide).values()] == [12]


def test_large_competitors_share_a_job_each_launch_by_itself() -> None:
    """As many ranks on one graph: such runs are compared. Other runs on as many nodes have jobs of their own."""
    asked = runs(*(run(ranks, launch=launch) for launch in (0, 1) for ranks in (8, 8, 5)), run(8, "b"))
    found = sorted(
        sorted(int(run_id, 16) for run_id in batch) for batch in make_batches(asked, GIVEN).values()
    )
    assert found == [[0, 1], [2], [3, 4], [5], [6]]
    wide = {"cluster": SLURM.model_copy(update={"shared_nodes": 2, "job_minutes": 1000})}
    assert [len(batch) for batch in make_batches(asked, wide).values()] == [6, 1]


def test_on_a_machine_whose_card_knows_no_slurm_runs_of_a_graph_share_jobs() -> None:
    asked = runs(*(run(ranks, name, machine="laptop") for ranks, name in product([1, 2, 8] * 6, "ab")))
    assert [len(batch) for batch in make_batches(asked, GIVEN).values()] == [RUNS_PER_JOB, 2] * 2


def test_blocks_are_whole_and_their_order_is_rotated() -> None:
    """Three competitors, four launches, jobs with time for eight runs: two blocks a job, and each is first once."""
    asked = runs(*(run(1, launch=launch, which=which) for which in range(3) for launch in range(4)))
    roomy = {"cluster": SLURM.model_copy(update={"job_minutes": 80})}
    jobs = list(make_batches(asked, roomy).values())
    assert [len(batch) for batch in jobs] == [6, 6]
    order = [
        (asked[run_id]["spec"]["launch"], asked[run_id]["spec"]["which"]) for job in jobs for run_id in job
    ]
    assert [launch for launch, _ in order] == [launch for launch in range(4) for _ in range(3)]
    assert [which for _, which in order] == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]


def test_a_block_longer_than_a_job_is_cut() -> None:
    asked = runs(*(run(1, which=which) for which in range(6)))
    assert [len(batch) for batch in make_batches(asked, GIVEN).values()] == [4, 2]


def test_ended_jobs_keep_their_runs_whatever_time_jobs_have_now() -> None:
    asked = runs(*(run(1, launch=launch) for launch in range(6)))
    before = make_batches(asked, GIVEN)
    wide = {"cluster": SLURM.model_copy(update={"job_minutes": 1000})}
    assert make_batches(asked, wide).keys().isdisjoint(before)
    all_ended = EndedJobs(frozenset(before), before.__getitem__)
    assert keep_ended_batches(asked, wide, all_ended) == before
    first = next(iter(before))
    one_ended = EndedJobs(frozenset([first]), before.__getitem__)
    assert keep_ended_batches(asked, wide, one_ended) == before, "what is left is one job, the same as before"
    more = {**asked, "f" * 16: run(1, "a", launch=9)}
    found = keep_ended_batches(more, wide, one_ended)
    assert found[first] == before[first]
    assert sorted(chain(*found.values())) == sorted(more), "each run has one job"


def test_another_run_changes_no_job_but_its_own() -> None:
    """A rerun asks for the same jobs, and a changed experiment only for what is new."""
    before = runs(*(run(ranks, name) for ranks, name in product([1, 5], "ab")))
    after = {**before, "f" * 16: run(1, "a")}
    assert make_batches(before, GIVEN) == make_batches(before, GIVEN)
    assert len(make_batches(after, GIVEN).keys() - make_batches(before, GIVEN).keys()) == 1


def test_a_job_asks_for_its_runs_after_the_card_has_changed(tmp_path: Path) -> None:
    """Its runs are those that were written at its submission, and no card or site regroups them."""
    (tmp_path / "config" / "machines").mkdir(parents=True)
    card = tmp_path / "config" / "machines" / "cluster.yaml"
    card.write_text("slurm: {ranks_per_node: 4, minutes: 10, job_minutes: 45}\n")
    asked = runs(*(run(1) for _ in range(4)))
    (batch,) = Jobs(tmp_path, asked, Site(), tmp_path / "runs", EndedJobs()).batches
    card.write_text("slurm: {ranks_per_node: 4, minutes: 10, job_minutes: 10}\n")
    assert Jobs(tmp_path, asked, Site(), tmp_path / "runs").request_runs(batch, 1)["nodes"] == 1


def record(folder: Path, run_id: str, spec: dict[str, Any], seconds: float, status: str = "ok") -> None:
    place = folder / run_id
    place.mkdir(parents=True)
    finished = time.time() + len(list(folder.iterdir()))
    told = {"status": status, "provenance": {"started": finished - seconds, "finished": finished}}
    (place / "record.json").write_text(json.dumps(told))
    (place / "spec.json").write_text(json.dumps(spec))


def test_a_run_may_take_what_the_last_like_it_took_with_a_margin(tmp_path: Path) -> None:
    asked = run(4, launch=3, seed=1)["spec"]
    assert estimate_run_minutes(asked, SLURM, RunHistory(tmp_path)) == (SLURM.minutes, SLURM.minutes)
    record(tmp_path, "a", {**asked, "launch": 0, "seed": 0}, 3600)
    record(tmp_path, "b", {**asked, "launch": 1}, 1200)
    record(tmp_path, "c", {**asked, "ranks": 8}, 60)
    record(tmp_path, "d", {**asked, "launch": 2}, 6, status="failed")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text('{"status": "ok"')
    last = MARGIN * 20 + START_MINUTES
    assert estimate_run_minutes(asked, SLURM, RunHistory(tmp_path)) == pytest.approx((last, last))
    record(tmp_path, "e", {**asked, "launch": 4}, 12)
    quick = estimate_run_minutes(asked, SLURM, RunHistory(tmp_path))
    assert quick == pytest.approx((MARGIN * 0.2 + START_MINUTES, SLURM.minutes)), (
        "no earlier run shortens the limit"
    )


def test_job_time_covers_its_runs_up_to_the_limit() -> None:
    assert estimate_job_minutes([10], SLURM) == 10 + OVERHEAD_MINUTES
    assert estimate_job_minutes([10] * 3, SLURM) == pytest.approx(
        3 * (10 - START_MINUTES) + START_MINUTES + OVERHEAD_MINUTES
    )
    assert estimate_job_minutes([10] * 50, SLURM) == SLURM.job_minutes + OVERHEAD_MINUTES
    assert estimate_job_minutes([300], SLURM) == 300 + OVERHEAD_MINUTES, (
        "a run that is longer than shared jobs gets its time"
    )
    assert 0 < estimate_job_minutes([], SLURM) <= START_MINUTES + OVERHEAD_MINUTES, (
        "a job that finds all done"
    )


def test_a_prediction_lengthens_the_limit_of_a_run_that_was_never_made(tmp_path: Path) -> None:
    asked, never = run(4)["spec"], RunHistory(tmp_path)
    short, long = (
        estimate_run_minutes(asked, SLURM, never, predicted=seconds).limit for seconds in (2.0, 3600.0)
    )
    assert short == SLURM.minutes, "no prediction shortens a limit"
    assert long == MARGIN * 60 + START_MINUTES
    record(tmp_path, "a", asked, 600)
    assert (
        estimate_run_minutes(asked, SLURM, RunHistory(tmp_path), predicted=3600.0).limit
        == MARGIN * 10 + START_MINUTES
    )


def test_the_job_of_a_run_has_the_time_that_its_plan_tells(tmp_path: Path) -> None:
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "cluster.yaml").write_text(
        "slurm: {ranks_per_node: 4, minutes: 30}\n"
    )
    asked = {run_id: {**one, "cost": {"most": 7200.0}} for run_id, one in runs(run(4)).items()}
    jobs = Jobs(tmp_path, asked, Site(), tmp_path / "runs", EndedJobs())
    (batch,) = jobs.batches
    assert jobs.request_runs(batch, 1)["runtime"] == MARGIN * 120 + START_MINUTES + OVERHEAD_MINUTES


def test_a_job_that_is_tried_again_asks_for_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "cluster.yaml").write_text(
        "slurm: {ranks_per_node: 4, minutes: 10}\n"
    )
    asked = runs(run(1), run(2), run(4))
    jobs = Jobs(tmp_path, asked, Site(), tmp_path / "runs", EndedJobs())
    (batch,) = jobs.batches
    first = jobs.request_runs(batch, 1)
    record(tmp_path / "runs", f"{0:016x}", asked[f"{0:016x}"]["spec"], 6)
    record(tmp_path / "runs", f"{1:016x}", asked[f"{1:016x}"]["spec"], 6, status="timeout")
    record(tmp_path / "runs", "like the last", {**asked[f"{2:016x}"]["spec"], "launch": 9}, 6)
    again = jobs.request_runs(batch, 2)
    assert first["runtime"] == 3 * 9 + 1 + OVERHEAD_MINUTES and again["runtime"] == 10 + OVERHEAD_MINUTES
    assert {key for key in first if first[key] != again[key]} == {"runtime"}
    assert not RunHistory(tmp_path / "runs").has_result(f"{2:016x}")


def test_the_bill_names_nodes_minutes_lines_and_what_is_forbidden(tmp_path: Path) -> None:
    (tmp_path / "config" / "machines").mkdir(parents=True)
    card = "slurm: {ranks_per_node: 4, minutes: 30, job_minutes: 60, partition: ci, srun: --cpu-bind=cores}\n"
    (tmp_path / "config" / "machines" / "cluster.yaml").write_text(card)
    asked = {
        run_id: {**one, "cost": {"seconds": 600.0, "most": 900.0}}
        for run_id, one in runs(run(4), run(8)).items()
    }
    jobs = Jobs(tmp_path, asked, Site(account="m1"), tmp_path / "runs", EndedJobs())
    text = describe_costs(
        [jobs.estimate_cost(batch) for batch in jobs.batches],
        parse_partitions("ci*|up|0:20:00|1-infinite|2|4|6000|(null)|(null)\n"),
        make_batch_line,
    )
    assert "2 nodes for 36 min each (10 expected)" in text
    assert "sbatch -A m1 -p ci -t 36 --nodes=2 --requeue --ntasks-per-node=4 --cpus-per-task=1" in text
    assert "srun --nodes=2 --ntasks=8 --distribution=plane=4" in text
    assert "ci allows 20 minutes" in text
    assert f"{(36 * 2 + 36) / 60} node-hours" in text and f"{(10 * 2 + 10) / 60} expected" in text
