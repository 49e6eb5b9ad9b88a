"""run --launches: fresh processes for each launch, a median with its interval, and no launch twice."""

import json
from pathlib import Path

import pytest

import harness
from harness.cli import main
from harness.cli.commands.output import Table, View
from harness.cli.commands.running import RunAnswer
from harness.results.launch_intervals import compute_median_interval
from harness.runtime.launch.series import list_launches
from harness.spec.spec import Spec, canonical_json

SETTINGS = {"training.epochs": 2, "training.warmup": 1}


def run_launches(runs: Path, launches: int, **values: object) -> RunAnswer:
    return harness.run("serial", "tiny-sbm", settings=SETTINGS, launches=launches, out=runs, **values)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the launches 0 and 1."""
    folder = tmp_path_factory.mktemp("results") / "runs"
    run_launches(folder, 2)
    return folder


@pytest.mark.long
def test_launches_are_separate_processes_and_are_not_repeated(runs: Path) -> None:
    answer = run_launches(runs, 3)
    records = [run.record for run in answer.runs]
    assert [record.spec["launch"] for record in records] == [0, 1, 2]
    assert [run.is_cached for run in answer.runs] == [True, True, False]
    assert len({record.record["provenance"]["process"] for record in records}) == 3
    seconds = sorted(record.record["summary"]["epoch_seconds_median"] for record in records)
    assert answer.epoch_seconds == seconds[1]
    (row,) = (row for block in answer.lay_out(View()) if isinstance(block, Table) for row in block.rows)
    assert (row["launches"], row["seconds"], row["interval"]) == (3, seconds[1], "")
    assert compute_median_interval(seconds) is None


@pytest.mark.long
def test_specs_share_blocks_launch_by_launch(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, *_) = run_launches(runs, 1).runs
    spec = first.record.parse_spec()
    other = spec.model_copy(update={"model": spec.model.model_copy(update={"hidden": 8})})
    files = [tmp_path / name for name in ("one.json", "other.json")]
    for file, each in zip(files, (spec, other), strict=True):
        file.write_text(canonical_json(each.model_dump(mode="json")))
    capsys.readouterr()
    words = ["run", "--launches", "2", "--out", str(tmp_path / "runs"), "--json", "--spec", *map(str, files)]
    assert main(words) == 0
    records = json.loads(capsys.readouterr().out)
    provenance = [record["provenance"] for record in records]
    assert [each["position"] for each in provenance] == [0, 1, 0, 1]
    assert (
        records[0]["run_id"] == spec.run_id and records[2]["run_id"] != spec.run_id
    )  # each comes first once
    for key in ("block", "process"):
        names = [each[key] for each in provenance]
        assert names[0] == names[1] != names[2] == names[3]


def test_each_spec_comes_first_in_turn() -> None:
    specs = [
        Spec.model_validate(
            {
                "strategy": "serial",
                "dataset": "tiny",
                "ranks": 1,
                "grid": {"p": 1},
                "machine": {"name": "local", "description": ""},
                "launch": launch,
                "seed": seed,
            }
        )
        for launch, seed in ((5, 0), (0, 1), (7, 0))
    ]
    order = [(spec.launch, spec.seed) for spec in list_launches(specs, 3)]
    assert order == [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]
    assert list_launches([], 3) == []


@pytest.mark.long
def test_small_graphs_are_built_for_runs_without_a_result(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks read the store instead of making the graph in memory; a run that has a result needs no store."""
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path / "datasets"))
    spec = run_launches(runs, 1).runs[0].record.folder / "spec.json"
    assert main(["run", "--spec", str(spec), "--build", "--out", str(runs)]) == 0
    assert not (tmp_path / "datasets").exists()
    assert main(["run", "--spec", str(spec), "--build", "--out", str(tmp_path / "runs")]) == 0
    (store,) = (tmp_path / "datasets" / "store").glob("tiny-sbm-*")
    (run,) = (tmp_path / "runs").glob("*/record.json")
    assert json.loads(run.read_text())["provenance"]["store_manifest"]
    assert (store / "manifest.json").is_file()
    capsys.readouterr()
    assert main(["run", "--strategy", "serial", "--dataset", "tiny-sbm", "--build"]) == 2
    assert "`harness data build`" in capsys.readouterr().err
