"""`harness.load()`: documented tables, short names that hide nothing of a data frame, and clear errors."""

import ast
import inspect
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import harness
from harness.results import loaded_tables
from harness.results.collect import collect
from harness.results.loaded_tables import LoadedTables
from harness.results.record import read_record
from harness.results.schema import TABLES

STARTED = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)


@pytest.fixture(scope="module")
def folder(synthetic: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collected tables of a run, of one whose label and message are HTML, and of one with odd times."""
    folder = tmp_path_factory.mktemp("loaded")
    synthetic.write_ok(folder / "runs", synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}), 0.5, 0.1)
    failing = synthetic.make_spec("plexus", "tiny", {"x": 2, "y": 1, "z": 1})
    synthetic.write_failed(folder / "runs", failing, "failed", "ValueError", "<script>alert(1)</script>")
    for launch, started in enumerate((None, 0.25, 253_402_300_799.0), start=1):
        told = synthetic.provenance(started=started)
        spec = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch)
        synthetic.write_ok(folder / "runs", spec, 1.0, provenance=told)
    collect(folder / "runs", folder)
    return folder


@pytest.fixture(scope="module")
def tables(folder: Path) -> LoadedTables:
    return harness.load(folder)


def test_no_column_hides_an_attribute_of_data_frames(tables: LoadedTables) -> None:
    for name in TABLES:
        for column in getattr(tables, name):
            assert not hasattr(pd.DataFrame, column), f"{name}.{column}"


def test_every_table_is_an_attribute_with_a_documentation(tables: LoadedTables) -> None:
    body = ast.parse(inspect.getsource(LoadedTables)).body[0].body  # type: ignore[attr-defined]
    documented = {
        one.target.id
        for one, other in pairwise(body)
        if isinstance(one, ast.AnnAssign) and isinstance(other, ast.Expr)
    }
    assert documented == {"folder", *TABLES}
    assert set(TABLES) <= set(dir(tables))
    assert "LoadedTables" in str(inspect.signature(harness.load).return_annotation)


def test_an_unknown_table_is_refused_with_the_names_of_all_tables(tables: LoadedTables) -> None:
    with pytest.raises(AttributeError, match=r"'run' is not a table\. The tables are runs, failures, epochs"):
        tables.run  # type: ignore[attr-defined]  # noqa: B018


def test_times_are_timestamps_in_utc_in_frames_and_in_files(tables: LoadedTables, folder: Path) -> None:
    for runs, name in (
        (tables.runs, "started"),
        (pd.read_parquet(folder / "runs.parquet"), "provenance.started"),
    ):
        started = runs.sort_values(["ranks", "launch"])[name]
        assert str(started.dtype) == "datetime64[us, UTC]"
        first, *rest = started[runs.status == "ok"].tolist()
        assert pd.isna(first)
        assert rest[0] == pd.Timestamp(250, unit="ms", tz="UTC")
        assert rest[1].year == 9999
        assert rest[2].to_pydatetime() == STARTED


def test_a_record_becomes_its_row_of_the_table_runs(tables: LoadedTables, folder: Path) -> None:
    for run_id in tables.runs.run_id:
        row = read_record(folder / "runs" / run_id).to_frame()
        same = pd.DataFrame(tables.runs[tables.runs.run_id == run_id]).reset_index(drop=True)
        pd.testing.assert_frame_equal(row, same)


def test_failures_have_the_subject_of_their_runs(tables: LoadedTables) -> None:
    (failure,) = tables.failures.to_dict("records")
    assert (failure["strategy"], failure["ranks"], failure["status"]) == ("plexus", 2, "failed")
    assert (failure["error"], failure["rank_id"]) == ("ValueError", 3)
    assert not [column for column in tables.runs if "error" in column or "trace" in column]


def test_the_text_lists_every_table_with_its_rows_and_columns(tables: LoadedTables) -> None:
    lines = [line.split() for line in repr(tables).splitlines()[1:]]
    assert [line[0] for line in lines] == list(TABLES)
    for name, rows, _, columns, _ in lines:
        frame = getattr(tables, name)
        assert (int(rows.replace(",", "")), int(columns)) == frame.shape


def test_the_html_shows_first_rows_and_escapes_their_texts(tables: LoadedTables) -> None:
    html = tables._repr_html_()
    for name in TABLES:
        assert f"<b>{name}</b>: {len(getattr(tables, name)):,} row" in html
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<table") == len(TABLES)
    ledger = html.partition("<b>ledger</b>")[2].partition("</table>")[0]
    assert ledger.count("<tr") == 1 + loaded_tables.HEAD_ROWS < len(tables.ledger)
