"""Reads and writes the records of runs: folders that are complete or absent.

A folder holds spec.json, record.json and the tables of the run. A new record replaces the old record of the same run
only once it is complete.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.documents import parse_json
from harness.base.errors import UserError
from harness.base.files import (
    SCRATCH_NAMES,
    UNFINISHED,
    atomic_folder,
    is_abandoned,
    list_complete_folders,
    list_leftovers,
    read_regular_file,
    remove_folder,
    write_synced,
)
from harness.base.untrusted import redact_all
from harness.base.validation import validate
from harness.results.run_row import RunRows, make_checked_rows
from harness.results.schema import RUN_TABLES, RUNS, SOURCES, STATUSES
from harness.results.table_schema import EARLIER_SCHEMA, RECORD_SCHEMA
from harness.spec.spec import Spec, digest

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

    from harness.results.consistency import RunTables

MAX_BYTES = 1 << 24
"""The maximum size of spec.json and of record.json."""
EARLIER_NAMES = {column.earlier: column.name for column in RUNS.columns if column.earlier}
WAY_OUT = "Move {folder} away and run its spec again: `harness run --spec FILE`."


@dataclass(frozen=True)
class Record:
    """The record in a run folder. Its tables are read on request."""

    folder: Path
    spec: dict[str, Any]
    record: dict[str, Any]
    table_rows: RunRows = field(repr=False, compare=False)
    """The rows of the run in the tables `runs` and `failures`."""
    contents: Mapping[str, bytes] | None = field(default=None, repr=False, compare=False)
    """The content of the files of the folder, by name, if they are in memory and not on disk."""

    @property
    def epoch_seconds(self) -> float | None:
        """The median time of an epoch without the warm-up; None if no epoch was timed."""
        seconds: float | None = self.record["summary"].get("epoch_seconds_median")
        return seconds

    @property
    def ended(self) -> float:
        """When the run ended; if the record does not contain it, when the record was written."""
        finished = self.record["provenance"].get("finished")
        return float(finished) if finished is not None else (self.folder / "record.json").stat().st_mtime

    @property
    def bytes(self) -> int:
        """The total size of all files in the folder."""
        total = 0
        for path in self.folder.rglob("*"):
            with suppress(OSError):  # it may have been removed meanwhile
                status = path.lstat()
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
        return total

    def parse_spec(self) -> Spec:
        """Return the validated spec. Raises UserError if keys are missing, as in records of other programs."""
        try:
            return validate(Spec, self.spec, f"{self.folder} holds no whole record: its spec")
        except UserError as error:
            if self.record["source"] == "external":
                raise UserError(
                    f"{self.folder} is the record of another program's run, whose log does not show all settings, so "
                    "the harness cannot repeat or emulate it."
                ) from None
            raise UserError(f"{error} {WAY_OUT.format(folder=self.folder)}") from None

    def to_frame(self) -> "pd.DataFrame":
        """Return the run as a row of the table `runs`, with the column names of `harness.load()`."""
        from harness.results.loaded_tables import shorten_names

        return self.make_runs_row().rename(columns=shorten_names(RUNS.names))

    def make_runs_row(self) -> "pd.DataFrame":
        """Return the row of the table `runs`."""
        import pandas as pd

        from harness.results.consistency import count_columns
        from harness.results.parquet import conform_frame

        row = {**self.table_rows.run, "origin": "", **count_columns(self.read_tables())}
        return conform_frame(pd.DataFrame([row]), RUNS)

    def table(self, name: str) -> "pd.DataFrame":
        """Return a table of the run with the columns of docs/reference/tables.md; empty if the run did not write it."""
        from harness.results.parquet import to_pandas

        return to_pandas(self.rows(name), RUN_TABLES[name])

    def columns(self, name: str) -> "dict[str, NDArray[Any]]":
        """Return the columns of a table of the run as arrays."""
        from harness.results.parquet import to_array

        rows = self.rows(name)
        return {column: to_array(rows[column]) for column in rows.column_names}

    def read_tables(self) -> "RunTables":
        """Read all tables, as arrays. Raises UserError if one is damaged or has another schema."""
        from harness.results.consistency import make_arrays

        return make_arrays(self.spec, self.record, {name: self.rows(name) for name in RUN_TABLES})

    def rows(self, name: str) -> "pa.Table":
        """Return the rows of a table as an arrow table."""
        from harness.results.parquet import arrow_schema, read_table

        table, path = RUN_TABLES[name], self.folder / f"{name}.parquet"
        if not (os.path.lexists(path) if self.contents is None else path.name in self.contents):
            return arrow_schema(table).empty_table()
        content = self.contents[path.name] if self.contents else None
        return read_table(path, table, WAY_OUT.format(folder=self.folder), content)


def write_record(
    runs: Path,
    spec: Mapping[str, Any],
    record: Mapping[str, Any],
    tables: Mapping[str, "pd.DataFrame | dict[str, Any]"],
) -> Path:
    """Write the folder of a run under `runs`, named by its run id, and return it. Empty tables have no file.

    A table is a frame, or lists or arrays by column.
    Records are published, so secrets in their texts are redacted.
    """
    from harness.results.parquet import columns_to_arrow, serialize_table, to_arrow

    assert record["status"] in STATUSES and record["source"] in SOURCES, record
    files = {
        "spec.json": _to_json(spec),
        "record.json": _to_json(redact_all({"schema": RECORD_SCHEMA, **record})),
    }
    for name, columns in tables.items():
        table = RUN_TABLES[name]
        rows = columns_to_arrow(columns, table) if isinstance(columns, dict) else to_arrow(columns, table)
        if rows.num_rows:
            files[f"{name}.parquet"] = serialize_table(rows, table)
    folder = runs / str(record["run_id"])
    with atomic_folder(folder, "record.json", replace=True) as partial:
        for name, data in files.items():
            write_synced(partial / name, data)
    return folder


def read_record(folder: Path, contents: Mapping[str, bytes] | None = None) -> Record:
    """Read the record of a run folder. Raises UserError if it is damaged or has another schema.

    `contents` is what the files of the folder have, by name, if they are in memory and not on disk.
    """
    record, spec = (_read_json(folder / name, contents) for name in ("record.json", "spec.json"))
    way_out = WAY_OUT.format(folder=folder)
    if record.get("schema") == EARLIER_SCHEMA:
        record = _rename_earlier(record)
    if record.get("schema") != RECORD_SCHEMA:
        raise UserError(
            f"{folder} was written with schema {record.get('schema', 'none')}, and this harness reads schema "
            f"{RECORD_SCHEMA}. "
            f"{way_out} To read it as it is, check out the commit that wrote it"
            f"{_describe_commit(record)}."
        )
    try:
        rows = make_checked_rows(spec, record)
    except ValueError as reason:
        raise UserError(f"{folder} holds no whole record: {reason}. {way_out}") from None
    return Record(folder, spec, record, rows, contents)


def _rename_earlier(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the earlier schema with the names of today."""
    summary = record.get("summary")
    if isinstance(summary, dict):
        record["summary"] = {EARLIER_NAMES.get(name, name): value for name, value in summary.items()}
    return {**record, "schema": RECORD_SCHEMA}


