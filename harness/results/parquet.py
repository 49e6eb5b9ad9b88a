"""Reads and writes tables as parquet files. Every file contains the number of its schema, which reading checks."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from io import SEEK_END, BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.base.errors import UserError
from harness.base.files import check_replaceable, open_regular_file, replace_files
from harness.base.host_memory import ALWAYS_FITS, find_available_bytes
from harness.base.validation import clip_line
from harness.results.schema import CLAIMS, TABLES
from harness.results.table_schema import (
    EARLIER_SCHEMA,
    INTEGER,
    NULLABLE,
    REAL,
    RECORD_SCHEMA,
    TEXT,
    TIME,
    TRUTH,
    TableSchema,
)

if TYPE_CHECKING:  # ranks write tables without pandas
    import pandas as pd

ROW_GROUP = 1 << 20
VALUE = 16
"""The size of a value in memory, in bytes: in the table, and in the array that is made of it."""
MAX_FOOTER = 1 << 22
"""The maximum size of the metadata of a file, which take many times as much memory."""
SCHEMA_KEY = "harness.schema"
MARK_KEY = "harness.collected"
RECOLLECT = "`harness collect` makes the tables again from the run folders."

ARROW = {
    INTEGER: pa.int64(),
    NULLABLE: pa.int64(),
    REAL: pa.float64(),
    TEXT: pa.string(),
    TRUTH: pa.bool_(),
    TIME: pa.timestamp("us", tz="UTC"),
}
MICROSECONDS = 1e6
"""Microseconds in a second."""


@lru_cache
def arrow_schema(table: TableSchema) -> pa.Schema:
    """Return the arrow schema of a table, with the number of the schema as metadata."""
    fields = [(column.name, ARROW[column.dtype]) for column in table.columns]
    return pa.schema(fields, metadata={SCHEMA_KEY: str(table.number)})


def conform_frame(frame: "pd.DataFrame", table: TableSchema) -> "pd.DataFrame":
    """Return a frame with exactly the columns and types of `table`. Unknown or missing columns are a bug."""
    import pandas as pd

    if frame.empty:
        frame = frame.reindex(columns=table.names)
    differing = set(map(str, frame)) ^ set(table.names)
    assert not differing, f"{table.name}: unknown or missing columns {sorted(differing)}"
    cast = {column.name: _cast(frame[column.name], column.dtype) for column in table.columns}
    return pd.DataFrame(cast, copy=False)


def _cast(values: "pd.Series[Any]", dtype: Any) -> "pd.Series[Any]":
    import pandas as pd

    if dtype == TEXT:
        values = values if isinstance(values.dtype, pd.StringDtype) else values.astype(object)
        values = values.fillna("")
    if dtype == TIME and not isinstance(values.dtype, pd.DatetimeTZDtype):
        values = _make_times(values)
    cast: pd.Series[Any] = values.astype(dtype)
    return cast


def _make_times(seconds: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return times, given as seconds since 1970; NaT for null."""
    import pandas as pd

    microseconds = (seconds.astype("float64") * MICROSECONDS).round()
    times = np.full(len(seconds), "NaT", "datetime64[us]")
    known = microseconds.notna().to_numpy()
    times[known] = microseconds.to_numpy()[known].astype("int64").astype("datetime64[us]")
    return pd.Series(times, seconds.index).dt.tz_localize("UTC")


def to_arrow(frame: "pd.DataFrame", table: TableSchema) -> pa.Table:
    """Convert a frame to an arrow table with the columns and types of the schema."""
    schema = arrow_schema(table)
    rows = pa.Table.from_pandas(conform_frame(frame, table), schema, preserve_index=False)
    return rows.replace_schema_metadata(schema.metadata)


def columns_to_arrow(columns: Mapping[str, Any], table: TableSchema) -> pa.Table:
    """Convert lists or arrays by column to an arrow table. Values that are None or NaN are null, and texts empty.

    Arrays are made of their buffers, because `pyarrow.array` imports pandas.
    """
    assert {*columns} == {*table.names}, f"{table.name}: unknown or missing columns"
    arrays = [_make_array(columns[column.name], column.dtype) for column in table.columns]
    return pa.table(arrays, schema=arrow_schema(table))


