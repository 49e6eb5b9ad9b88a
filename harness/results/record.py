"""The record of one run: a folder that is whole or absent.

The folder holds spec.json, record.json and the run's tables. A new record replaces the old record of the same run only
once it is whole. How a run was launched and the meaning of its numbers do not matter.
"""

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

from harness.documents import parse_json
from harness.errors import UserError
from harness.files import (
    SCRATCH_NAMES,
    UNFINISHED,
    atomic_folder,
    complete_folders,
    is_abandoned,
    list_leftovers,
    read_regular_file,
    remove_folder,
    write_synced,
)
from harness.results.run_row import checked_row
from harness.results.schema import RUN_TABLES, SCHEMA, SOURCES, STATUSES
from harness.spec.spec import Spec, digest
from harness.untrusted import redact_all
from harness.validation import validate

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

LONGEST = 1 << 24
"""The most bytes of spec.json and of record.json."""
WAY_OUT = "Move {folder} away and run its spec again: `harness run --spec FILE`."


@dataclass(frozen=True)
class Record:
    """A run folder, read back; each of its tables is read on request."""

    folder: Path
    spec: dict[str, Any]
    record: dict[str, Any]
    row: dict[str, Any] = field(repr=False, compare=False)
    """The row of the table `runs`."""

    @property
    def ended(self) -> float:
        """The time at which the run ended; without one in the record, the time at which the record was written."""
        told = self.record["provenance"].get("finished")
        return float(told) if told is not None else (self.folder / "record.json").stat().st_mtime

    @property
    def bytes(self) -> int:
        """The size of all files of the folder."""
        sizes = 0
        for path in self.folder.rglob("*"):
            with suppress(OSError):  # it may be removed meanwhile
                status = path.lstat()
                sizes += status.st_size if stat.S_ISREG(status.st_mode) else 0
        return sizes

    def parsed_spec(self) -> Spec:
        """The spec of a run of this harness; the record of another program may lack keys, which is refused."""
        try:
            return validate(Spec, self.spec, f"{self.folder} holds no whole record: its spec")
        except UserError as error:
            raise UserError(f"{error} {WAY_OUT.format(folder=self.folder)}") from None

    def table(self, name: str) -> "pd.DataFrame":
        """One of the run's tables; without rows if the run did not get that far."""
        from harness.results.parquet import to_pandas

        return to_pandas(self.rows(name), RUN_TABLES[name])

    def rows(self, name: str) -> "pa.Table":
        """The rows of a table as they are stored."""
        from harness.results.parquet import arrow_schema, from_file

        table, path = RUN_TABLES[name], self.folder / f"{name}.parquet"
        if not path.exists() and not path.is_symlink():
            return arrow_schema(table).empty_table()
        return from_file(path, table, WAY_OUT.format(folder=self.folder))


def write_record(
    runs: Path, spec: Mapping[str, Any], record: Mapping[str, Any], tables: Mapping[str, "pd.DataFrame"]
) -> Path:
    """Writes and returns the folder of a run under `runs`, named by its run id. A table without rows has no file.

    A record is published, so secrets in its texts are left out, whatever log, message or command they came from.
    """
    from harness.results.parquet import to_arrow, to_bytes

    assert record["status"] in STATUSES and record["source"] in SOURCES, record
    files = {"spec.json": _json(spec), "record.json": _json(redact_all({"schema": SCHEMA, **record}))}
    for name, frame in tables.items():
        if frame.empty:
            continue
        table = RUN_TABLES[name]
        files[f"{name}.parquet"] = to_bytes([to_arrow(frame, table)], table)
    folder = runs / str(record["run_id"])
    with atomic_folder(folder, "record.json", replace=True) as partial:
        for name, data in files.items():
            write_synced(partial / name, data)
    return folder


def read_record(folder: Path) -> Record:
    """The record of a run folder; refused by name if damaged or of another schema."""
    record, spec = _read_json(folder / "record.json"), _read_json(folder / "spec.json")
    way_out = WAY_OUT.format(folder=folder)
    if record.get("schema") != SCHEMA:
        raise UserError(
            f"{folder} was written with schema {record.get('schema', 'none')}, and this harness reads schema {SCHEMA}. "
            f"{way_out} To read it as it is, check out the commit that wrote it"
            f"{_commit(record)}."
        )
    try:
        row = checked_row(spec, record)
    except ValueError as reason:
        raise UserError(f"{folder} holds no whole record: {reason}. {way_out}") from None
    return Record(folder, spec, record, row)


