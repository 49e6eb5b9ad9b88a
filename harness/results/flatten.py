"""A spec and a record as one row of the table `runs`."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.ledger import AxisName
from harness.results.schema import RUNS, TEXT
from harness.spec.spec import canonical_json, grid_text

TEXTS = {column.name for column in RUNS.columns if column.dtype == TEXT}
KNOWN = set(RUNS.names)


def flatten(spec: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Every column of `runs`; what has no column goes into `extra`, so that nothing a record says is lost."""
    grid = {axis: spec["grid"][axis] for axis in AxisName if axis in spec.get("grid", {})}
    told = {
        **dict(_leaves({key: value for key, value in spec.items() if key != "grid"})),
        **dict(_leaves({key: value for key, value in record.items() if key not in ("summary", "schema")})),
        **dict(_leaves(record["summary"])),
        "grid": grid_text(grid, ""),
        **{f"grid.{axis.value}": size for axis, size in grid.items()},
        "spec": canonical_json(spec),
    }
    extra = {name: value for name, value in told.items() if name not in KNOWN and value is not None}
    row = {name: told.get(name) for name in RUNS.names}
    return {**row, "extra": canonical_json(extra) if extra else ""}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; a column of text takes whatever stands under its name as JSON."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in KNOWN:
            yield from _leaves(value, f"{name}.")
        elif name in TEXTS and value is not None and not isinstance(value, str):
            yield name, canonical_json(value)
        else:
            yield name, value