def _make_array(values: Any, dtype: str) -> pa.Array:
    mask = None
    if dtype == TEXT:
        words = [(value or "").encode() for value in values]
        offsets = np.cumsum([0, *map(len, words)], dtype=np.int32)
        data = [pa.py_buffer(offsets), pa.py_buffer(b"".join(words))]
    elif dtype == TRUTH:
        data = [pa.py_buffer(np.packbits(np.array(values, bool), bitorder="little"))]
    else:
        numbers = np.ascontiguousarray(values, np.float64 if dtype == REAL else np.int64)
        data = [pa.py_buffer(numbers)]
        if dtype == REAL and np.isnan(numbers).any():
            mask = pa.py_buffer(np.packbits(~np.isnan(numbers), bitorder="little"))
    return pa.Array.from_buffers(ARROW[dtype], len(values), [mask, *data])


class TableFile:
    """The content of a parquet file that grows by parts, which are compressed as soon as they fill a row group."""

    def __init__(self, table: TableSchema, mark: str = "") -> None:
        """Begin the file of a table. The tables of one collection share a mark."""
        schema = arrow_schema(table)
        if mark:
            schema = schema.with_metadata({**schema.metadata, MARK_KEY: mark})
        # Few times are equal: a dictionary would be longer than the values.
        reals = [column.name for column in table.columns if column.dtype == REAL]
        others = [name for name in table.names if name not in reals]
        self._buffer, self._waiting, self._rows = BytesIO(), list[pa.Table](), 0
        self._writer = pq.ParquetWriter(
            self._buffer, schema, compression="zstd", use_dictionary=others, use_byte_stream_split=reals
        )

    def add(self, rows: pa.Table) -> None:
        """Append rows."""
        self._waiting.append(rows)
        self._rows += rows.num_rows
        if self._rows >= ROW_GROUP:
            self._write_waiting()

    def finish(self) -> bytes:
        """Return the content of the whole file."""
        if self._waiting:
            self._write_waiting()
        self._writer.close()
        return self._buffer.getvalue()

    def _write_waiting(self) -> None:
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._rows = [], 0


def serialize_table(rows: pa.Table, table: TableSchema, mark: str = "") -> bytes:
    """Return the content of a parquet file."""
    file = TableFile(table, mark)
    file.add(rows)
    return file.finish()


def to_pandas(rows: pa.Table, table: TableSchema) -> "pd.DataFrame":
    """Convert an arrow table to a frame: the inverse of `to_arrow`."""
    return conform_frame(rows.to_pandas(), table)


def to_array(column: pa.ChunkedArray) -> "np.ndarray[Any, Any]":
    """Return the values of a column as an array. Equal texts are one object: there are few, and many rows.

    Only a column with nulls or truth values needs pandas, which arrow imports.
    """
    whole: np.ndarray[Any, Any]
    if pa.types.is_string(column.type) and not column.null_count:
        coded = column.combine_chunks().dictionary_encode()
        texts = np.array(coded.dictionary.to_pylist(), object)
        return texts.take(np.from_dlpack(coded.indices).astype(np.intp))
    if column.null_count or pa.types.is_boolean(column.type):
        whole = column.to_numpy()
    else:
        whole = np.from_dlpack(column.combine_chunks())
    return whole


def read_table(path: Path, table: TableSchema, way_out: str, content: bytes | None = None) -> pa.Table:
    """Read the rows of a file. Raises UserError, whose message ends with `way_out`, if that fails.

    The schema and the required memory are checked before any rows are read. A table of a run folder of the earlier
    schema gets the names of `table`. `content` is what the file has, if it is in memory and not on disk.
    """
    try:
        with open_regular_file(path) if content is None else BytesIO(content) as opened:
            if (size := _read_footer_size(opened)) > MAX_FOOTER:
                raise UserError(f"{path} has {size:,} bytes of metadata, more than any table. {way_out}")
            with pq.ParquetFile(opened if content is None else pa.BufferReader(content)) as file:
                is_earlier = table.number == RECORD_SCHEMA and _get_number(file) == str(EARLIER_SCHEMA)
                if reason := _find_mismatch(file, table.earlier if is_earlier else table):
                    raise UserError(f"{path} {reason}. {way_out}")
                # The table of one run is read faster than threads are started.
                rows = file.read(use_threads=file.metadata.num_rows >= ROW_GROUP)
                return pa.table(rows.columns, schema=arrow_schema(table)) if is_earlier else rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read as a table: {reason.rstrip('.')}. {way_out}") from None


def _read_footer_size(file: BinaryIO) -> int:
    """Return the size of a file's metadata, which the last eight bytes begin with; 0 if the file is shorter."""
    length = file.seek(0, SEEK_END)
    file.seek(max(length - 8, 0))
    size = int.from_bytes(file.read(4), "little") if length >= 8 else 0
    file.seek(0)
    return size


