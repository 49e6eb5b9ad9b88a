"""Tables as parquet files: each holds the number of its schema, which reading checks."""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UserError
from harness.files import replace_files
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
"""The bytes of a value in memory, at least."""
ALWAYS_FITS = 1 << 20
"""The bytes up to which a table is read without asking how much memory is free, which takes as long as reading."""
MARK = "harness.collected"
ANEW = "`harness collect` makes the tables anew from the run folders."

ARROW = {
    INTEGER: pa.int64(),
    NULLABLE: pa.int64(),
    REAL: pa.float64(),
    TEXT: pa.string(),
    TRUTH: pa.bool_(),
}


@lru_cache
def arrow_schema(table: TableSchema) -> pa.Schema:
    """The columns and types of a table, and the number of the schema."""
    fields = [(column.name, ARROW[column.dtype]) for column in table.columns]
    return pa.schema(fields, metadata={"harness.schema": str(SCHEMA)})


def conform(frame: pd.DataFrame, table: TableSchema) -> pd.DataFrame:
    """`frame` with exactly the columns and types of `table`. Strange or missing columns are a defect of the harness."""
    if frame.empty:
        frame = frame.reindex(columns=table.names)
    differing = set(map(str, frame)) ^ set(table.names)
    assert not differing, f"{table.name}: strange or missing columns {sorted(differing)}"
    cast = {column.name: _cast(frame[column.name], column.dtype) for column in table.columns}
    return pd.DataFrame(cast, copy=False)


def _cast(values: "pd.Series[Any]", dtype: Any) -> "pd.Series[Any]":
    if dtype == TEXT:
        values = values if isinstance(values.dtype, pd.StringDtype) else values.astype(object)
        values = values.fillna("")
    cast: pd.Series[Any] = values.astype(dtype)
    return cast


def to_arrow(frame: pd.DataFrame, table: TableSchema) -> pa.Table:
    """A frame as an arrow table with the columns and types of the schema."""
    schema = arrow_schema(table)
    rows = pa.Table.from_pandas(conform(frame, table), schema, preserve_index=False)
    return rows.replace_schema_metadata(schema.metadata)


def to_bytes(parts: Iterable[pa.Table], table: TableSchema, mark: str = "") -> bytes:
    """A parquet file of several parts; few parts are in memory at once. Files of one collection share a mark."""
    buffer, schema = BytesIO(), arrow_schema(table)
    if mark:
        schema = schema.with_metadata({**schema.metadata, MARK: mark})
    with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for rows in _joined(parts):
            writer.write_table(rows)
    return buffer.getvalue()


def to_pandas(rows: pa.Table, table: TableSchema) -> pd.DataFrame:
    """The frame of an arrow table: the inverse of `to_arrow`."""
    return conform(rows.to_pandas(), table)


def from_file(path: Path, table: TableSchema, way_out: str) -> pa.Table:
    """The rows of a file, or a refusal by name that ends with the way out.

    Nothing is read before the schema is known to be the one of the table, and the rows to fit into memory.
    """
    try:
        with _open_regular(path) as opened, pq.ParquetFile(opened) as file:
            if reason := _misfit(file, table):
                raise UserError(f"{path} {reason}. {way_out}")
            # The table of one run is read sooner than threads are woken for it.
            return file.read(use_threads=file.metadata.num_rows >= ROW_GROUP)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read as a table: {reason.rstrip('.')}. {way_out}") from None


