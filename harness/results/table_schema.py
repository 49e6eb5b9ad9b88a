"""Schemas of tables: columns with their types and meanings, and the names that run folders have for them.

`Column.recorded` is the name in run folders where collected tables have another one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

RECORD_SCHEMA = 1
"""The number of the schema of run folders. Records with another number are refused."""
SCHEMA = 3
"""The number of the schema of collected tables. It increases when the name, type or meaning of a column changes. Tables
with another number are refused."""

INTEGER, NULLABLE, REAL, TEXT, TRUTH = "int64", "Int64", "float64", "str", "boolean"
TIME = "datetime64[us, UTC]"
"""A time of day. Run folders hold it as seconds since 1970."""


class Column(NamedTuple):
    """One column. `part` is the part of the record that its values come from, in tables that have parts."""

    name: str
    dtype: str
    meaning: str
    part: str = ""
    inputs: tuple[str, ...] = ()
    """The columns of the same row from which `compute` computes the value, which is null if one of them is null."""
    compute: Callable[..., Any] | None = None
    """Computes the value; None if it is stored in the records."""
    recorded: str = ""
    """The name in run folders, if it differs from `name`."""
    counted: bool = False
    """Whether collecting counts the value in the tables of the run, because records do not have it."""

    @property
    def recorded_name(self) -> str:
        """The name in run folders."""
        return self.recorded or self.name

    @property
    def is_recorded(self) -> bool:
        """Whether run folders have the column."""
        return not self.counted and self.compute is None


class Columns(Protocol):
    """The columns of a table by name: a frame, or a mapping to arrays."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a column."""

    def get(self, name: str, default: Any, /) -> Any:
        """Return a column, or `default` if the table does not have it."""


class TableSchema(NamedTuple):
    """One table: what a row is, and the columns."""

    name: str
    row: str
    columns: tuple[Column, ...]
    number: int = SCHEMA
    """The number of the schema, which files contain."""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def recorded_names(self) -> dict[str, str]:
        """The name of each column by its name in run folders."""
        return {column.recorded_name: column.name for column in self.columns}

    def rename_recorded(self, columns: Columns) -> dict[str, Any]:
        """Return the columns of a table of a run folder by the names of this table."""
        return {column.name: columns[column.recorded_name] for column in self.columns if column.is_recorded}

    @property
    def recorded(self) -> "TableSchema":
        """This table as run folders hold it."""
        columns = [
            column._replace(name=column.recorded_name, dtype=REAL if column.dtype == TIME else column.dtype)
            for column in self.columns
            if column.is_recorded
        ]
        return self._replace(columns=tuple(columns), number=RECORD_SCHEMA)
