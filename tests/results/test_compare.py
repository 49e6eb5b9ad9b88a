"""Two sides of a comparison: the ratios are those of the epochs, doubt is said, and the cause is named."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace

import pandas as pd
import pytest

import harness
from harness.cli import main
from harness.results.collect import collect
from harness.results.loaded_tables import shorten_names
from harness.results.parquet import read_collected
from harness.results.schema import RUNS, TABLES

Side = Callable[[str, float, float], Path]
LAUNCHES = 8


@pytest.fixture
def side(synthetic: SimpleNamespace, tmp_path: Path) -> Side:
    """`side(name, talk, compute)`: tables of serial runs, and of cagnet-1d that communicates for so long."""

    def make(name: str, talk: float, compute: float = 1.0) -> Path:
        for launch in range(LAUNCHES):
            synthetic.write_ok(
                tmp_path / name, synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch), compute
            )
            spec = synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}, launch=launch)
            told = synthetic.provenance(commit=name * 8)
            synthetic.write_ok(tmp_path / name, spec, compute / 2, talk, provenance=told)
        synthetic.write_failed(
            tmp_path / name, synthetic.make_spec("g3", "tiny", {"p": 2}), "oom", "MemoryError", ""
        )
        collect(tmp_path / name, tmp_path / f"{name}-tables")
        return tmp_path / f"{name}-tables"

    return make


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["compare", *words, "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def test_the_same_tables_differ_in_nothing(side: Side, capsys: pytest.CaptureFixture[str]) -> None:
    """Failed runs are in no pair."""
    tables = str(side("a", 0.2))
    rows = compared(capsys, tables, tables)
    assert len(rows) == 2
    for row in rows:
        low, high = row["interval"]
        assert (row["ratio"], row["verdict"], row["differs"]) == (1.0, "within noise", {})
        assert row["launches"] == row["runs"] == [LAUNCHES, LAUNCHES]
        assert low < 1 < high
        assert all(a == b for _, a, b in row["parts"])


def test_a_slower_collective_is_found_and_named(side: Side, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side("a", 0.2), side("b", 0.6)
    rows = {str(row["label"]): row for row in compared(capsys, str(a), str(b))}
    serial, one_d = (
        next(row for label, row in rows.items() if name in label) for name in ("serial", "cagnet-1d")
    )
    medians = [
        read_collected(tables, "runs")
        .pipe(lambda runs: runs[(runs["strategy.name"] == "cagnet-1d") & (runs.status == "ok")])
        .epoch_seconds_median
        for tables in (a, b)
    ]
    assert one_d["ratio"] == pytest.approx(median(two / one for one, two in product(*medians)))
    low, high = one_d["interval"]
    assert 1 < low < one_d["ratio"] < high
    assert (serial["verdict"], one_d["verdict"]) == ("within noise", "slower")
    name, before, after = one_d["parts"][0]
    assert name == "convolve broadcast"
    assert after / before == pytest.approx(3, rel=0.2)
    assert one_d["differs"] == {"provenance.commit": ["a" * 8, "b" * 8]}
    assert main(["compare", str(a), str(b)]) == 0
    assert capsys.readouterr().out.startswith("2 pairs: 0 faster, 1 slower, 1 within noise (widest +-")


def test_two_runs_of_different_specs_are_compared_with_their_settings(
    side: Side, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = read_collected(side("a", 0.2), "runs")
    ids = [runs[runs["strategy.name"] == name].run_id.iloc[0] for name in ("serial", "cagnet-1d")]
    (row,) = compared(capsys, *(str(tmp_path / "a" / run) for run in ids))
    assert row["launches"] == [LAUNCHES, LAUNCHES] and row["verdict"] == "faster"
    assert row["differs"]["strategy.name"] == ["serial", "cagnet-1d"]
    assert row["elements_received"][0] == 0 < row["elements_received"][1]
    (again,) = compared(capsys, *(str(tmp_path / "a" / run) for run in reversed(ids)))
    assert again["ratio"] == pytest.approx(1 / row["ratio"])


def test_two_launches_of_one_spec_are_compared_with_each_other(
    side: Side, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = read_collected(side("a", 0.2), "runs")
    ids = runs[runs["strategy.name"] == "serial"].run_id.iloc[:2]
    (row,) = compared(capsys, *(str(tmp_path / "a" / run) for run in ids))
    assert (row["launches"], row["verdict"], set(row["differs"])) == ([1, 1], "undecided", {"launch"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "nowhere"], "is not a run: it is not a run folder"),
        (["0123456789abcdef", "0123"], "is not a run: it is not a run folder"),
    ],
)
def test_invalid_side_of_a_comparison_is_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_sides_without_a_common_spec_are_refused(
    side: Side, synthetic: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for launch in range(2):
        synthetic.write_ok(tmp_path / "c", synthetic.make_spec("g3", "other", {"p": 1}, launch=launch), 1.0)
    collect(tmp_path / "c", tmp_path / "c-tables")
    assert main(["compare", str(side("a", 0.2)), str(tmp_path / "c-tables")]) == 2
    assert "no measured runs of the same spec" in " ".join(capsys.readouterr().err.split())


def test_load_gives_every_table_with_plain_names(side: Side) -> None:
    """The same values, and the subject of every row beside it."""
    tables = side("a", 0.2)
    loaded = harness.load(tables)
    runs = read_collected(tables, "runs")
    assert loaded.runs.strategy.tolist() == runs["strategy.name"].tolist()
    assert loaded.runs.hidden.tolist() == runs["model.hidden"].tolist()
    for name in TABLES:
        frame, raw = getattr(loaded, name), read_collected(tables, name)
        assert len(frame) == len(raw)
        assert {"strategy", "dataset", "ranks", "launch"} <= set(frame)
        assert not [column for column in frame if "." in column]
    seconds = loaded.ledger.groupby("strategy").seconds.sum()
    raw = read_collected(tables, "ledger").merge(runs, on="run_id").groupby("strategy.name").seconds.sum()
    pd.testing.assert_series_equal(seconds, raw, check_names=False)


def test_short_names_are_unique_and_keep_those_without_a_part() -> None:
    short = shorten_names(RUNS.names)
    assert len(set(short.values())) == len(RUNS.names)
    assert all(short[name] == name for name in RUNS.names if "." not in name)
    assert short["strategy.name"] == "strategy" and short["training.epochs"] == "training_epochs"


def answers_of_a_page(page: str) -> list[object]:
    """The values of the expressions in the Python blocks of a page, executed in order where the reader would be."""
    names: dict[str, object] = {}
    values = []
    for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        for line in ast.parse(block).body:
            if isinstance(line, ast.Expr):
                values.append(eval(ast.unparse(line), names))
            else:
                exec(ast.unparse(line), names)
    return values


def test_the_expressions_of_the_page_answer_their_questions(
    side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judge: sums, maxima and means over the plain rows of the tables."""
    page = (Path(__file__).parents[2] / "docs/tutorials/read-the-tables.md").read_text()
    tables = side("a", 0.2)
    (tmp_path / "results").symlink_to(tables)
    monkeypatch.chdir(tmp_path)
    time, received, failed, scaling, losses = answers_of_a_page(page)

    runs = {row["run_id"]: row for row in read_collected(tables, "runs").to_dict("records")}
    sums, arrived = defaultdict[object, float](float), defaultdict[object, float](float)
    for row in read_collected(tables, "ledger").to_dict("records"):
        run = runs[row["run_id"]]
        if row["epoch"] >= 0:
            who = run["strategy.name"], run["ranks"]
            sums[(*who, row["phase"], row["op"])] += row["seconds"]
            arrived[(*who, row["epoch"], row["rank_id"])] += row["elements_received"]
    assert time.to_dict() == pytest.approx(sums)
    most = {
        who: max(n for (*each, _, _), n in arrived.items() if tuple(each) == who)
        for who in received.to_dict()
    }
    assert received.to_dict() == pytest.approx(most)
    assert len(most) == 2
    assert failed.to_numpy().tolist() == [["g3", 2, "oom", "MemoryError", "", ""]]

    ok = [run for run in runs.values() if run["status"] == "ok"]
    for (ranks, strategy), seconds in scaling.stack().dropna().items():
        medians = [
            run["epoch_seconds_median"]
            for run in ok
            if (run["strategy.name"], run["ranks"]) == (strategy, ranks)
        ]
        assert seconds == pytest.approx(mean(medians))
    assert set(losses) == {"serial", "cagnet-1d"}
    by_epoch = read_collected(tables, "epochs").groupby("epoch").loss
    assert (losses.max(axis=1) == by_epoch.max()).all()
    names = set(re.findall(r"`tables\.(\w+)`", page))
    assert {"runs", "failures", "epochs", "ledger"} <= names <= set(TABLES)
    assert len(pd.read_parquet("results/runs.parquet")) == len(runs)
