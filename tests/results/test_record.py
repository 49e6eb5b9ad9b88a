"""A run folder is whole or absent, whatever happens while it is written, and says so when it cannot be read."""

import errno
import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from harness.base import files
from harness.base.errors import RunError, UserError
from harness.results import record
from harness.results.parquet import SCHEMA_KEY
from harness.results.record import read_record, write_record
from harness.results.schema import RUN_TABLES
from harness.results.table_schema import EARLIER_SCHEMA, RECORD_SCHEMA
from tests.folder_contents import read_files

FILES = sorted([*(f"{name}.parquet" for name in RUN_TABLES), "record.json", "spec.json"])


@pytest.fixture
def spec(synthetic: SimpleNamespace) -> Any:
    return synthetic.make_spec("cagnet-1d", "tiny", {"p": 2})


def test_written_data_is_read_back(synthetic: SimpleNamespace, spec: Any, tmp_path: Path) -> None:
    tables = synthetic.make_tables(spec, 1.0, 0.1)
    told = synthetic.make_record(spec, tables)
    folder = write_record(tmp_path, spec.model_dump(mode="json"), told, tables)
    assert folder == tmp_path / spec.run_id
    assert sorted(path.name for path in folder.iterdir()) == FILES
    back = read_record(folder)
    assert back.spec == spec.model_dump(mode="json")
    assert back.record == {"schema": RECORD_SCHEMA, **told}
    for name, frame in tables.items():
        recorded = back.rows(name).to_pandas()[list(frame)]
        pd.testing.assert_frame_equal(recorded, frame, check_dtype=False)
        table = back.table(name)
        assert list(table) == RUN_TABLES[name].names
        for column in RUN_TABLES[name].columns:
            assert table[column.name].equals(
                back.rows(name).to_pandas()[column.recorded_name].astype(column.dtype)
            )


def test_record_of_the_earlier_schema_is_read_by_the_names_of_today(
    synthetic: SimpleNamespace, spec: Any, tmp_path: Path
) -> None:
    folder = synthetic.write_ok(tmp_path, spec, 1.0)
    today = read_record(folder)
    runs, tables = today.make_runs_row(), {name: today.table(name) for name in RUN_TABLES}
    text = (folder / "record.json").read_text().replace(f'"schema": {RECORD_SCHEMA}', '"schema": 1')
    for name, earlier in (("elements_received", "words_received"), ("elements_payload", "words_payload")):
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{earlier}"')
    (folder / "record.json").write_text(text)
    names = {"rank_id": "rank", "elements_payload": "words_payload", "elements_received": "words_received"}
    for path in folder.glob("*.parquet"):
        rows = pq.read_table(path)
        rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
        pq.write_table(rows.replace_schema_metadata({SCHEMA_KEY: str(EARLIER_SCHEMA)}), path)
    read = read_record(folder)
    assert read == today
    pd.testing.assert_frame_equal(read.make_runs_row(), runs)
    for name, table in tables.items():
        pd.testing.assert_frame_equal(read.table(name), table)