def _open_regular(path: Path) -> BinaryIO:
    """The open file; an OSError for a pipe or a device, which may never end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file


def _misfit(file: pq.ParquetFile, table: TableSchema) -> str:
    """Why a file is not this table, by its schema and its sizes alone; empty if it is."""
    schema, facts = file.schema_arrow, file.metadata
    number = (schema.metadata or {}).get(b"harness.schema", b"none").decode(errors="replace")
    if number != str(SCHEMA):
        return f"has schema {clip_line(number, 20)}, and this harness reads schema {SCHEMA}"
    if not schema.equals(arrow_schema(table)):
        return f"does not have the columns of schema {SCHEMA}"
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    needs = max(sum(group.total_byte_size for group in groups), WORD * facts.num_rows * facts.num_columns)
    if needs > ALWAYS_FITS and needs > (free := available_bytes()):
        return f"has {facts.num_rows:,} rows, which need {needs:,} bytes of memory, and {free:,} are free"
    return ""


def available_bytes() -> int:
    """The memory that this process may still take: that of the machine, or of its control group if that is less."""
    found = re.search(
        r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found, "/proc/meminfo has no MemAvailable"
    free = int(found[1]) << 10
    with suppress(OSError, ValueError):  # there is no such limit, or it is "max"
        group = Path("/sys/fs/cgroup")
        most, used = (
            int((group / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current")
        )
        free = min(free, max(most - used, 0))
    return free


def read_collected(tables: Path, name: str) -> pd.DataFrame:
    """One of the collected tables under a results folder."""
    return to_pandas(table_of_one_call(tables, name), TABLES[name])


def by_run(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each run of a collected table, in which the rows of a run stand together."""
    ids = rows["run_id"].to_numpy()
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1), len(ids)] if len(ids) else []
    return {str(ids[start]): rows.iloc[start:stop] for start, stop in pairwise(starts)}


def table_of_one_call(tables: Path, name: str) -> pa.Table:
    """The rows of a collected table, which is refused unless it is of the same call as the table `runs`."""
    path = tables / f"{name}.parquet"
    if not path.is_file():
        raise UserError(f"There is no table {path}. `harness collect` makes the tables from the run folders.")
    rows = from_file(path, TABLES[name], ANEW)
    if len({_mark(path), _mark(tables / "runs.parquet")} - {None}) > 1:
        raise UserError(
            f"{path} and runs.parquet are not of one call: a call was killed between them. {ANEW}"
        )
    return rows


def write_claims(path: Path, claims: list[dict[str, Any]], tables: Path) -> None:
    """Writes the table of claims, which were held against these collected tables if there are any."""
    mark = _mark(tables / "runs.parquet") or ""
    replace_files({path: to_bytes([to_arrow(pd.DataFrame(claims), CLAIMS)], CLAIMS, mark)})


def read_claims_of(tables: Path) -> pd.DataFrame:
    """The claims that were held against these collected tables; none if their table is missing or of other tables."""
    path = tables / "claims.parquet"
    if not path.is_file() or _mark(path) != _mark(tables / "runs.parquet"):
        return to_pandas(arrow_schema(CLAIMS).empty_table(), CLAIMS)
    return to_pandas(from_file(path, CLAIMS, "`harness claims --out` makes it anew."), CLAIMS)


def _mark(path: Path) -> str | None:
    """The mark that the tables of one collection share; None if the table or its mark is missing."""
    if not path.is_file():
        return None
    try:
        with _open_regular(path) as file:
            mark = (pq.read_schema(file).metadata or {}).get(MARK.encode())
    except (pa.ArrowException, OSError):
        return None
    return mark.decode(errors="replace") if mark else None


def _joined(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Joins parts until they fill a row group."""
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


# The tables for a reader with pandas: `harness.load()`.


class Loaded(NamedTuple):
    """Every collected table."""

    runs: pd.DataFrame
    epochs: pd.DataFrame
    ledger: pd.DataFrame
    accuracy: pd.DataFrame
    memory: pd.DataFrame
    utilisation: pd.DataFrame
    tape: pd.DataFrame


SUBJECT = ["run_id", "strategy", "dataset", "ranks", "grid", "launch"]
"""The columns of `runs` that every other table has too."""


def load(tables: str | Path = "results") -> Loaded:
    """The collected tables of a folder, with short names of columns."""
    folder = Path(tables)
    runs = read_collected(folder, "runs").rename(columns=short_names(TABLES["runs"].names))
    others = {name: read_collected(folder, name) for name in Loaded._fields if name != "runs"}
    subject = runs[SUBJECT]
    return Loaded(runs, **{name: subject.merge(rows, on="run_id") for name, rows in others.items()})


def short_names(names: Sequence[str]) -> dict[str, str]:
    """`strategy` for strategy.name, `hidden` for model.hidden; a name that two would share keeps its parts."""
    short = {name: name.removesuffix(".name").rpartition(".")[2] for name in names}
    times = Counter([*short.values(), *(name for name in names if "." not in name)])
    plain = {name for name in names if "." not in name}
    return {
        name: short[name] if name in plain or times[short[name]] == 1 else name.replace(".", "_")
        for name in names
    }
