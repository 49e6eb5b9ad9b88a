"""What figures show of numbers that papers print about several runs: ratios, ends of scaling, crossings, ends of axes.

Which runs a number compares is taken from the formula of its claim, which is evaluated on epochs that record what they
are divided by. So no number, strategy or graph of a claim is repeated here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isclose
from typing import Any, Literal

from harness.claims.claims import Claim
from harness.claims.estimates import EpochTime, EpochTimes, Estimate, UntestableClaim
from harness.claims.evidence import Evidence
from harness.claims.formula import Formula
from harness.claims.selection import Selection, get_value
from harness.claims.units import UNITS, find_conversion
from harness.spec.spec import Spec, canonical_json

MarkKind = Literal["ratio", "seconds", "end of scaling", "crossing", "end of axis"]
Bound = Literal["", "at least", "at most"]
Settings = dict[str, list[Any]]
"""The values that runs have in each column of the table `runs`."""

BOUNDS: Mapping[str, Bound] = {
    "at_least": "at least",
    "range_low": "at least",
    "up_to": "at most",
    "below": "at most",
    "range_high": "at most",
}
OPPOSITE: Mapping[Bound, Bound] = {"": "", "at least": "at most", "at most": "at least"}
ENDS_OF_SCALING = ("scaling_limit_devices", "speedup_until_devices", "scales_until_devices")
CROSSING = "crossover_devices"
"""The metrics of numbers of ranks: up to which epochs become faster, and where two curves cross."""
COLUMNS = (
    "strategy.name",
    "strategy.params",
    "dataset.name",
    "dataset.permutation",
    "dataset.partition",
    "machine.name",
    "model.kind",
    "model.layers",
    "model.hidden",
    "training.batch",
    "ranks",
)
"""The columns of the table `runs` that identify the runs of a selection."""
FIGURE_COLUMNS = ("dataset.name", "machine.name")
"""The columns that distinguish the figures of an experiment."""


@dataclass(frozen=True)
class PrintedMark:
    """What a figure shows of a printed number."""

    kind: MarkKind
    number: float
    """The ratio of epoch times, the seconds, or the number of ranks."""
    bound: Bound
    """Whether the paper's value is at least or at most the number."""
    runs: Settings
    """The runs that the number describes; the faster ones of a ratio."""
    relative_to: Settings | None = None
    """The slower runs of a ratio."""
    mean_of: int = 1
    """The number of ratios whose mean is printed."""


def list_marks(claim: Claim, evidence: Evidence) -> list[PrintedMark]:
    """List what figures show of a claim; nothing if its number has no place among the times of epochs.

    The value of a single run is a record instead (`harness.claims.printed_runs`).
    """
    formula = claim.formula
    if formula is None or claim.number is None or (claim.role, claim.basis) != ("result", "prediction"):
        return []
    try:
        trace = _trace(formula, evidence)
    except UntestableClaim:  # it depends on more than the times of epochs
        return []
    if not trace.selections:
        return []
    return _list_marks_of_ranks(claim, trace) or _list_marks_of_times(claim, formula, trace)


def format_marks(claim: Claim, evidence: Evidence) -> str:
    """Return the marks of a claim as JSON for the table of claims; empty if there are none."""
    marks = list_marks(claim, evidence)
    return json.dumps([asdict(mark) for mark in marks], separators=(",", ":")) if marks else ""


def _list_marks_of_ranks(claim: Claim, trace: "_Trace") -> list[PrintedMark]:
    """List the marks at a number of ranks: each strategy and graph whose scaling ends there, or what crosses there."""
    assert claim.number is not None
    if claim.metric in ENDS_OF_SCALING:
        kind: MarkKind = "end of scaling"
    elif claim.metric == CROSSING:
        kind = "crossing"
    else:
        return []
    settings = trace.describe(trace.selections, (name for name in COLUMNS if name != "ranks"))
    return [PrintedMark(kind, claim.number, "", settings)]


