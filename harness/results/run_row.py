"""A spec and a record as one row of the table `runs`, with a value of the right type in every column."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from harness.ledger import AxisName
from harness.results.schema import INTEGER, NULLABLE, REAL, RUNS, SOURCES, STATUSES, TEXT, TRUTH
from harness.spec.spec import canonical_json, format_grid
from harness.validation import RANKS, format_value

TEXTS = {column.name for column in RUNS.columns if column.dtype == TEXT}
KNOWN = set(RUNS.names)


def flatten(spec: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Every column of `runs`; a value of the record without a column goes into `extra`, so that nothing is lost."""
    grid = {axis: spec["grid"][axis] for axis in AxisName if axis in (spec.get("grid") or {})}
    values = {
        **dict(_leaves({key: value for key, value in spec.items() if key != "grid"})),
        **dict(_leaves({key: value for key, value in record.items() if key not in ("summary", "schema")})),
        **dict(_leaves(record["summary"])),
        "grid": format_grid(grid, ""),
        **{f"grid.{axis.value}": size for axis, size in grid.items()},
        "spec": canonical_json(spec),
    }
    extra = {name: value for name, value in values.items() if name not in KNOWN and value is not None}
    row = {name: values.get(name) for name in RUNS.names}
    return {**row, "extra": canonical_json(extra) if extra else ""}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; a column of text takes any value under its name as JSON."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in KNOWN:
            yield from _leaves(value, f"{name}.")
        elif name in TEXTS and value is not None and not isinstance(value, str):
            yield name, canonical_json(value)
        else:
            yield name, value


# The checks of a spec and a record that were read from files. A fault is a ValueError that names the value.

NEEDED = ("run_id", "label", "status", "source", "summary", "provenance")
"""The keys that every record has."""
SHAPES = {
    **{
        f"spec.{name}": False
        for name in ("strategy", "dataset", "model", "training", "measure", "machine", "grid")
    },
    **{"record.summary": True, "record.provenance": True, "record.error": False},
}
"""The parts that hold keys with values, and whether each is needed: a record of another program may lack some."""
MAPPINGS = (
    *("spec.strategy.params", "spec.machine.allocator", "record.summary.chosen"),
    *(f"record.provenance.{name}" for name in ("versions", "allocator", "env", "start")),
)
"""The parts that stand as JSON in a column."""
WORDS = {
    **{"record.run_id": True, "record.label": True},
    **{"spec.strategy.name": True, "spec.dataset.name": True, "spec.machine.name": False},
    **{f"record.error.{name}": False for name in ("type", "message", "trace")},
    "record.provenance.command": False,
}
"""The texts that are read beyond their columns, and whether each is needed."""
NAMES = ("record.run_id", "record.label", "spec.strategy.name", "spec.dataset.name", "spec.machine.name")
LONGEST_NAME = 400
"""The most characters of a name: figures write names next to their marks."""
OWN = ("run_id", "label", "status", "source")


class Bounds(NamedTuple):
    """The least and the largest value of a column, and both in words."""

    low: float
    high: float
    expected: str


LARGEST = 1e100
"""Far above any size, time or share, and far enough from the largest number to compute with."""
POSITIVE = ("epoch_seconds_median", "epoch_seconds_paper", "graph.vertices")
BOUNDS = {
    ("ranks", *(f"grid.{axis.value}" for axis in AxisName)): Bounds(
        1, RANKS, f"a number from 1 to {RANKS:,}"
    ),
    POSITIVE: Bounds(1e-100, LARGEST, "a number above 0"),
    tuple(
        column.name
        for column in RUNS.columns
        if column.part == "summary"
        and column.dtype in (REAL, NULLABLE)
        and column.name not in (*POSITIVE, "final_loss")
    ): Bounds(0, LARGEST, "a number from 0"),
    ("provenance.started", "provenance.finished"): Bounds(0, 253_402_300_799, "a time before the year 10000"),
}
"""The bounds of columns, beyond those of their types: sizes, times and shares."""


def checked_row(spec: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of `runs` that a spec and a record make, or refuse them."""
    if lacking := [key for key in NEEDED if key not in record]:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    _check_shapes({"spec": spec, "record": record})
    row = flatten(spec, record)
    _check_columns(row, record)
    return row


def _check_shapes(document: Mapping[str, Any]) -> None:
    for place, needed in SHAPES.items():
        value = _at(document, place)
        if not isinstance(value, Mapping) and (needed or value is not None):
            raise _unfit(place, value, "keys with values are expected")
    for place in MAPPINGS:
        value = _at(document, place)
        if value not in (None, "") and not isinstance(_parsed(value), Mapping):
            raise _unfit(place, value, "keys with values are expected")
    for place, needed in WORDS.items():
        value = _at(document, place)
        if not isinstance(value, str) and (needed or value is not None):
            raise _unfit(place, value, "text is expected")
    _check_names(document)


def _check_names(document: Mapping[str, Any]) -> None:
    for place in NAMES:
        if len(_at(document, place) or "") > LONGEST_NAME:
            raise _unfit(place, _at(document, place), f"at most {LONGEST_NAME} characters are expected")
    for place, accepted in (("record.status", STATUSES), ("record.source", SOURCES)):
        if _at(document, place) not in accepted:
            raise _unfit(place, _at(document, place), f"accepted are {', '.join(accepted)}")


def _parsed(value: Any) -> Any:
    """The value of a column of JSON, which a record may hold as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _check_columns(row: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    for column in RUNS.columns:
        value = row[column.name]
        if value is not None and (accepted := ACCEPTED.get(column.dtype)) and not accepted(value):
            raise _unfit(column.name, value, EXPECTED[column.dtype])
    for name in OWN:
        if row[name] != record[name]:
            raise _unfit(name, row[name], "another part of the record has this key too")
    if row["ranks"] is None:
        raise _unfit("ranks", None, EXPECTED[INTEGER])
    for names, bounds in BOUNDS.items():
        for name in names:
            if row[name] is not None and not bounds.low <= row[name] <= bounds.high:
                raise _unfit(name, row[name], f"{bounds.expected} is expected")


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


def _at(document: Any, place: str) -> Any:
    """The value under a dotted name; None if there is none."""
    for key in place.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _unfit(place: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{place} = {format_value(value)} is not accepted: {expected}")
