"""Collected tables of schema 1, which an earlier version wrote into schema_1/, are read under the new names."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow.parquet as pq
import pytest

import harness
from harness.errors import UserError
from harness.figures.drawing import draw_all
from harness.results.collect import collect
from harness.results.parquet import read_collected, read_consistent_table

OLD = Path(__file__).with_name("schema_1")
RENAMED = {
    "words_received": "elements_received",
    "words_payload": "elements_payload",
    "words_formula": "elements_payload_formula",
    "words_floor": "elements_bound",
    "rank": "rank_id",
}
MOVED = {
    "error.rank": "rank_id",
    "error.type": "error",
    "error.message": "message",
    "error.trace": "traceback",
    "error.origin": "began_in",
}
TIMES = ["provenance.started", "provenance.finished"]


@pytest.mark.parametrize("name", ["runs", "epochs", "ledger", "accuracy", "memory", "utilisation", "tape"])
def test_columns_have_the_same_values_under_their_new_names(name: str) -> None:
    raw, table = pq.read_table(OLD / f"{name}.parquet"), read_consistent_table(OLD, name)
    new_names = {old: RENAMED.get(old, old) for old in raw.column_names if old not in MOVED}
    added = set(table.column_names) - set(new_names.values())
    assert name != "runs" or "bytes_received" in added
    assert all(table[column].null_count == len(table) for column in added)
    assert set(new_names.values()) <= set(table.column_names)
    for old, new in new_names.items():
        if old not in TIMES:
            assert table[new].to_pylist() == raw[old].to_pylist()


def test_a_column_that_was_added_later_is_empty() -> None:
    runs = read_collected(OLD, "runs")
    assert set(runs.accuracy_by) == {""}
    assert runs.bytes_received.isna().all()


def test_seconds_become_times() -> None:
    runs = read_collected(OLD, "runs").set_index("run_id")
    ok = runs[runs.status == "ok"]
    assert set(ok["provenance.started"]) == {pd.Timestamp("2026-09-21 14:13:20", tz="UTC")}
    assert set(ok["provenance.finished"] - ok["provenance.started"]) == {pd.Timedelta(minutes=1)}


def test_columns_of_errors_become_the_table_failures() -> None:
    raw = pd.read_parquet(OLD / "runs.parquet")
    failed = raw[raw.status != "ok"]
    failures = read_collected(OLD, "failures")
    assert len(failed) == 1
    assert failures.run_id.tolist() == failed.run_id.tolist()
    for old, new in MOVED.items():
        assert failures[new].tolist() == failed[old].tolist()


def test_load_gives_all_tables() -> None:
    tables = harness.load(OLD)
    assert tables.failures.error.tolist() == ["MemoryError"]
    assert tables.ledger.groupby("strategy").elements_received.sum()["serial"] == 0
    assert tables.runs.elements_received.max() > 0


@pytest.mark.long
def test_figures_are_drawn(tmp_path: Path) -> None:
    assert draw_all(OLD, tmp_path)


def test_collecting_over_old_tables_gives_the_same_files_as_collecting_into_an_empty_folder(
    synthetic: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs are those of the old tables, so their rows are copied from there."""
    for name, value in (("WARMUP", 1), ("EPOCHS", 3)):
        monkeypatch.setitem(synthetic.write_ok.__globals__, name, value)
    runs, over, empty = (tmp_path / name for name in ("runs", "over", "empty"))
    synthetic.write_ok(runs, synthetic.make_spec("serial", "tiny", {"p": 1}), 1.0)
    synthetic.write_ok(runs, synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}), 0.5, 0.1)
    shutil.copytree(OLD, over)
    for out in (over, empty):
        collect(runs, out)
    for path in empty.iterdir():
        assert path.read_bytes() == (over / path.name).read_bytes()


def test_another_number_of_the_schema_is_refused(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    table = pq.read_table(tmp_path / "runs.parquet")
    for number in ("0", "3"):
        table = table.replace_schema_metadata({"harness.schema": number})
        pq.write_table(table, tmp_path / "runs.parquet")
        with pytest.raises(UserError, match=rf"has schema {number}, and this harness reads schema 2"):
            read_collected(tmp_path, "runs")


def test_a_table_of_schema_1_without_a_column_is_refused(tmp_path: Path) -> None:
    table = pq.read_table(OLD / "runs.parquet")
    pq.write_table(table.drop_columns(["error.type"]), tmp_path / "runs.parquet")
    for name in ("runs", "failures"):
        with pytest.raises(UserError, match=r"does not have the columns of schema 1.*harness collect"):
            read_collected(tmp_path, name)
