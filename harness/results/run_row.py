"""Converts a spec and a record to rows of the tables `runs` and `failures`, and checks the values of all columns."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, SupportsIndex

from harness.base.validation import RANKS, format_value
from harness.ledger import AxisName
from harness.results.schema import FAILURES, MISSING, OK, RUNS, SOURCES, STATUSES
from harness.results.table_schema import INTEGER, NULLABLE, REAL, TEXT, TIME, TRUTH, TableSchema
from harness.spec.spec import canonical_json, label_grid

Row = dict[str, Any]
COLUMNS = {
    column.recorded_name: column._replace(dtype=REAL if column.dtype == TIME else column.dtype)
    for table in (RUNS, FAILURES)
    for column in table.columns
    if column.is_recorded
}
"""The columns of both tables under the names that a record has for their values."""
TEXTS = {name for name, column in COLUMNS.items() if column.dtype == TEXT}


class RunRows(NamedTuple):
    """The rows of a run: in the table `runs`, and in the table `failures` unless it is ok."""

    run: Row
    failure: Row | None


def make_rows(spec: Mapping[str, Any], record: Mapping[str, Any]) -> RunRows:
    """Return the rows of a spec and a record."""
    return _select_rows(_flatten_record(spec, record))


def describe_cause(failure: Mapping[Any, Any]) -> str:
    """Describe the cause of a failure, a row of the table `failures`, in one line."""
    if failure["status"] == MISSING:
        return "planned, but never recorded"
    rank, message = failure["rank_id"], " ".join((failure["message"] or "").split())
    where = f"rank {rank}: " if isinstance(rank, SupportsIndex) and int(rank) >= 0 else ""
    return f"{where}{failure['error']}: {message}" if failure["error"] else f"{where}{message}"


def _select_rows(values: Row) -> RunRows:
    failure = None if values["status"] == OK else _select_row(values, FAILURES)
    return RunRows(_select_row(values, RUNS), failure)


def _select_row(values: Row, table: TableSchema) -> Row:
    """Return the row of a table, with the values of the columns that are computed from others."""
    row = {column.name: values.get(column.recorded_name) for column in table.columns}
    for column in table.columns:
        if column.compute:
            inputs = [row[name] for name in column.inputs]
            row[column.name] = None if None in inputs else column.compute(*inputs)
    return row


def _flatten_record(spec: Mapping[str, Any], record: Mapping[str, Any]) -> Row:
    """Return the values of all columns by recorded name, without those that are computed from others.

    Values without a column go into the column `extra`, so that nothing is lost.
    """
    grid = {axis: spec["grid"][axis] for axis in AxisName if axis in (spec.get("grid") or {})}
    of_spec = {key: value for key, value in spec.items() if key != "grid"}
    of_record = {key: value for key, value in record.items() if key not in ("summary", "schema")}
    values = {
        **dict(_iterate_leaves(of_spec)),
        **dict(_iterate_leaves(of_record)),
        **dict(_iterate_leaves(record["summary"])),
        "grid": label_grid(grid),
        **{f"grid.{axis.value}": size for axis, size in grid.items()},
        "spec": canonical_json(spec),
    }
    extra = {name: value for name, value in values.items() if name not in COLUMNS and value is not None}
    row = {name: values.get(name) for name in COLUMNS}
    return {**row, "extra": canonical_json(extra) if extra else ""}


def _iterate_leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values. Values of text columns that are not text are converted to JSON."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in COLUMNS:
            yield from _iterate_leaves(value, f"{name}.")
        elif name in TEXTS and value is not None and not isinstance(value, str):
            yield name, canonical_json(value)
        else:
            yield name, value


# Checks of a spec and a record that were read from files. They raise a ValueError that names the value.

REQUIRED_KEYS = ("run_id", "label", "status", "source", "summary", "provenance")
"""The keys that every record has."""
SECTIONS = {
    **{
        f"spec.{name}": False
        for name in ("strategy", "dataset", "model", "training", "measure", "machine", "grid")
    },
    **{"record.summary": True, "record.provenance": True, "record.error": False},
}
"""The sections that are mappings, and whether each is required. Records of other programs may lack some."""
MAPPINGS = (
    *("spec.strategy.params", "spec.machine.allocator", "record.summary.chosen"),
    *(f"record.provenance.{name}" for name in ("versions", "allocator", "env", "start")),
)
"""The mappings that a column contains as JSON."""
TEXT_KEYS = {
    **{"record.run_id": True, "record.label": True},
    **{"spec.strategy.name": True, "spec.dataset.name": True, "spec.machine.name": False},
    **{f"record.error.{name}": False for name in ("type", "message", "trace")},
    "record.provenance.command": False,
}
"""The texts that are also read outside their columns, and whether each is required."""
NAMES = ("record.run_id", "record.label", "spec.strategy.name", "spec.dataset.name", "spec.machine.name")
MAX_NAME = 400
"""The maximum length of a name, because figures print names next to markers."""
RECORD_KEYS = ("run_id", "label", "status", "source")


class Bounds(NamedTuple):
    """The smallest and the largest value of a column, and their description."""

    low: float
    high: float
    expected: str


MAX_VALUE = 1e100
"""Far above any size, time or share, and small enough to compute with."""
POSITIVE = ("epoch_seconds_median", "epoch_seconds_paper", "graph.vertices")
NOT_NEGATIVE = tuple(
    column.name
    for column in COLUMNS.values()
    if column.part == "summary"
    and column.dtype in (REAL, NULLABLE)
    and column.name not in (*POSITIVE, "final_loss")
)
SIZES = ("ranks", *(f"grid.{axis.value}" for axis in AxisName))
BOUNDS = {
    SIZES: Bounds(1, RANKS, f"a number from 1 to {RANKS:,}"),
    POSITIVE: Bounds(1e-100, MAX_VALUE, "a number above 0"),
    NOT_NEGATIVE: Bounds(0, MAX_VALUE, "a number from 0"),
    ("provenance.started", "provenance.finished"): Bounds(0, 253_402_300_799, "a time before the year 10000"),
}
"""The bounds of columns, in addition to the bounds of their types."""


def make_checked_rows(spec: Mapping[str, Any], record: Mapping[str, Any]) -> RunRows:
    """Return the rows of a spec and a record that were read from files. Raises ValueError for invalid values."""
    if lacking := [key for key in REQUIRED_KEYS if key not in record]:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    _check_shapes({"spec": spec, "record": record})
    values = _flatten_record(spec, record)
    _check_columns(values, record)
    return _select_rows(values)


def _check_shapes(document: Mapping[str, Any]) -> None:
    for place, needed in SECTIONS.items():
        value = _look_up(document, place)
        if not isinstance(value, Mapping) and (needed or value is not None):
            raise _invalid_value(place, value, "keys with values are expected")
    for place in MAPPINGS:
        value = _look_up(document, place)
        if value not in (None, "") and not isinstance(_parse_json(value), Mapping):
            raise _invalid_value(place, value, "keys with values are expected")
    for place, needed in TEXT_KEYS.items():
        value = _look_up(document, place)
        if not isinstance(value, str) and (needed or value is not None):
            raise _invalid_value(place, value, "text is expected")
    _check_names(document)


def _check_names(document: Mapping[str, Any]) -> None:
    for place in NAMES:
        if len(_look_up(document, place) or "") > MAX_NAME:
            raise _invalid_value(
                place, _look_up(document, place), f"at most {MAX_NAME} characters are expected"
            )
    for place, accepted in (("record.status", STATUSES), ("record.source", SOURCES)):
        if _look_up(document, place) not in accepted:
            raise _invalid_value(place, _look_up(document, place), f"accepted are {', '.join(accepted)}")


def _parse_json(value: Any) -> Any:
    """Return the value of a JSON column, which a record may contain as text; None if it is not valid JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _check_columns(row: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    for name, column in COLUMNS.items():
        value = row[name]
        if value is not None and (accepted := ACCEPTED.get(column.dtype)) and not accepted(value):
            raise _invalid_value(name, value, EXPECTED[column.dtype])
    for name in RECORD_KEYS:
        if row[name] != record[name]:
            raise _invalid_value(name, row[name], "another part of the record has this key too")
    if row["ranks"] is None:
        raise _invalid_value("ranks", None, EXPECTED[INTEGER])
    for names, bounds in BOUNDS.items():
        for name in names:
            if row[name] is not None and not bounds.low <= row[name] <= bounds.high:
                raise _invalid_value(name, row[name], f"{bounds.expected} is expected")


def _is_integer(value: Any) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1.7e308


ACCEPTED: Mapping[str, Callable[[Any], bool]] = {
    INTEGER: _is_integer,
    NULLABLE: _is_integer,
    REAL: _is_real,
    TRUTH: lambda value: isinstance(value, bool),
}
EXPECTED = {
    INTEGER: "a whole number of 64 bits is expected",
    NULLABLE: "a whole number of 64 bits is expected",
    REAL: "a number is expected",
    TRUTH: "true or false is expected",
}


def _look_up(document: Any, place: str) -> Any:
    """Return the value under a dotted name; None if there is none."""
    for key in place.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _invalid_value(place: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{place} = {format_value(value)} is not accepted: {expected}")
