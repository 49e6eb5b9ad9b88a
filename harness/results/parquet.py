"""Tables as parquet files: written with the schema's number inside, read back with a check of it."""

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UserError
from harness.results.schema import SCHEMA, TABLES, Table, conform


def to_bytes(frames: Iterable[pd.DataFrame], table: Table) -> bytes:
    """One parquet file of several frames, a row group each: no more than one of them is in memory at once."""
    buffer = BytesIO()
    with pq.ParquetWriter(buffer, table.arrow, compression="zstd") as writer:
        for frame in frames:
            rows = pa.Table.from_pandas(conform(frame, table), table.arrow, preserve_index=False)
            writer.write_table(rows.replace_schema_metadata(table.arrow.metadata))
    return buffer.getvalue()


def from_file(path: Path, table: Table, way_out: str) -> pd.DataFrame:
    """The table of a file, or a refusal by name that ends with the way out."""
    try:
        rows = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as a table: {reason.rstrip('.')}. {way_out}") from None
    found = (rows.schema.metadata or {}).get(b"harness.schema", b"none").decode()
    if found != str(SCHEMA):
        raise UserError(f"{path} has schema {found}, and this harness reads schema {SCHEMA}. {way_out}")
    if rows.column_names != table.names:
        differing = ", ".join(sorted(set(rows.column_names) ^ set(table.names))) or "their order"
        raise UserError(
            f"{path} does not have the columns of schema {SCHEMA} (differing: {differing}). {way_out}"
        )
    return conform(rows.to_pandas(), table)


def read_collected(tables: Path, name: str) -> pd.DataFrame:
    """One of the collected tables under a results folder."""
    path = tables / f"{name}.parquet"
    if not path.is_file():
        raise UserError(f"There is no table {path}. `harness collect` makes the tables from the run folders.")
    return from_file(path, TABLES[name], "`harness collect` makes the tables anew from the run folders.")
