"""Reads and writes tables as parquet files. Every file contains the number of its schema, which reading checks."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UserError
from harness.files import open_regular_file, replace_files
from harness.results.schema import (
    CLAIMS,
    INTEGER,
    NULLABLE,
    REAL,
    SCHEMA,
    TABLES,
    TEXT,
    TRUTH,
    TableSchema,
)
from harness.validation import clip_line

ROW_GROUP = 1 << 20
WORD = 8
"""The minimum size of a value in memory, in bytes."""
ALWAYS_FITS = 1 << 20
"""Tables of at most this size are read without a check of the free memory, which would take as long as reading."""
MARK_KEY = "harness.collected"
RECOLLECT = "`harness collect` makes the tables again from the run folders."

ARROW = {
    INTEGER: pa.int64(),
    NULLABLE: pa.int64(),
    REAL: pa.float64(),
    TEXT: pa.string(),
    TRUTH: pa.bool_(),
}


@lru_cache
def arrow_schema(table: TableSchema) -> pa.Schema:
    """Return the arrow schema of a table, with the number of the schema as metadata."""
    fields = [(column.name, ARROW[column.dtype]) for column in table.columns]
    return pa.schema(fields, metadata={"harness.schema": str(SCHEMA)})


def conform_frame(frame: pd.DataFrame, table: TableSchema) -> pd.DataFrame:
    """Return a frame with exactly the columns and types of `table`. Unknown or missing columns are a bug."""
    if frame.empty:
        frame = frame.reindex(columns=table.names)
    differing = set(map(str, frame)) ^ set(table.names)
    assert not differing, f"{table.name}: unknown or missing columns {sorted(differing)}"
    cast = {column.name: _cast(frame[column.name], column.dtype) for column in table.columns}
    return pd.DataFrame(cast, copy=False)


def _cast(values: "pd.Series[Any]", dtype: Any) -> "pd.Series[Any]":
    if dtype == TEXT:
        values = values if isinstance(values.dtype, pd.StringDtype) else values.astype(object)
        values = values.fillna("")
    cast: pd.Series[Any] = values.astype(dtype)
    return cast


def to_arrow(frame: pd.DataFrame, table: TableSchema) -> pa.Table:
    """Convert a frame to an arrow table with the columns and types of the schema."""
    schema = arrow_schema(table)
    rows = pa.Table.from_pandas(conform_frame(frame, table), schema, preserve_index=False)
    return rows.replace_schema_metadata(schema.metadata)


def serialize_table(parts: Iterable[pa.Table], table: TableSchema, mark: str = "") -> bytes:
    """Return the content of a parquet file with several parts, of which few are in memory at once.

    The tables of one collection share a mark.
    """
    buffer, schema = BytesIO(), arrow_schema(table)
    if mark:
        schema = schema.with_metadata({**schema.metadata, MARK_KEY: mark})
    with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for rows in _merge_parts(parts):
            writer.write_table(rows)
    return buffer.getvalue()


def to_pandas(rows: pa.Table, table: TableSchema) -> pd.DataFrame:
    """Convert an arrow table to a frame: the inverse of `to_arrow`."""
    return conform_frame(rows.to_pandas(), table)


def read_table(path: Path, table: TableSchema, way_out: str) -> pa.Table:
    """Read the rows of a file. Raises UserError, whose message ends with `way_out`, if that fails.

    The schema and the required memory are checked before any rows are read.
    """
    try:
        with open_regular_file(path) as opened, pq.ParquetFile(opened) as file:
            if reason := _find_mismatch(file, table):
                raise UserError(f"{path} {reason}. {way_out}")
            # The table of one run is read faster than threads are started.
            return file.read(use_threads=file.metadata.num_rows >= ROW_GROUP)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read as a table: {reason.rstrip('.')}. {way_out}") from None


def _find_mismatch(file: pq.ParquetFile, table: TableSchema) -> str:
    """Return why the schema or the size of a file rules out reading it as this table; empty if neither does."""
    schema, facts = file.schema_arrow, file.metadata
    number = (schema.metadata or {}).get(b"harness.schema", b"none").decode(errors="replace")
    if number != str(SCHEMA):
        return f"has schema {clip_line(number, 20)}, and this harness reads schema {SCHEMA}"
    if not schema.equals(arrow_schema(table)):
        return f"does not have the columns of schema {SCHEMA}"
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    needs = max(sum(group.total_byte_size for group in groups), WORD * facts.num_rows * facts.num_columns)
    if needs > ALWAYS_FITS and needs > (free := find_available_bytes()):
        return f"has {facts.num_rows:,} rows, which need {needs:,} bytes of memory, and {free:,} are free"
    return ""


def find_available_bytes() -> int:
    """Return the memory that is available to this process: of the machine or of its control group, if that is less."""
    facts = Path("/proc/meminfo").read_text(encoding="utf-8")
    found = re.search(r"^MemAvailable:\s*(\d+)", facts, re.MULTILINE)
    assert found, "/proc/meminfo has no MemAvailable"
    free = int(found[1]) << 10
    with suppress(OSError, ValueError):  # there is no limit, or it is "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="utf-8"))
        used = int((group / "memory.current").read_text(encoding="utf-8"))
        free = min(free, max(limit - used, 0))
    return free


def read_collected(tables: Path, name: str) -> pd.DataFrame:
    """Read a collected table from a results folder."""
    return to_pandas(read_consistent_table(tables, name), TABLES[name])


def group_by_run(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split a collected table by run id. The rows of each run must be consecutive."""
    return {run_id: rows.iloc[part] for run_id, part in find_run_slices(rows["run_id"].to_numpy()).items()}


