"""Tables as parquet files: each holds the number of its schema, which reading checks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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

ROW_GROUP = 1 << 20
MARK = "harness.collected"
ANEW = "`harness collect` makes the tables anew from the run folders."

ARROW = {
    INTEGER: pa.int64(),
    NULLABLE: pa.int64(),
    REAL: pa.float64(),
    TEXT: pa.string(),
    TRUTH: pa.bool_(),
}


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
    return pd.DataFrame({column.name: _cast(frame[column.name], column.dtype) for column in table.columns})


def _cast(values: "pd.Series[Any]", dtype: Any) -> "pd.Series[Any]":
    filled = values.astype(object).fillna("") if dtype == TEXT else values
    cast: pd.Series[Any] = filled.astype(dtype)
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
    """The rows of a file, or a refusal by name that ends with the way out."""
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as a table: {reason.rstrip('.')}. {way_out}") from None
    number = (rows.schema.metadata or {}).get(b"harness.schema", b"none").decode()
    if number != str(SCHEMA):
        raise UserError(f"{path} has schema {number}, and this harness reads schema {SCHEMA}. {way_out}")
    if not rows.schema.equals(arrow_schema(table)):
        raise UserError(f"{path} does not have the columns of schema {SCHEMA}. {way_out}")
    return rows


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
    mark = (pq.read_schema(path).metadata or {}).get(MARK.encode())
    return mark.decode() if mark else None


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
