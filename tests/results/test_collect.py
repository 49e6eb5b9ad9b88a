"""The collected tables contain exactly the rows of all records, including failed runs."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.cli import main
from harness.cli.commands.evaluating import CollectAnswer, CollectRequest
from harness.results import record
from harness.results.collect import Collection, collect
from harness.results.parquet import read_collected
from harness.results.record import Record, read_record, write_record
from harness.results.schema import RUN_TABLES, RUNS, TABLES
from harness.results.table_schema import RECORD_SCHEMA
from harness.spec.spec import Spec, canonical_json


def show(collection: Collection, runs: Path) -> str:
    """Return what `harness collect` prints, with single spaces."""
    return " ".join(str(CollectAnswer(collection, CollectRequest(runs=(runs,)))).split())


@pytest.fixture(scope="module")
def specs(synthetic: SimpleNamespace) -> list[Spec]:
    """Three that run and one that does not."""
    return [
        synthetic.make_spec("serial", "tiny", {"p": 1}),
        synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}),
        synthetic.make_spec("plexus", "tiny", {"x": 2, "y": 1, "z": 1}, launch=1),
        synthetic.make_spec("cagnet-1d", "tiny", {"p": 4}),
    ]


@pytest.fixture
def runs(synthetic: SimpleNamespace, specs: list[Spec], tmp_path: Path) -> Path:
    """Their run folders, and what a killed writer leaves."""
    for spec in specs[:3]:
        synthetic.write_ok(tmp_path / "runs", spec, 1.0, 0.1)
    synthetic.write_failed(tmp_path / "runs", specs[3], "oom", "MemoryError", "out of\nmemory")
    (tmp_path / "runs" / ".0123.abcd.part").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("")
    return tmp_path / "runs"


def plan_of(specs: list[Spec], path: Path) -> Path:
    listed = [{"run_id": s.run_id, "label": s.label, "spec": s.model_dump(mode="json")} for s in specs]
    path.write_text(json.dumps({"schema": 2, "runs": listed}))
    return path


def test_there_is_one_row_a_run(runs: Path, specs: list[Spec], tmp_path: Path) -> None:
    collect(runs, tmp_path)
    table = read_collected(tmp_path, "runs").set_index("run_id")
    assert set(table.index) == {spec.run_id for spec in specs}
    row = table.loc[specs[2].run_id]
    assert row["strategy.name"] == "plexus"
    assert (row["grid"], row["grid.x"], row["grid.z"]) == ("x2y1z1", 2, 1)
    assert pd.isna(row["grid.p"])
    assert row["model.hidden"] == 128
    assert row.launch == 1
    assert row["provenance.host"] == "node17"
    assert json.loads(row["provenance.versions"])["torch"] == "2.13.0"
    assert pd.isna(row["accuracy_test"])
    assert row.extra == ""
    assert Spec.model_validate_json(row.spec) == specs[2]
    failed = table.loc[specs[3].run_id]
    assert failed.status == "oom"
    assert pd.isna(failed.epoch_seconds_median)


def test_failures_have_one_row_for_each_run_that_is_not_ok(
    runs: Path, synthetic: SimpleNamespace, specs: list[Spec], tmp_path: Path
) -> None:
    missing = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=7)
    collect(runs, tmp_path, plan_of([*specs, missing], tmp_path / "plan.json"))
    failures = read_collected(tmp_path, "failures").set_index("run_id")
    table = read_collected(tmp_path, "runs").set_index("run_id")
    assert set(failures.index) == {specs[3].run_id, missing.run_id} == set(table.index[table.status != "ok"])
    failed = failures.loc[specs[3].run_id]
    assert (failed.status, failed.rank_id, failed.error) == ("oom", 3, "MemoryError")
    assert (failed.message, failed.traceback, failed.began_in) == ("out of\nmemory", "Traceback: ...", "")
    never = failures.loc[missing.run_id]
    assert (never.status, never.error, pd.isna(never.rank_id)) == ("missing", "", True)


@pytest.mark.parametrize("name", list(RUN_TABLES))
def test_the_rows_of_all_runs_are_there(name: str, runs: Path, specs: list[Spec], tmp_path: Path) -> None:
    collect(runs, tmp_path)
    together = read_collected(tmp_path, name)
    assert list(together) == TABLES[name].names
    for spec in specs[:3]:
        mine = together[together.run_id == spec.run_id].drop(columns="run_id").reset_index(drop=True)
        written = pd.read_parquet(runs / spec.run_id / f"{name}.parquet")
        pd.testing.assert_frame_equal(mine, written, check_dtype=False)
    assert specs[3].run_id not in set(together.run_id)


def test_received_bytes_are_those_of_the_types_that_are_sent(
    synthetic: SimpleNamespace, specs: list[Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the rank and in the timed epoch with the most. A broadcast of 1000 elements in two bytes each, to rank 1."""
    spec = specs[1]
    tables = synthetic.make_tables(spec, 1.0, 0.1)
    ledger = tables["ledger"]
    ledger[["elements_payload", "elements_received", "bytes"]] = 0
    broadcast = ledger.op == "broadcast"
    ledger.loc[broadcast, ["elements_payload", "bytes"]] = 1000, 2000
    ledger.loc[broadcast & (ledger["rank_id"] == 1), "elements_received"] = 1000
    reduced = ledger.op == "all_reduce"
    ledger.loc[reduced, ["elements_payload", "elements_received", "bytes"]] = 10, 10, 40
    busiest = reduced & (ledger["rank_id"] == 1) & (ledger.epoch.isin((-1, 4)))
    ledger.loc[busiest, ["elements_payload", "elements_received", "bytes"]] = 30, 30, 120
    record = synthetic.make_record(spec, tables)
    write_record(tmp_path / "runs", spec.model_dump(mode="json"), record, tables)
    serial = synthetic.write_ok(tmp_path / "runs", specs[0], 1.0)
    synthetic.write_failed(tmp_path / "runs", specs[3], "oom", "MemoryError", "")
    expected = {specs[0].run_id: 0, spec.run_id: 2000 + 120}

    def collected() -> dict[str, float]:
        return collect(tmp_path / "runs", tmp_path).runs.set_index("run_id").bytes_received.dropna().to_dict()

    assert collected() == expected
    assert read_record(tmp_path / "runs" / spec.run_id).to_frame().bytes_received.tolist() == [2120]
    written = json.loads((serial / "record.json").read_text())
    (serial / "record.json").write_text(json.dumps(written | {"label": "again"}))
    read: set[str] = set()
    rows = Record.rows
    monkeypatch.setattr(
        Record, "rows", lambda record, name: read.add(record.folder.name) or rows(record, name)
    )
    assert collected() == expected
    assert read == {specs[0].run_id}, "the values of unchanged runs are taken from the existing tables"