def find_run_slices(ids: np.ndarray[Any, Any]) -> dict[str, slice]:
    """Return the rows of each run, given the run id of each row. The rows of a run must be consecutive."""
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1), len(ids)] if len(ids) else []
    return {str(ids[start]): slice(int(start), int(stop)) for start, stop in pairwise(starts)}


def read_consistent_table(tables: Path, name: str) -> pa.Table:
    """Read a collected table. Raises UserError unless it was made by the same call as the table `runs`."""
    path = tables / f"{name}.parquet"
    if not path.is_file():
        raise UserError(
            f"The table {path} does not exist. `harness collect` makes the tables from the run folders."
        )
    rows = read_table(path, TABLES[name], RECOLLECT)
    if len({_read_mark(path), _read_mark(tables / "runs.parquet")} - {None}) > 1:
        raise UserError(
            f"{path} and runs.parquet were not made by the same call: a call was killed between them. {RECOLLECT}"
        )
    return rows


def write_claims(path: Path, claims: list[dict[str, Any]], tables: Path) -> None:
    """Write the table of claims. Claims that were compared with collected tables share the mark of these tables."""
    mark = _read_mark(tables / "runs.parquet") or ""
    replace_files({path: serialize_table([to_arrow(pd.DataFrame(claims), CLAIMS)], CLAIMS, mark)})


def read_claims_table(tables: Path) -> pd.DataFrame:
    """Read the claims that were compared with these collected tables; empty if there are none."""
    path = tables / "claims.parquet"
    if not path.is_file() or _read_mark(path) != _read_mark(tables / "runs.parquet"):
        return to_pandas(arrow_schema(CLAIMS).empty_table(), CLAIMS)
    return to_pandas(read_table(path, CLAIMS, "`harness claims --out` makes it again."), CLAIMS)


def _read_mark(path: Path) -> str | None:
    """Return the mark that the tables of one collection share; None if the table or its mark is missing."""
    if not path.is_file():
        return None
    try:
        with open_regular_file(path) as file:
            mark = (pq.read_schema(file).metadata or {}).get(MARK_KEY.encode())
    except (pa.ArrowException, OSError):
        return None
    return mark.decode(errors="replace") if mark else None


def _merge_parts(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate parts until they fill a row group."""
    waiting: list[pa.Table] = []
    rows = 0
    for part in parts:
        waiting.append(part)
        rows += part.num_rows
        if rows >= ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


# Tables for pandas: `harness.load()`.


class Loaded(NamedTuple):
    """All collected tables."""

    runs: pd.DataFrame
    epochs: pd.DataFrame
    ledger: pd.DataFrame
    accuracy: pd.DataFrame
    memory: pd.DataFrame
    utilisation: pd.DataFrame
    tape: pd.DataFrame


SUBJECT = ["run_id", "strategy", "dataset", "ranks", "grid", "launch"]
"""The columns of `runs` that are added to every other table."""


def load(tables: str | Path = "results") -> Loaded:
    """Load the collected tables of a folder, with short column names."""
    folder = Path(tables)
    runs = read_collected(folder, "runs").rename(columns=shorten_names(TABLES["runs"].names))
    others = {name: read_collected(folder, name) for name in Loaded._fields if name != "runs"}
    subject = runs[SUBJECT]
    return Loaded(runs, **{name: subject.merge(rows, on="run_id") for name, rows in others.items()})


def shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Map column names to short ones: `strategy` for strategy.name, `hidden` for model.hidden.

    Ambiguous names keep all their parts, joined by underscores.
    """
    short = {name: name.removesuffix(".name").rpartition(".")[2] for name in names}
    plain = [name for name in names if "." not in name]
    counts = Counter([*short.values(), *plain])

    def shorten(name: str) -> str:
        return short[name] if name in plain or counts[short[name]] == 1 else name.replace(".", "_")

    return {name: shorten(name) for name in names}