def _list_marks_of_times(claim: Claim, formula: Formula, trace: "_Trace") -> list[PrintedMark]:
    assert claim.number is not None
    if "_axis_max_" in claim.metric:
        seconds = claim.number * find_conversion(claim.unit, "s", claim.id)
        settings = trace.describe(trace.selections, FIGURE_COLUMNS)
        return [PrintedMark("end of axis", seconds, "", settings)]
    bound = BOUNDS.get(claim.comparator, "")
    if trace.pairs:
        ratio = _solve_for_ratio(claim, formula, trace)
        return [] if ratio is None else _list_ratios(ratio, bound, trace)
    if claim.unit in UNITS and UNITS[claim.unit].dimension == "frequency":
        settings = trace.describe(trace.selections)
        return [PrintedMark("seconds", 1 / claim.number, OPPOSITE[bound], settings)]
    return []


def _list_ratios(ratio: float, bound: Bound, trace: "_Trace") -> list[PrintedMark]:
    """List a mark for each pair of runs that the formula divides. A ratio below 1 is turned over."""
    mean_of = 1 if bound else len(trace.pairs)
    marks = []
    for one, other in trace.pairs:
        slower, faster = (one, other) if ratio >= 1 else (other, one)
        number, side = (ratio, bound) if ratio >= 1 else (1 / ratio, OPPOSITE[bound])
        runs, relative_to = trace.describe([faster]), trace.describe([slower])
        marks.append(PrintedMark("ratio", number, side, runs, relative_to, mean_of))
    return marks


def _solve_for_ratio(claim: Claim, formula: Formula, trace: "_Trace") -> float | None:
    """Return the ratio of times at which the formula has the printed value; None if the formula is not affine in it."""
    assert claim.number is not None
    values = []
    for ratio in (1.0, 2.0, 3.0):
        trace.ratio = ratio
        value = formula(trace)
        if isinstance(value, Estimate) and value.is_range:  # the runs that it compares are open
            return None
        values.append(value.value if isinstance(value, Estimate) else value)
    if not all(isinstance(value, float) for value in values):
        return None
    first, second, third = map(float, values)  # type: ignore[arg-type]
    slope = second - first
    if not slope or not isclose(third - second, slope, rel_tol=1e-9):
        return None
    printed = claim.number * find_conversion(claim.unit, formula.unit, claim.id)
    ratio = 1 + (printed - first) / slope
    return ratio if ratio > 0 else None


class _Trace(Evidence):
    """Evidence that records which epochs a formula asks for and divides, without predicting them.

    Every epoch takes a second, but the ratio of two epochs is `ratio`.
    """

    has_open_units = False

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence.root)
        self._expand_once = evidence._expand_once
        self.ratio = 1.0
        self.selections: list[Selection] = []
        self.pairs: list[tuple[Selection, Selection]] = []

    def time_epoch(self, runs: Selection) -> EpochTimes:
        _append(self.selections, runs)
        return _TracedTimes(runs, self)

    def time_evaluation(self, runs: Selection) -> EpochTimes:
        raise UntestableClaim("figures of epochs do not show evaluations")

    def describe(self, selections: Iterable[Selection], columns: Iterable[str] = COLUMNS) -> Settings:
        """Return the values that the runs of the selections have in columns of the table `runs`."""
        specs = [spec for each in selections for spec in self.list_runs(each, any_grid=True)]
        found = {name: dict.fromkeys(_read_column(spec, name) for spec in specs) for name in columns}
        return {name: sorted(values) for name, values in found.items()}


class _TracedTimes(EpochTimes):
    def __init__(self, runs: Selection, trace: _Trace) -> None:
        super().__init__({(): EpochTime(1.0)})
        self.runs, self.trace = runs, trace

    def __truediv__(self, other: EpochTimes) -> Estimate:
        assert isinstance(other, _TracedTimes)
        _append(self.trace.pairs, (self.runs, other.runs))
        return Estimate(self.trace.ratio, self.trace.ratio, self.trace.ratio)

    @property
    def communication_seconds(self) -> float:
        raise UntestableClaim("figures of epochs do not show the time of communication")

    def compute_percent_under(self, accepts: object) -> Estimate:
        raise UntestableClaim("figures of epochs do not show shares")


def _trace(formula: Formula, evidence: Evidence) -> _Trace:
    """Evaluate a formula and return what it asked for."""
    trace = _Trace(evidence)
    formula(trace)
    return trace


def _append(found: list[Any], value: object) -> None:
    if value not in found:
        found.append(value)


def _read_column(spec: Spec, name: str) -> Any:
    value = get_value(spec, name)
    return canonical_json(value) if isinstance(value, dict) else value
