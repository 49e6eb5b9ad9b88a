"""Changes over time: what got faster or slower over the results of several commits, and since which commit.

A series is one quantity of one configuration on one kind of machine. A launch gives one value: its median epoch, as in
`harness.results.statistics`. Values with noise are searched for steps:

1. For every pair of successive commits, the launches before and after are compared by Student's t-test of the
   logarithms. From `MANY_COMMITS` commits on, the medians of commits are compared instead of launches, so that
   differences between days count as noise. Fewer commits cannot show how much days differ.
2. The chance of the largest t is multiplied by the number of places and of series that were searched (Bonferroni). A
   step is certain if the result is at most `ALPHA`, so at most one in 20 histories has a step anywhere if all values
   are independent noise. Both sides of a step have at least two launches: one value is never a level.
3. Both sides of a step are searched in the same way. A step that was soon undone is noise to the first search.

Counts have no noise: every difference between two runs of the same spec is a step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from harness.results.epoch_parts import Frames
from harness.results.launch_intervals import Interval, compute_median_interval
from harness.results.schema import OK
from harness.results.statistics import COMPARED, name_launches

ALPHA = 0.05
"""The largest chance of a false alarm in a history."""
LEAST_CHANGE = 0.02
"""Steps of quantities with noise that are smaller than this are not reported, however certain."""
MANY_COMMITS = 8
"""The number of commits from which the noise is estimated from the differences between commits."""
MACHINE = [f"provenance.{name}" for name in ("cpu", "gpu", "cores", "threads")]
"""The columns in which machines of one kind agree. Nodes of a cluster are one kind."""


class LevelChange(NamedTuple):
    """A change from one level to the next."""

    at: int
    """The number of the first commit of the new level."""
    ratio: float
    """The median after the step divided by the median before."""
    interval: Interval | None
    """Covers the ratio with a probability of 95 %, if the step is where it was found; None for counts."""
    chance: float
    """The chance of a step like this anywhere in a history without changes; 0 for counts."""


class _Split(NamedTuple):
    """The comparison of the launches on both sides of a place."""

    at: int
    statistic: float
    freedom: int
    shift: float
    """The difference of the mean logarithms."""
    error: float
    """The standard error of the shift."""


def find_steps(values: Sequence[Sequence[float]], searched: int = 1) -> list[LevelChange]:
    """Find the steps in positive values with noise: the launches of each commit, in the order of commits.

    Args:
        values: Each entry has the values of one commit, at least one.
        searched: The number of series that are searched together.
    """
    launches = [len(each) for each in values]
    if len(values) >= MANY_COMMITS:
        logs = [np.log([np.median(each)]) for each in values]
    else:
        logs = [np.log(np.asarray(each, dtype=float)) for each in values]
    places = sorted(_search(logs, launches, 0, searched))
    ends = [0, *places, len(values)]
    steps = []
    for number, place in enumerate(places):
        start, stop = ends[number], ends[number + 2]
        split = _compare_levels(logs[start:stop], place - start)
        before, after = (_median(values[one:other]) for one, other in ((start, place), (place, stop)))
        half = float(stdtrit(split.freedom, 0.975)) * split.error
        interval = Interval(math.exp(split.shift - half), math.exp(split.shift + half))
        chance = _correct(split, stop - start - 1, searched)
        steps.append(LevelChange(place, after / before, interval, chance))
    return steps


def can_decide(values: Sequence[Sequence[float]]) -> bool:
    """Return whether there is a place with two launches before it and two after it."""
    return bool(_list_places([len(each) for each in values]))


def _list_places(launches: Sequence[int]) -> list[int]:
    """Return the places with at least two launches on both sides."""
    return [
        place for place in range(1, len(launches)) if min(sum(launches[:place]), sum(launches[place:])) > 1
    ]


def _search(logs: Sequence[Any], launches: Sequence[int], offset: int, searched: int) -> list[int]:
    """Return the places of all steps, each the number of the first commit after it."""
    splits = [_compare_levels(logs, place) for place in _list_places(launches) if sum(map(len, logs)) > 2]
    if not splits:
        return []
    best = min(splits, key=_chance)
    if _correct(best, len(splits), searched) > ALPHA or abs(best.shift) < math.log1p(LEAST_CHANGE):
        return []
    at = best.at
    before = _search(logs[:at], launches[:at], offset, searched)
    return [*before, offset + at, *_search(logs[at:], launches[at:], offset + at, searched)]


def _compare_levels(logs: Sequence[Any], place: int) -> _Split:
    """Compare the values before and after a place by Student's t-test."""
    sides = [np.concatenate(side) for side in (logs[:place], logs[place:])]
    freedom = sum(map(len, sides)) - 2
    squares = sum(((side - side.mean()) ** 2).sum() for side in sides)
    shift = float(sides[1].mean() - sides[0].mean())
    error = math.sqrt(squares / freedom * sum(1 / len(side) for side in sides))
    statistic = abs(shift) / error if error else math.inf if shift else 0.0
    return _Split(place, statistic, freedom, shift, error)


