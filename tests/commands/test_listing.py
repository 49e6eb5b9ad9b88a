"""Lists: facts of classes and cards in tables, and grids that --grid accepts."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.cli.commands.listing import list_names, shorten_paper
from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.registry import load_strategy, registered_strategies
from harness.strategy.admit import parse_grid

ROOT = Path(__file__).parents[2]


def document(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["list", *words, "--json", "--root", str(ROOT)]) == 0
    return list(json.loads(capsys.readouterr().out))


def test_grids_are_those_of_the_strategy_and_are_accepted_again(capsys: pytest.CaptureFixture[str]) -> None:
    strategy = load_strategy("cagnet-2d")
    grids = strategy.grids(12)
    assert document(capsys, "grids", "--strategy", "cagnet-2d", "--ranks", "12") == grids
    assert main(["list", "grids", "--strategy", "cagnet-2d", "--ranks", "12"]) == 0
    _, table = capsys.readouterr().out.split("\n\n")
    _, *rows = table.splitlines()
    assert [parse_grid(strategy, row.split()[0], 12) for row in rows] == grids


def test_strategies_show_their_paper_their_result_and_their_models() -> None:
    frame = list_names("strategies").to_frame().set_index("name")
    assert set(frame.index) == {point.name for point in registered_strategies()}
    for name in ("plexus", "bns-gcn", "graphsaint-node", "pipegcn"):
        strategy, row = load_strategy(name), frame.loc[name]
        assert (row.promise, row.models) == (strategy.promise.value, strategy.models)
        assert row.trains_on == ("mini-batches" if strategy.mini_batches else "the full graph")
    (line,) = (line for line in str(list_names("strategies")).splitlines() if line.startswith("cagnet-2d "))
    assert line.split("  ")[-1] and "CAGNET (SC 2020)  " in line and "section" not in line


def test_one_strategy_is_described_with_its_parameters_and_nothing_else() -> None:
    kind = load_strategy("scalegnn")
    title, *lines = str(list_names("strategies", strategy="scalegnn")).splitlines()
    assert title == f"scalegnn: {(kind.__doc__ or '').splitlines()[0]}"
    told = [line.split()[0] for line in lines if line.startswith("strategy.params.")]
    assert told == [f"strategy.params.{name}" for name in kind.Params.model_fields]


@pytest.mark.parametrize(
    ("paper", "short"),
    [
        ("CAGNET (SC 2020), section IV-B", "CAGNET (SC 2020)"),
        ("Plexus (SC 2025)", "Plexus (SC 2025)"),
        ("none: RDM's plans, CAGNET's needed rows", "none"),
        ("", ""),
    ],
)
def test_paper_is_shortened_to_its_name_and_year(paper: str, short: str) -> None:
    assert shorten_paper(paper) == short


def test_experiments_count_the_runs_that_they_expand_to(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in document(capsys, "experiments")}
    for name in ("smoke", "cagnet-figure-2"):
        experiment = load_experiment(ROOT / "workflows" / "experiments" / f"{name}.yaml")
        assert rows[name]["laptop"] == len(expand(ROOT, experiment, any_grid=True))
    assert rows["cagnet-figure-2"]["paper"] == "cagnet" and rows["smoke"]["paper"] is None


def test_graphs_show_the_counts_of_their_cards(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in document(capsys, "datasets")}
    reddit = rows["reddit"]
    assert (reddit["vertices"], reddit["edges"], reddit["features"], reddit["classes"]) == (
        *(232965, (114848857 - 232965) // 2, 602, 41),
    )
    assert rows["tiny-sbm"]["built"] in ("in memory", "yes") and rows["tiny-sbm"]["vertices"] == 307


def test_an_unreadable_card_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datasets" / "catalog").mkdir(parents=True)
    machines = tmp_path / "config" / "machines"
    machines.mkdir(parents=True)
    (machines / "fine.yaml").write_text("description: a machine\n")
    (machines / "wrong.yaml").write_text("wheels: 4\n")
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    assert main(["list", "machines"]) == 0
    out = capsys.readouterr().out
    assert "a machine" in out and "wrong" in out
    assert main(["list", "machines", "--why"]) == 0
    assert "wheels" in capsys.readouterr().out
