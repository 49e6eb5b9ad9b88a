"""The values that papers print for single runs, as records of source `published`, which tables and figures show.

A claim prints the value of a run if its formula is one of the functions in COLUMNS. Bounds, ranges and ratios do not.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.claims.claims import Claim
from harness.claims.evidence import Evidence
from harness.claims.formulas.runs import (
    find_accuracy_percent,
    find_epoch_seconds,
    find_evaluation_seconds,
    find_seconds_to_target,
)
from harness.claims.selection import Selection
from harness.claims.units import UNITS
from harness.results.record import write_record
from harness.spec.spec import Spec, digest

COLUMNS: Mapping[object, str] = {
    find_epoch_seconds: "epoch_seconds_median",
    find_seconds_to_target: "seconds_to_target",
    find_evaluation_seconds: "evaluation_seconds",
    find_accuracy_percent: "accuracy_test",
}
"""The column for each function whose value is that of a run."""


class PrintedValue(NamedTuple):
    """A printed value, its run, and its column of the table `runs`."""

    claim: Claim
    spec: Spec
    column: str
    value: float


def find_printed_value(claim: Claim, evidence: Evidence) -> PrintedValue | None:
    """Return the value that a claim prints for a run; None if it prints no such value.

    If the paper leaves the grid or the width open, the run is the first in its experiment.
    """
    formula = claim.formula
    if formula is None or claim.number is None or claim.comparator not in ("=", "approx"):
        return None
    column = COLUMNS.get(formula.function)
    if column is None:
        return None
    (runs,) = formula.args
    assert isinstance(runs, Selection)
    spec = evidence.list_runs(runs)[0].model_copy(update={"launch": 0})
    units = 1 / UNITS[claim.unit].size  # that make one unit of the column, a second or the whole
    return PrintedValue(claim, spec, column, claim.number / units)


def record_printed(runs: Path, claims: Iterable[Claim], evidence: Evidence) -> list[Path]:
    """Write a run folder for each run for which the claims print values, and return the folders."""
    by_run: dict[str, list[PrintedValue]] = {}
    for claim in claims:
        if printed := find_printed_value(claim, evidence):
            by_run.setdefault(printed.spec.run_id, []).append(printed)
    runs.mkdir(parents=True, exist_ok=True)
    return [_record(runs, values) for values in by_run.values()]


def _record(runs: Path, values: list[PrintedValue]) -> Path:
    spec, summary = values[0].spec, {each.column: each.value for each in values}
    printed = {each.claim.id: f"{each.claim.place}: {each.claim.printed}" for each in values}
    document = spec.model_dump(mode="json")
    run_id = digest({"spec": document, "printed": printed})
    record: dict[str, Any] = {
        "run_id": run_id,
        "label": f"{spec.label.rsplit('-', 1)[0]}-published-{run_id[:6]}",
        "status": "ok",
        "source": "published",
        "summary": summary,
        "provenance": {},
        "error": None,
        "printed": printed,
        "read": {each.claim.id: each.claim.read for each in values},
    }
    return write_record(runs, document, record, {})