def _chance(split: _Split) -> float:
    """Return the chance of a statistic as large as this between two equal levels."""
    return 2 * float(stdtr(split.freedom, -split.statistic))


def _correct(split: _Split, places: int, searched: int) -> float:
    return min(1.0, _chance(split) * places * searched)


def _median(values: Sequence[Sequence[float]]) -> float:
    return float(np.median(np.concatenate([np.asarray(launches) for launches in values])))


def find_count_steps(values: Sequence[Mapping[Any, float]]) -> list[LevelChange]:
    """Find the steps in counts: the value of each seed at each commit. Only values of the same seed are compared."""
    known: dict[Any, float] = {}
    steps = []
    for at, counts in enumerate(values):
        changed = [(known[seed], count) for seed, count in counts.items() if known.get(seed, count) != count]
        if changed:
            ratios = [after / before if before else math.inf for before, after in changed]
            steps.append(LevelChange(at, float(np.median(ratios)), None, 0.0))
        known.update(counts)
    return steps


class TrackedQuantity(NamedTuple):
    """A quantity that is followed over time."""

    column: str
    title: str
    less: str
    """The word for a step down."""
    more: str
    is_count: bool = False


EPOCH = TrackedQuantity("epoch_seconds_median", "epoch time", "faster", "slower")
RECEIVED = TrackedQuantity("elements_received", "elements received", "less", "more", is_count=True)
PEAK = TrackedQuantity("peak_bytes", "peak memory", "less", "more")
QUANTITIES = (EPOCH, RECEIVED, PEAK)


class CodeVersion(NamedTuple):
    """The code of some results: a commit, or a folder whose code is not known exactly."""

    commit: str
    folder: str = ""
    """The folder of tables, if its code had uncommitted changes or no known commit."""

    @property
    def name(self) -> str:
        """The name that people see."""
        return " ".join(part for part in (self.commit[:8], self.folder and f"in {self.folder}") if part)


class Point(NamedTuple):
    """The launches of a series at one commit."""

    at: int
    """The number of the commit."""
    values: Sequence[float]
    seeds: Sequence[Any]
    interval: Interval | None
    """Covers the median over launches; None for a count, and for too few launches."""

    @property
    def median(self) -> float:
        """The median over launches."""
        return float(np.median(self.values))


EQUAL, UNCHANGED, UNDECIDED = "equal", "within noise", "undecided"


@dataclass(frozen=True)
class Series:
    """One quantity of one configuration on one kind of machine, at several commits."""

    label: str
    strategy: str
    quantity: TrackedQuantity
    points: Sequence[Point]
    steps: Sequence[LevelChange]
    """The places of these steps are numbers of points."""

    @property
    def ratio(self) -> float:
        """The last median divided by the first."""
        first, last = self.points[0].median, self.points[-1].median
        return last / first if first else math.inf if last else 1.0

    @property
    def verdict(self) -> str:
        """The direction of the last step; without one, "equal", "within noise", or "undecided" for too few launches."""
        if self.steps:
            return self.quantity.more if self.steps[-1].ratio > 1 else self.quantity.less
        if all(point.median == self.points[0].median for point in self.points):
            return EQUAL
        if can_decide([point.values for point in self.points]):
            return UNCHANGED
        return UNDECIDED

    @property
    def since(self) -> int | None:
        """The number of the commit of the last step."""
        return self.points[self.steps[-1].at].at if self.steps else None


class Broken(NamedTuple):
    """A configuration that succeeded at an earlier commit and not at the last one that ran it."""

    label: str
    status: str
    since: int
    """The number of the first commit since which it has not succeeded."""


@dataclass(frozen=True)
class History:
    """All series of several results."""

    commits: Sequence[CodeVersion]
    """In order, the oldest first."""
    series: Sequence[Series]
    broken: Sequence[Broken]
    single: int
    """The number of configurations that were measured at one commit only."""


class Results(NamedTuple):
    """The collected tables of one folder."""

    folder: str
    runs: pd.DataFrame
    memory: Frames


