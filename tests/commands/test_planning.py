"""harness plan: the runs and the jobs of experiments."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.cli import main
from harness.cli.commands.output import View
from harness.cli.commands.planning import PlanAnswer, PlanRequest, plan
from harness.cli.commands.rendering import render_text
from harness.runtime.slurm.jobs import JobCost, JobGroup

SMOKE = Path(__file__).parents[2] / "workflows/experiments/smoke.yaml"


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    return plan([SMOKE])


def page(answer: PlanAnswer, view: View = View()) -> list[str]:  # noqa: B008
    return render_text(answer.lay_out(view), view).splitlines()


def test_runs_are_counted_and_listed_with_pasteable_grids(answer: PlanAnswer) -> None:
    runs = answer.plans[0]["runs"]
    lines = page(answer, View(all=True))
    assert f"{len(runs)} runs" in lines[0]
    listed = {line.split()[0]: line.split()[-1] for line in lines[3:]}
    assert listed.keys() == {run["run_id"] for run in runs}
    wanted = {run["run_id"]: run["spec"]["grid"] for run in runs}
    grids = {run: dict(axis.split("=") for axis in grid.split(",")) for run, grid in listed.items()}
    assert grids == {run: {axis: str(size) for axis, size in grid.items()} for run, grid in wanted.items()}


def test_long_plans_are_cut(answer: PlanAnswer) -> None:
    assert page(answer)[-1] == f"... {len(answer.plans[0]['runs']) - 20} more (--all)"


def test_files_and_the_option_experiment_mean_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    assert main(["plan", "--experiment", str(SMOKE), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text()) == plan([SMOKE]).to_document()


def make_group(line: str, expected: Sequence[float | None], refusal: str = "") -> JobGroup:
    asked = {"nodes": "2", "runtime": "30"}
    return JobGroup(line, [JobCost("b", 3, asked, minutes, {}) for minutes in expected], refusal)


def test_jobs_are_grouped_with_their_node_hours_and_refusals(answer: PlanAnswer) -> None:
    groups = [make_group("sbatch -N2", [10.0, 20.0], "2 nodes, 1 allowed"), make_group("", [None])]
    request = PlanRequest((SMOKE,), cost=True)
    costs = PlanAnswer(answer.plans, [groups], request)
    lines = page(costs)
    row = next(line.split() for line in lines if line.endswith("1 allowed"))
    assert row[:6] == ["2", "2", "30", "15.0", "6", "2.00"]
    assert any("1 job" in line and "3 runs" in line for line in lines)
    assert not any("sbatch" in line for line in lines)
    assert "sbatch -N2" in page(costs, View(verbose=True))