def read_records(folders: Iterable[Path]) -> tuple[list[Record], list[UserError]]:
    """Read the records of run folders. Returns those that can be read, and the errors of the others.

    A folder must have the name of its run, because a copy under another name would count twice. A folder that is
    replaced meanwhile is read again, and one that is removed meanwhile is skipped.
    """
    records, refused = [], []
    for folder in folders:
        try:
            records.append(check_name(read_record(folder)))
        except UserError:
            try:
                records.append(check_name(read_record(folder)))
            except UserError as error:
                if os.path.lexists(folder):
                    refused.append(error)
    return records, refused


def check_name(record: Record) -> Record:
    """Return the record. Raises UserError unless its folder has the name of its run."""
    run_id, folder = record.record["run_id"], record.folder
    if run_id != folder.absolute().name:
        raise UserError(
            f"{folder} holds the record of the run {run_id}, so it is a copy. Name it {run_id}, or move it out of "
            f"{folder.parent}."
        )
    return record


def describe_refused(refused: Sequence[UserError]) -> str:
    """Return a sentence about the folders that were left out; empty if there are none."""
    if not refused:
        return ""
    if len(refused) == 1:
        return f"1 folder was left out: {refused[0]}"
    return f"{len(refused)} folders were left out. The first: {refused[0]}"