def make_history(results: Sequence[Results], order: Sequence[str] | None = None) -> History:
    """Follow every configuration over the commits of several results.

    Args:
        results: The collected tables of each folder. The runs of one folder may come from several commits.
        order: All commits, ancestors first; without it, commits are ordered by their first run.
    """
    runs = _join(results)
    first: dict[CodeVersion, pd.Timestamp] = {}
    for code, started in zip(runs.code, runs.started, strict=True):
        first[code] = min(started, first.get(code, started))
    place = {commit: number for number, commit in enumerate(order or ())}
    codes = sorted(first, key=lambda code: (place.get(code.commit, 0), bool(code.folder), first[code]))
    if order is None:
        codes.sort(key=lambda code: first[code])
    runs["at"] = [codes.index(code) for code in runs.code]
    groups = [rows for _, rows in runs.groupby([*COMPARED, *MACHINE], sort=False, dropna=False)]
    labels = _label_groups(groups)
    followed = [
        (label, rows, quantity)
        for label, rows in zip(labels, groups, strict=True)
        for quantity in QUANTITIES
        if rows["at"][rows[quantity.column].notna() & (rows.status == OK)].nunique() > 1
    ]
    searched = sum(not _is_exact(rows, quantity) for _, rows, quantity in followed)
    series = [_follow(label, rows, quantity, searched) for label, rows, quantity in followed]
    broken = [
        found for label, rows in zip(labels, groups, strict=True) if (found := _find_failure(label, rows))
    ]
    return History(codes, series, broken, sum(rows["at"].nunique() == 1 for rows in groups))


def _join(results: Sequence[Results]) -> pd.DataFrame:
    """Join the measured runs of all folders. A run that several folders have counts once."""
    parts: list[pd.DataFrame] = []
    for folder, runs, memory in results:
        own = runs[runs.source == "measured"].copy()
        own["code"] = [
            CodeVersion(commit, "" if commit and not dirty else folder)
            for commit, dirty in zip(
                own["provenance.commit"], own["provenance.dirty"].fillna(False), strict=True
            )
        ]
        own["started"] = own["provenance.started"].fillna(pd.Timestamp(0, tz="UTC"))
        own[PEAK.column] = [_find_peak(memory.get(run)) for run in own.run_id]
        parts.append(own)
    joined = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    same = ["run_id", "provenance.host", "provenance.commit", "started"]
    again = joined.duplicated(same) & (joined["provenance.host"] != "")
    return joined[~again].reset_index(drop=True)


def _find_peak(memory: pd.DataFrame | None) -> float:
    """Return the peak of the rank that needs most: of its device, or of its process without one."""
    if memory is None or memory.empty:
        return math.nan
    device = float(memory.device_peak_bytes.max())
    return device or float(memory.host_peak_bytes.max()) or math.nan


def _label_groups(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Return a label for each configuration: as short as it may be, and with the machine if there are several."""
    first = [rows.iloc[0] for rows in groups]
    short = [f"{run['dataset.name']} {run['strategy.name']} {run.grid}" for run in first]
    labels = [
        name if short.count(name) == 1 else str(run.label) for name, run in zip(short, first, strict=True)
    ]
    machines = [
        ", ".join(f"{rows[name].iloc[0]}" for name in MACHINE[:2] if rows[name].iloc[0]) for rows in groups
    ]
    if len(set(machines)) == 1:
        return labels
    return [f"{label} on {machine}" for label, machine in zip(labels, machines, strict=True)]


def _follow(label: str, rows: pd.DataFrame, quantity: TrackedQuantity, searched: int) -> Series:
    done = rows[(rows.status == OK) & rows[quantity.column].notna()]
    points = []
    for at, runs in done.sort_values("started", kind="stable").groupby("at"):
        launches = runs.groupby(runs.index if quantity.is_count else name_launches(runs), sort=False)
        values = [float(value) for value in launches[quantity.column].median()]
        interval = None if quantity.is_count else compute_median_interval(values)
        points.append(Point(int(str(at)), values, list(launches.seed.first()), interval))
    if _is_exact(done, quantity):
        steps = find_count_steps([dict(zip(point.seeds, point.values, strict=True)) for point in points])
    elif (done[quantity.column] > 0).all():
        steps = find_steps([point.values for point in points], searched)
    else:
        steps = []
    return Series(label, str(rows["strategy.name"].iloc[0]), quantity, points, steps)


def _is_exact(rows: pd.DataFrame, quantity: TrackedQuantity) -> bool:
    """Return whether a quantity is a count, and runs of one commit and seed agree in it."""
    return (
        quantity.is_count and rows.groupby(["at", "seed"], dropna=False)[quantity.column].nunique().max() == 1
    )


def _find_failure(label: str, rows: pd.DataFrame) -> Broken | None:
    """Return since when a configuration does not succeed, if it once did."""
    succeeded = (rows.status == OK).groupby(rows["at"]).any()
    good = succeeded.index[succeeded]
    if not len(good) or (later := succeeded.index[succeeded.index > good.max()]).empty:
        return None
    status = rows.status[rows["at"] == later[-1]].iloc[0]
    return Broken(label, str(status), int(later[0]))