def read_records(folders: Iterable[Path]) -> tuple[list[Record], list[UserError]]:
    """The records of a folder of runs that can be read, and the refusals of all others.

    A folder has the name of its run: a copy under another name would count twice. A folder that is removed while it is
    read is neither a record nor a refusal, and one that is replaced is read again.
    """
    records, refused = [], []
    for folder in folders:
        try:
            records.append(_named_by_its_run(read_record(folder)))
        except UserError:
            try:
                records.append(_named_by_its_run(read_record(folder)))
            except UserError as error:
                if os.path.lexists(folder):
                    refused.append(error)
    return records, refused


def _named_by_its_run(record: Record) -> Record:
    run_id, folder = record.record["run_id"], record.folder
    if run_id != folder.absolute().name:
        raise UserError(
            f"{folder} holds the record of the run {run_id}, so it is a copy. Name it {run_id}, or move it out of "
            f"{folder.parent}."
        )
    return record


def left_out(refused: Sequence[UserError]) -> str:
    """A sentence about the folders whose records cannot be read; empty if all can."""
    if not refused:
        return ""
    if len(refused) == 1:
        return f"1 folder was left out: {refused[0]}"
    return f"{len(refused)} folders were left out. The first: {refused[0]}"


# Runs by their ids, and the removal of runs.

SHORTEST, CANDIDATES = 4, 5
"""The fewest characters that stand for an id, and the most ids that a refusal names."""


def find_run(runs: Path, name: str) -> Path:
    """The run folder that is named by its path, or by the beginning of its id under `runs` if only one begins so."""
    if (Path(name) / "record.json").is_file():
        return Path(name)
    ids = [folder.name for folder in complete_folders(runs) if (folder / "record.json").is_file()]
    begin = [run_id for run_id in ids if run_id.startswith(name)] if len(name) >= SHORTEST else []
    if name in ids or len(begin) == 1:
        return runs / (name if name in ids else begin[0])
    if begin:
        raise UserError(
            f"{name} is the beginning of {len(begin)} run ids under {runs}: {_labelled(runs, begin)}. "
            "Give more characters of one of them."
        )
    near = get_close_matches(name, ids, CANDIDATES, 0.4) or ids
    some = f" Some are {_labelled(runs, near)}." if near else ""
    raise UserError(
        f"{name} is no run: it is no run folder, and none of {len(ids)} run ids under {runs} begins with it. Accepted "
        f"are a folder, and {SHORTEST} or more characters of an id, as `harness runs list` shows them.{some}"
    )


def _labelled(runs: Path, ids: list[str]) -> str:
    """Some ids, each with the label of its run, and the number of those left out."""
    records, _ = read_records(runs / run_id for run_id in ids[:CANDIDATES])
    labels = {record.folder.name: f" ({record.record['label']})" for record in records}
    names = ", ".join(f"{run_id}{labels.get(run_id, '')}" for run_id in ids[:CANDIDATES])
    return names + (f" and {len(ids) - CANDIDATES} more" if len(ids) > CANDIDATES else "")


def runs_under_way(runs: Path) -> set[str]:
    """The ids of runs that processes, which may live, execute or write now: by scratch folders, and hidden folders."""
    ids = set()
    for scratch in list_leftovers(runs.absolute().parent, SCRATCH_NAMES):
        if not is_abandoned(scratch):
            with suppress(OSError, UserError):
                spec = read_regular_file(scratch / "spec.json", LONGEST)
                ids.add(digest(parse_json(spec, str(scratch))))
    for partial in list_leftovers(runs, UNFINISHED):
        if not is_abandoned(partial) and (name := re.match(r"\.([^.]+)\.", partial.name)):
            ids.add(name[1])
    return ids


def remove_run(record: Record) -> bool:
    """Removes a run folder, unless the folder is a link, has another name than its run, or has a newer record."""
    folder = record.folder
    with suppress(UserError):
        same = read_record(folder) == record and record.record["run_id"] == folder.absolute().name
        if same and not folder.is_symlink():
            remove_folder(folder)
            return True
    return False


def finite(value: Any) -> Any:
    """`value` with null for every number that JSON has no word for, and escapes for what is no text of UTF-8."""
    if isinstance(value, Mapping):
        return {finite(str(key)): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode().replace("\0", "\\0")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(finite(data), indent=1, allow_nan=False) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    way_out = WAY_OUT.format(folder=path.parent)
    try:
        data = read_regular_file(path, LONGEST)
    except OSError as error:
        raise UserError(f"{path.parent} is no run folder: {path.name}: {error.strerror}. {way_out}") from None
    try:
        return parse_json(data, f"{path} is not whole: it")
    except UserError as error:
        raise UserError(f"{error} {way_out}") from None


def _commit(record: Mapping[str, Any]) -> str:
    provenance = record.get("provenance")
    commit = provenance.get("commit") if isinstance(provenance, dict) else None
    return f" ({commit})" if commit else ""
