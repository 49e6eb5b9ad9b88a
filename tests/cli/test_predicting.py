"""harness predict and harness advise, as a user types them: no store, no torch.distributed, no run."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.results.collect import collect

PLEXUS = [
    "predict",
    "--strategy",
    "plexus",
    "--dataset",
    "ogbn-products",
    "--machine",
    "perlmutter",
    "--from-card",
]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_predictions_are_a_row_for_each_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    page = answer(capsys, *PLEXUS, "--ranks", "4,64", "--set", "model.hidden=128")
    assert page.startswith("plexus on ogbn-products, perlmutter; sizes expected from its card")
    assert [line.split()[0] for line in page.splitlines()[2:]] == ["ranks", "4", "64"]
    assert "rates.spmm" in page or "links.node_gbs" in page


def test_the_best_grid_is_at_least_as_fast_as_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    first, best = (
        json.loads(answer(capsys, *PLEXUS, "--ranks", "16", "--json", *more))[0]["seconds"]["value"]
        for more in ([], ["--grid", "best"])
    )
    assert best <= first


def test_a_prediction_becomes_a_record_that_tables_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written twice it is one run; too large for the memory, it is out of memory."""
    for _ in range(2):
        answer(
            capsys, *PLEXUS, "--ranks", "4,8", "--set", "model.hidden=512", "--out", str(tmp_path / "runs")
        )
    runs = collect(tmp_path / "runs", tmp_path / "tables").runs
    assert runs.source.tolist() == ["predicted"] * 2
    assert set(runs.status) <= {"ok", "oom"}
    ledger = tmp_path / "tables" / "ledger.parquet"
    assert ledger.exists()


def test_out_of_memory_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "--strategy", "plexus", "--dataset", "ogbn-papers100m", "--machine", "g3-cluster"]
    page = answer(capsys, *asked, "--from-card", "--ranks", "4", "--out", str(tmp_path / "runs"))
    assert "out of memory" in page
    assert collect(tmp_path / "runs", tmp_path / "tables").runs.status.tolist() == ["oom"]


def test_a_machine_without_rates_is_refused_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "predict",
        "--strategy",
        "serial",
        "--dataset",
        "reddit",
        "--machine",
        "local-gpu",
        "--from-card",
    ]
    assert main(asked) == 2
    message = capsys.readouterr().err
    assert "local-gpu.yaml has no rates and no links" in message
    assert "harness doctor --calibrate" in message


def test_advice_ranks_strategies_and_says_what_limits_them(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["advise", "--dataset", "tiny-sbm", "--machine", "perlmutter", "--ranks", "2", "--from-card"]
    page = answer(capsys, *asked, "--accuracy", "exact")
    assert page.startswith("tiny-sbm on perlmutter, 2 ranks; sizes expected from its card")
    assert "The full graph, by the time of an epoch" in page
    assert "Within their intervals" in page or "No constant of the card alone" in page
    assert "pipegcn" not in page
    data = json.loads(answer(capsys, *asked, "--json"))
    times = [option["seconds"]["value"] for option in data["full_graph"]]
    assert times == sorted(times)
    assert data["mini_batch"]


def test_advice_leaves_out_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["advise", "--dataset", "tiny-sbm", "--machine", "perlmutter", "--ranks", "2", "--from-card"]
    page = answer(capsys, *asked, "--memory", "0.00001", "--accuracy", "exact")
    assert "too large" in page
    assert "The full graph" not in page


def test_tuning_sets_what_was_measured_beside_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    asked = [
        "advise",
        "--dataset",
        "tiny-sbm",
        "--ranks",
        "2",
        "--tune",
        "1",
        "--accuracy",
        "exact",
        "--json",
    ]
    (tuned,) = json.loads(answer(capsys, *asked))["tuned"]
    assert tuned["predicted"] > 0
    assert tuned["measured"] > 0
