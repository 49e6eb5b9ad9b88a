"""Schemas of tables: columns with their types and meanings.

A column has one name, in the tables of a run folder, in its record and in collected tables. Records of an earlier
schema are read by the names that they have (`Column.earlier`).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from harness.base.formatting import Unit

RECORD_SCHEMA = 2
"""The number of the schema of run folders. Records of `EARLIER_SCHEMA` are read too, and others refused."""
EARLIER_SCHEMA = 1
"""The schema of run folders whose columns have their earlier names."""
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
    place: str = ""
    """The place in record.json, if it is not the name."""
    earlier: str = ""
    """The name in records of `EARLIER_SCHEMA`, if it is another one."""
    counted: bool = False
    """Whether collecting counts the value in the tables of the run, because records do not have it."""
    title: str = ""
    """What tables on a screen, figures and the report call it."""
    unit: Unit | None = None
    """The unit in which they show it; None for text, ids and seeds."""
    better: Literal["", "less", "more"] = ""
    """Which way is better; empty if neither is."""

    @property
    def recorded_name(self) -> str:
        """The dotted name in record.json."""
        return self.place or self.name

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
    def earlier(self) -> "TableSchema":
        """The table as run folders of `EARLIER_SCHEMA` hold it."""
        columns = (column._replace(name=column.earlier or column.name) for column in self.columns)
        return self._replace(columns=tuple(columns), number=EARLIER_SCHEMA)