# Runs by their ids, and the removal of runs.

MIN_PREFIX, MAX_LISTED = 4, 5
"""The minimum length of an abbreviated id, and the maximum number of ids that an error lists."""


def find_run(runs: Path, name: str) -> Path:
    """Find a run folder by its path, or by its id under `runs` or an unambiguous prefix of it."""
    if (Path(name) / "record.json").is_file():
        return Path(name)
    ids = [folder.name for folder in list_complete_folders(runs) if (folder / "record.json").is_file()]
    matching = [run_id for run_id in ids if run_id.startswith(name)] if len(name) >= MIN_PREFIX else []
    if name in ids or len(matching) == 1:
        return runs / (name if name in ids else matching[0])
    if matching:
        raise UserError(
            f"{name} is the beginning of {len(matching)} run ids under {runs}: {_label_ids(runs, matching)}. "
            "Give more characters of one of them."
        )
    near = get_close_matches(name, ids, MAX_LISTED, 0.4) or ids
    some = f" Some are {_label_ids(runs, near)}." if near else ""
    raise UserError(
        f"{name} is not a run: it is not a run folder, and none of {len(ids)} run ids under {runs} begins with it. "
        f"Accepted are a folder, and {MIN_PREFIX} or more characters of an id, as `harness runs list` shows them.{some}"
    )


def _label_ids(runs: Path, ids: list[str]) -> str:
    """List ids with the labels of their runs, and the number of ids that are not listed."""
    records, _ = read_records(runs / run_id for run_id in ids[:MAX_LISTED])
    labels = {record.folder.name: f" ({record.record['label']})" for record in records}
    names = ", ".join(f"{run_id}{labels.get(run_id, '')}" for run_id in ids[:MAX_LISTED])
    return names + (f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else "")


def find_active_runs(runs: Path) -> set[str]:
    """Return the ids of runs that may be running or being written, according to scratch folders and hidden folders."""
    ids = set()
    for scratch in list_leftovers(runs.absolute().parent, SCRATCH_NAMES):
        if not is_abandoned(scratch):
            with suppress(OSError, UserError):
                spec = read_regular_file(scratch / "spec.json", MAX_BYTES)
                ids.add(digest(parse_json(spec, str(scratch))))
    for partial in list_leftovers(runs, UNFINISHED):
        if not is_abandoned(partial) and (name := re.match(r"\.([^.]+)\.", partial.name)):
            ids.add(name[1])
    return ids


def remove_run(record: Record) -> bool:
    """Remove a run folder, and return True. Links, folders with another name and newer records are kept."""
    folder = record.folder
    with suppress(UserError):
        same = read_record(folder) == record and record.record["run_id"] == folder.absolute().name
        if same and not folder.is_symlink():
            remove_folder(folder)
            return True
    return False


def make_json_safe(value: Any) -> Any:
    """Return `value` with null for non-finite numbers, and with escapes for NUL and lone surrogates."""
    if isinstance(value, Mapping):
        return {make_json_safe(str(key)): make_json_safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [make_json_safe(inner) for inner in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode().replace("\0", "\\0")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _to_json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(make_json_safe(data), indent=1, allow_nan=False) + "\n").encode()


def _read_json(path: Path, contents: Mapping[str, bytes] | None) -> dict[str, Any]:
    way_out = WAY_OUT.format(folder=path.parent)
    try:
        data = read_regular_file(path, MAX_BYTES) if contents is None else _take_content(contents, path.name)
    except OSError as error:
        raise UserError(
            f"{path.parent} is not a run folder: {path.name}: {error.strerror}. {way_out}"
        ) from None
    try:
        return parse_json(data, f"{path} is not whole: it")
    except UserError as error:
        raise UserError(f"{error} {way_out}") from None


def _take_content(contents: Mapping[str, bytes], name: str) -> bytes:
    """Return what a file has. Raises OSError as `read_regular_file` does."""
    if name not in contents:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    if len(contents[name]) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES:,} bytes", name)
    return contents[name]


def _describe_commit(record: Mapping[str, Any]) -> str:
    provenance = record.get("provenance")
    commit = provenance.get("commit") if isinstance(provenance, dict) else None
    return f" ({commit})" if commit else ""