def test_files_in_memory_are_read_as_files_on_disk_are(
    synthetic: SimpleNamespace, spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = synthetic.write_ok(tmp_path, spec, 1.0)
    contents = read_files(folder)
    on_disk, in_memory = read_record(folder), read_record(Path("elsewhere"), contents)
    assert in_memory.record == on_disk.record and in_memory.spec == on_disk.spec
    for name in RUN_TABLES:
        assert in_memory.rows(name).equals(on_disk.rows(name))
    lacking = {name: data for name, data in contents.items() if name != "memory.parquet"}
    assert not len(read_record(Path("elsewhere"), lacking).rows("memory"))
    with pytest.raises(UserError, match=r"elsewhere is not a run folder: spec\.json: No such file"):
        read_record(Path("elsewhere"), {"record.json": contents["record.json"]})
    monkeypatch.setattr(record, "MAX_BYTES", 9)
    with pytest.raises(UserError, match="it has more than 9 bytes"):
        read_record(Path("elsewhere"), contents)


def test_a_run_that_failed_early_has_no_rows(synthetic: SimpleNamespace, spec: Any, tmp_path: Path) -> None:
    folder = synthetic.write_failed(tmp_path, spec, "oom", "MemoryError", "no memory")
    assert sorted(path.name for path in folder.iterdir()) == ["record.json", "spec.json"]
    assert read_record(folder).table("ledger").empty


def test_a_loss_that_is_no_number_is_null(synthetic: SimpleNamespace, spec: Any, tmp_path: Path) -> None:
    folder = synthetic.write_ok(tmp_path, spec, 1.0, summary={"final_loss": float("nan"), "epochs": 3})
    assert json.loads((folder / "record.json").read_text())["summary"] == {"final_loss": None, "epochs": 3}


def test_a_new_record_replaces_the_old(synthetic: SimpleNamespace, spec: Any, tmp_path: Path) -> None:
    synthetic.write_failed(tmp_path, spec, "failed", "Exit", "first")
    synthetic.write_ok(tmp_path, spec, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == [spec.run_id]
    assert read_record(tmp_path / spec.run_id).record["status"] == "ok"


@pytest.mark.parametrize("step", range(len(FILES) + 1))
@pytest.mark.parametrize("before", [True, False])
def test_a_write_that_breaks_off_leaves_what_was_there(
    step: int,
    before: bool,
    synthetic: SimpleNamespace,
    spec: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is full at the n-th file, or (last step) when the whole folder is to be put in its place."""
    if before:
        synthetic.write_failed(tmp_path, spec, "failed", "Exit", "first")
    there, done = read_files(tmp_path), []

    def full(path: Path, data: bytes) -> None:
        done.append(path)
        if len(done) > step:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(data)

    rename = Path.rename

    def stuck(path: Path, target: Path) -> Path:
        if (
            path.name.endswith(".part")
            and (path / "record.json").stat().st_size > 0
            and len(done) == len(FILES)
        ):
            done.append(path)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return rename(path, target)

    monkeypatch.setattr(record, "write_synced", full)
    monkeypatch.setattr(Path, "rename", stuck)
    with pytest.raises(RunError, match=r"could not be written.*Free some space"):
        synthetic.write_ok(tmp_path, spec, 1.0)
    assert read_files(tmp_path) == there


@pytest.fixture
def tiny_files() -> Iterator[None]:
    """The kernel refuses to let any file grow beyond 1000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_refusal_of_the_kernel_is_explained(
    synthetic: SimpleNamespace, spec: Any, tmp_path: Path, tiny_files: None
) -> None:
    with pytest.raises(RunError, match="File too large") as told:
        synthetic.write_ok(tmp_path, spec, 1.0)
    assert "MiB are free" in str(told.value)
    assert "\n" not in str(told.value)
    assert read_files(tmp_path) == {}


def test_a_forbidden_folder_is_refused(synthetic: SimpleNamespace, spec: Any, forbidden: Path) -> None:
    with pytest.raises(UserError, match=r"forbidden.*Permission denied.*--out"):
        synthetic.write_ok(forbidden / "runs", spec, 1.0)


def test_a_file_where_a_folder_should_be_is_named(
    synthetic: SimpleNamespace, spec: Any, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="in the way"):
        synthetic.write_ok(tmp_path / "runs", spec, 1.0)


def test_a_record_of_another_schema_is_refused_with_the_way_out(
    synthetic: SimpleNamespace, spec: Any, tmp_path: Path
) -> None:
    folder = synthetic.write_ok(tmp_path, spec, 1.0)
    told = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**told, "schema": 7}))
    with pytest.raises(UserError, match=r"schema 7.*schema 2.*run its spec again.*0e7347b") as refusal:
        read_record(folder)
    assert spec.run_id in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("record.json", "{", "not whole"),
        ("record.json", "[]", "not whole"),
        ("record.json", '{"schema": 1}', "lacks run_id"),
        ("spec.json", "\xff", "not whole"),
        ("record.json", None, "not a run folder"),
        ("spec.json", None, "not a run folder"),
    ],
)
def test_a_damaged_record_is_refused_by_name(
    name: str, text: str | None, said: str, synthetic: SimpleNamespace, spec: Any, tmp_path: Path
) -> None:
    folder = synthetic.write_ok(tmp_path, spec, 1.0)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=said) as refusal:
        read_record(folder)
    assert spec.run_id in str(refusal.value)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_table_is_refused_by_name(
    keep: int, synthetic: SimpleNamespace, spec: Any, tmp_path: Path
) -> None:
    path = synthetic.write_ok(tmp_path, spec, 1.0) / "ledger.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"ledger\.parquet cannot be read.*run its spec again"):
        read_record(path.parent).table("ledger")


def test_a_table_of_another_program_is_refused(synthetic: SimpleNamespace, spec: Any, tmp_path: Path) -> None:
    path = synthetic.write_ok(tmp_path, spec, 1.0) / "epochs.parquet"
    pd.DataFrame({"epoch": [1]}).to_parquet(path)
    with pytest.raises(UserError, match="schema none"):
        read_record(path.parent).table("epochs")


def test_a_file_that_already_says_so_keeps_its_date(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    files.write_text(path, "same")
    date = path.stat().st_mtime_ns
    files.write_text(path, "same")
    assert path.stat().st_mtime_ns == date
    files.write_text(path, "more")
    assert path.read_text() == "more"
    assert [each.name for each in path.parent.iterdir()] == ["b.txt"]


def test_files_that_belong_together_change_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {tmp_path / "a": b"old", tmp_path / "b": b"old"}
    files.replace_files(both)
    write = files.write_synced

    def full(path: Path, data: bytes) -> None:
        if ".b." in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(files, "write_synced", full)
    with pytest.raises(RunError):
        files.replace_files(dict.fromkeys(both, b"new"))
    assert read_files(tmp_path) == {"a": b"old", "b": b"old"}


def test_files_have_the_rights_that_the_user_gives(
    synthetic: SimpleNamespace, spec: Any, tmp_path: Path
) -> None:
    """A temporary name must not leave its narrow rights behind: others read results on a shared file system."""
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "file").write_text("")
    folder = synthetic.write_ok(tmp_path, spec, 1.0)
    assert folder.stat().st_mode == plain.stat().st_mode
    assert (folder / "record.json").stat().st_mode == (plain / "file").stat().st_mode