def _find_mismatch(file: pq.ParquetFile, table: TableSchema) -> str:
    """Return why the schema or the size of a file rules out reading it as this table; empty if neither does."""
    schema, facts = file.schema_arrow, file.metadata
    if (number := _get_number(file)) != str(table.number):
        return f"has schema {clip_line(number, 20)}, and this harness reads schema {table.number}"
    if not schema.equals(arrow_schema(table)):
        return f"does not have the columns of schema {table.number}"
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    needs = max(sum(group.total_byte_size for group in groups), VALUE * facts.num_rows * facts.num_columns)
    if needs > ALWAYS_FITS and needs > (free := find_available_bytes()):
        return f"has {facts.num_rows:,} rows, which need {needs:,} bytes of memory, and {free:,} are free"
    return ""


def _get_number(file: pq.ParquetFile) -> str:
    """Return the number of the schema of a file."""
    return _get_metadata(file.schema_arrow, SCHEMA_KEY) or "none"


def read_collected(tables: Path, name: str) -> "pd.DataFrame":
    """Read a collected table from a results folder."""
    return to_pandas(read_consistent_table(tables, name), TABLES[name])


class RunTable(Mapping[str, "pd.DataFrame"]):
    """A collected table: all of its rows, and the rows of each run by run id. The rows of a run must be consecutive.

    Kinds that read many runs use `rows`: a frame of one run takes longer to make than to read.
    """

    def __init__(self, rows: "pd.DataFrame") -> None:
        self.rows = rows
        self._slices = find_run_slices(rows["run_id"].to_numpy())

    def __getitem__(self, run_id: str) -> "pd.DataFrame":
        return self.rows.iloc[self._slices[run_id]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)

    def select(self, runs: Iterable[str]) -> "pd.DataFrame":
        """Return the rows of some runs, in the order of the runs. Runs without rows are skipped."""
        numbers = np.arange(len(self.rows))
        known = [numbers[self._slices[run]] for run in runs if run in self._slices]
        return self.rows.iloc[np.concatenate([numbers[:0], *known])]


def find_run_slices(ids: np.ndarray[Any, Any]) -> dict[str, slice]:
    """Return the rows of each run, given the run id of each row. The rows of a run must be consecutive."""
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1), len(ids)] if len(ids) else []
    return {str(ids[start]): slice(int(start), int(stop)) for start, stop in pairwise(starts)}


def read_consistent_table(tables: Path, name: str) -> pa.Table:
    """Read a collected table. Raises UserError unless it was made by the same call as the table `runs`."""
    path, runs = tables / f"{name}.parquet", tables / "runs.parquet"
    if not path.is_file():
        raise UserError(
            f"The table {path} does not exist. `harness collect` makes the tables from the run folders."
        )
    rows = read_table(path, TABLES[name], RECOLLECT)
    if len({_read_mark(path), _read_mark(runs)} - {None}) > 1:
        raise UserError(
            f"{path} and runs.parquet were not made by the same call: a call was killed between them. {RECOLLECT}"
        )
    return rows


def write_claims(path: Path, claims: list[dict[str, Any]], tables: Path) -> None:
    """Write the table of claims. Claims that were compared with collected tables share the mark of these tables."""
    import pandas as pd

    check_replaceable(path, is_collected, "a table of the harness")
    mark = _read_mark(tables / "runs.parquet") or ""
    replace_files({path: serialize_table(to_arrow(pd.DataFrame(claims), CLAIMS), CLAIMS, mark)})


def read_claims_table(tables: Path) -> "pd.DataFrame":
    """Read the claims that were compared with these collected tables; empty if there are none."""
    path = tables / "claims.parquet"
    if not path.is_file() or _read_mark(path) != _read_mark(tables / "runs.parquet"):
        return to_pandas(arrow_schema(CLAIMS).empty_table(), CLAIMS)
    return to_pandas(read_table(path, CLAIMS, "`harness claims --out` makes it again."), CLAIMS)


def is_collected(path: Path) -> bool:
    """Return True for a table that the harness wrote."""
    try:
        return _get_metadata(pq.read_schema(path), SCHEMA_KEY) is not None
    except pa.ArrowException:
        return False


def _read_mark(path: Path) -> str | None:
    """Return the mark that the tables of one collection share; None if the table or its mark is missing."""
    if not path.is_file():
        return None
    try:
        with open_regular_file(path) as file:
            return _get_metadata(pq.read_schema(file), MARK_KEY)
    except (pa.ArrowException, OSError):
        return None


def _get_metadata(schema: pa.Schema, key: str) -> str | None:
    value = (schema.metadata or {}).get(key.encode())
    return value.decode(errors="replace") if value else None
