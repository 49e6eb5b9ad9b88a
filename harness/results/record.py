"""The record of one run: a folder that is whole or absent.

The folder holds spec.json, record.json and the run's tables. A new record replaces the old record of the same run only
once it is whole. How a run was launched and the meaning of its numbers do not matter.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.files import whole_folder, write_synced
from harness.results.schema import RUN_TABLES, SCHEMA, SOURCES
from harness.results.statuses import STATUSES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

WAY_OUT = "Move {folder} away and run its spec again: `harness run --spec FILE`."


@dataclass(frozen=True)
class Record:
    """A run folder, read back; each of its tables is read on request."""

    folder: Path
    spec: dict[str, Any]
    record: dict[str, Any]

    def table(self, name: str) -> "pd.DataFrame":
        """One of the run's tables; without rows if the run did not get that far."""
        from harness.results.parquet import to_pandas

        return to_pandas(self.rows(name), RUN_TABLES[name])

    def rows(self, name: str) -> "pa.Table":
        """The rows of a table as they are stored."""
        from harness.results.parquet import arrow_schema, from_file

        table, path = RUN_TABLES[name], self.folder / f"{name}.parquet"
        if not path.is_file():
            return arrow_schema(table).empty_table()
        return from_file(path, table, WAY_OUT.format(folder=self.folder))


def write_record(
    runs: Path, spec: Mapping[str, Any], record: Mapping[str, Any], tables: Mapping[str, "pd.DataFrame"]
) -> Path:
    """Writes and returns the folder of a run under `runs`, named by its run id. A table without rows has no file."""
    from harness.results.parquet import to_arrow, to_bytes

    assert record["status"] in STATUSES and record["source"] in SOURCES, record
    files = {"spec.json": _json(spec), "record.json": _json({"schema": SCHEMA, **record})}
    for name, frame in tables.items():
        if frame.empty:
            continue
        table = RUN_TABLES[name]
        files[f"{name}.parquet"] = to_bytes([to_arrow(frame, table)], table)
    folder = runs / str(record["run_id"])
    with whole_folder(folder, "record.json", replace=True) as partial:
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
    lacking = [
        key for key in ("run_id", "label", "status", "source", "summary", "provenance") if key not in record
    ]
    if lacking:
        raise UserError(f"{folder / 'record.json'} is not whole: it lacks {', '.join(lacking)}. {way_out}")
    if record["status"] not in STATUSES:
        accepted = ", ".join(STATUSES)
        raise UserError(f"{folder} has the status {record['status']!r}; accepted are {accepted}. {way_out}")
    return Record(folder, spec, record)


def finite(value: Any) -> Any:
    """`value` with null for every number that JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(finite(data), indent=1, allow_nan=False) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    way_out = WAY_OUT.format(folder=path.parent)
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path.parent} is no run folder: {path.name}: {error.strerror}. {way_out}") from None
    except ValueError as error:
        raise UserError(f"{path} is not whole: {error}. {way_out}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not whole: it holds no keys. {way_out}")
    return data


def _commit(record: Mapping[str, Any]) -> str:
    provenance = record.get("provenance")
    commit = provenance.get("commit") if isinstance(provenance, dict) else None
    return f" ({commit})" if commit else ""