def test_ok_run_below_its_lower_bound_is_listed_and_not_verified(
    runs: Path, specs: list[Spec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for spec, more in zip(specs[:3], (0.0, 0.0, 1.0), strict=True):
        file = runs / spec.run_id / "record.json"
        record = json.loads(file.read_text())
        record["summary"]["elements_bound"] = record["summary"]["elements_received"] + more
        file.write_text(json.dumps(record))
    (runs / specs[3].run_id).rename(tmp_path / "failed")
    told = collect(runs, tmp_path)
    assert told.failures.empty and not told.is_complete
    (contradictory,) = told.as_dict()["contradictory"]
    assert contradictory["run_id"] == specs[2].run_id
    assert "fewer than its lower bound" in contradictory["contradiction"]
    assert f"{specs[2].label} it received" in show(told, runs)
    command = ["collect", "--runs", str(runs), "--out", str(tmp_path)]
    assert (main(command), main([*command, "--verify"])) == (0, 1)
    assert "Records that contradict themselves" in capsys.readouterr().out
    (runs / specs[2].run_id).rename(tmp_path / "below")
    assert collect(runs, tmp_path).is_complete


def test_values_without_a_column_are_kept(
    synthetic: SimpleNamespace, specs: list[Spec], tmp_path: Path
) -> None:
    told = synthetic.provenance(placement=[0, 1], weather={"sky": "grey"})
    synthetic.write_ok(tmp_path / "runs", specs[0], 1.0, provenance=told)
    row = collect(tmp_path / "runs", tmp_path).runs.iloc[0]
    assert json.loads(row.extra) == {"provenance.placement": [0, 1], "provenance.weather.sky": "grey"}


def test_collecting_twice_changes_no_file(runs: Path, tmp_path: Path) -> None:
    collect(runs, tmp_path)
    dates = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    assert len(dates) == len(TABLES)
    collect(runs, tmp_path)
    assert dates == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}


def test_only_new_and_repeated_runs_are_read_again(
    synthetic: SimpleNamespace,
    runs: Path,
    specs: list[Spec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables are to the byte those of a first collection."""
    kept, fresh = tmp_path / "kept", tmp_path / "fresh"
    collect(runs, kept)
    new = synthetic.make_spec("plexus", "tiny", {"x": 1, "y": 2, "z": 1})
    synthetic.write_ok(runs, new, 2.0, 0.1)
    synthetic.write_ok(runs, specs[1], 3.0, 0.1)
    read, rows_of = set(), Record.rows

    def rows(record: Record, name: str) -> object:
        read.add(record.record["run_id"])
        return rows_of(record, name)

    monkeypatch.setattr(Record, "rows", rows)
    collect(runs, kept)
    assert read == {new.run_id, specs[1].run_id}
    collect(runs, fresh)
    for name in TABLES:
        assert (kept / f"{name}.parquet").read_bytes() == (fresh / f"{name}.parquet").read_bytes(), name


def test_a_plan_chooses_its_runs_and_names_those_that_are_missing(
    synthetic: SimpleNamespace, runs: Path, specs: list[Spec], tmp_path: Path
) -> None:
    absent = synthetic.make_spec("serial", "other", {"p": 1})
    collected = collect(runs, tmp_path, plan_of([specs[0], absent], tmp_path / "plan.json"))
    assert dict(zip(collected.runs.run_id, collected.runs.status, strict=True)) == {
        specs[0].run_id: "ok",
        absent.run_id: "missing",
    }
    assert not collected.is_complete
    assert absent.label in show(collected, runs)
    assert set(read_collected(tmp_path, "epochs").run_id) == {specs[0].run_id}
    row = collected.runs.set_index("run_id").loc[absent.run_id]
    assert row["dataset.name"] == "other"
    assert row.spec == canonical_json(absent.model_dump(mode="json"))


def test_failures_are_listed_with_their_cause(runs: Path, specs: list[Spec], tmp_path: Path) -> None:
    collected = collect(runs, tmp_path)
    assert not collected.is_complete
    assert show(collected, runs).startswith("4 runs collected: 3 ok, 1 oom; ")
    assert f"{specs[3].label} oom rank 3: MemoryError: out of memory" in show(collected, runs)
    told = collected.as_dict()
    assert told["runs"] == {"ok": 3, "oom": 1}
    assert [failure["run_id"] for failure in told["failures"]] == [specs[3].run_id]
    json.dumps(told)


def test_runs_that_all_succeeded_are_complete(runs: Path, specs: list[Spec], tmp_path: Path) -> None:
    assert collect(runs, tmp_path, plan_of(specs[:3], tmp_path / "plan.json")).is_complete


def test_runs_of_another_schema_are_left_out_by_name(runs: Path, specs: list[Spec], tmp_path: Path) -> None:
    for spec in specs[:2]:
        path = runs / spec.run_id / "record.json"
        path.write_text(path.read_text().replace(f'"schema": {RECORD_SCHEMA}', '"schema": 3'))
    collected = collect(runs, tmp_path)
    assert set(collected.runs.run_id) == {spec.run_id for spec in specs[2:]}
    assert not collected.is_complete
    reasons = " ".join(collected.as_dict()["left_out"])
    assert all(f"{spec.run_id} was written with schema 3" in reasons for spec in specs[:2])
    assert show(collected, runs).count("2 folders were left out. The first: ")


def test_runs_that_can_all_not_be_read_are_refused(runs: Path, specs: list[Spec], tmp_path: Path) -> None:
    for spec in specs:
        (runs / spec.run_id / "record.json").write_text("{")
    with pytest.raises(UserError, match=r"no run that can be read\. 4 folders were left out") as refusal:
        collect(runs, tmp_path)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.glob("*.parquet"))


def test_a_damaged_table_costs_the_row_of_its_run(runs: Path, specs: list[Spec], tmp_path: Path) -> None:
    (runs / specs[0].run_id / "ledger.parquet").write_bytes(b"PAR1")
    plan = plan_of(specs, tmp_path / "plan.json")
    collected = collect(runs, tmp_path, plan)
    assert collected.runs.set_index("run_id").status[specs[0].run_id] == "missing"
    assert "ledger.parquet cannot be read as a table" in collected.as_dict()["left_out"][0]
    assert specs[0].run_id not in set(read_collected(tmp_path, "epochs").run_id)


@pytest.mark.parametrize("moment", ["reading ", "collecting "])
def test_a_run_that_is_removed_meanwhile_is_neither_collected_nor_refused(
    moment: str, runs: Path, specs: list[Spec], tmp_path: Path
) -> None:
    """`harness runs prune` may remove it before its record is read, or before its tables are."""

    def remove(*said: object) -> None:
        if moment in str(said):
            shutil.rmtree(runs / specs[0].run_id, ignore_errors=True)

    collected = collect(runs, tmp_path, on_step=remove)
    assert set(collected.runs.run_id) == {spec.run_id for spec in specs[1:]}
    assert collected.refused == []
    assert specs[0].run_id not in set(read_collected(tmp_path, "epochs").run_id)


def test_a_run_that_is_replaced_while_it_is_read_is_read_again(
    runs: Path, specs: list[Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, aside = record.read_record, tmp_path / "aside"

    def replaced(folder: Path) -> record.Record:
        if folder.name != specs[0].run_id or aside.exists():
            return read(folder)
        aside.touch()
        folder.rename(tmp_path / folder.name)
        try:
            return read(folder)
        finally:
            (tmp_path / folder.name).rename(folder)

    monkeypatch.setattr(record, "read_record", replaced)
    collected = collect(runs, tmp_path)
    assert len(collected.runs) == len(specs) and collected.refused == []


@pytest.mark.parametrize("name", ["runs", "ledger"])
def test_tables_of_another_schema_are_refused_by_name(name: str, runs: Path, tmp_path: Path) -> None:
    collect(runs, tmp_path)
    path = tmp_path / f"{name}.parquet"
    pd.read_parquet(path).to_parquet(path)
    with pytest.raises(UserError, match=rf"{name}\.parquet has schema none.*harness collect"):
        read_collected(tmp_path, name)


def test_a_folder_that_is_no_run_is_left_out_by_name(runs: Path, tmp_path: Path) -> None:
    (runs / "old-things").mkdir()
    assert "old-things is not a run folder" in show(collect(runs, tmp_path), runs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read as JSON"),
        ("[]", "must be a mapping"),
        ('{"schema": 9, "runs": []}', "not a plan"),
    ],
)
def test_a_wrong_plan_is_refused(text: str | None, said: str, runs: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    if text is not None:
        plan.write_text(text)
    with pytest.raises(UserError, match=rf"plan\.json.*{said}.*harness plan"):
        collect(runs, tmp_path, plan)


@pytest.mark.parametrize("exists", [True, False])
def test_empty_collection_is_reported(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"runs.*harness run"):
        collect(tmp_path / "runs", tmp_path)


def test_a_forbidden_place_is_refused(runs: Path, forbidden: Path) -> None:
    with pytest.raises(UserError, match="Permission denied"):
        collect(runs, forbidden)


def test_no_column_of_the_runs_is_left_to_chance(runs: Path, tmp_path: Path) -> None:
    collect(runs, tmp_path)
    kinds: dict[str, Any] = {column.name: column.dtype for column in RUNS.columns}
    assert read_collected(tmp_path, "runs").dtypes.to_dict() == kinds


def test_collecting_small_tables_does_not_ask_for_free_memory(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "harness.results.parquet.find_available_bytes", lambda: pytest.fail("the system was asked")
    )
    assert len(collect(runs, tmp_path).runs) == 4
