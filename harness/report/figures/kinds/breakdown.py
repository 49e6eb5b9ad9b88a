"""Breakdown of an epoch: stacked bars with the seconds of each group of operations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd

from harness.ledger import Op, Phase
from harness.report.figures.axis_scales import Scale
from harness.report.figures.frames import (
    add_notes,
    concat_by_curve,
    describe_failures,
    describe_grids,
    select_best_grids,
    select_failures,
    select_points,
    sort_rows,
    take_columns,
)
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Bars
from harness.report.figures.operation_groups import group_of_operation
from harness.report.figures.palette import GROUPS, Fill
from harness.report.figures.panels import AT_RANKS, EPOCH, Panel, split_panels
from harness.report.figures.placed_marks import IN_BARS, place_among_times
from harness.results.epoch_parts import split_launches

MAX_RANKS = 3
"""The most numbers of ranks that have axes: the largest ones."""
BROKEN_DOWN = ("measured", "emulated", "predicted")
"""The sources whose runs may have a ledger. Papers and logs of other programs give only the sum."""
SECONDS = Scale("seconds", "median epoch time", "s")
IDEAL_TIME = Scale("ideal_seconds", "ideal: one rank / ranks", "s")


def split_by_ranks(runs: pd.DataFrame) -> list[Panel]:
    """Split runs into panels. If a curve has several numbers of ranks, split them further, by the number of ranks."""
    panels = []
    for panel in split_panels(runs):
        done = panel.runs[panel.runs.source.isin(BROKEN_DOWN) & (panel.runs.status == "ok")]
        several = done.groupby(["source", "strategy.name"]).ranks.nunique().gt(1).any()
        numbers = sorted(map(int, done.ranks.unique()), reverse=True) if several else []
        panels += [panel.add_value(AT_RANKS, ranks) for ranks in numbers] or [panel]
    return panels


@dataclass(frozen=True)
class Breakdown:
    """A division of epochs into groups of operations."""

    groups: Mapping[str, Fill]
    group_of: Callable[[Phase, Op, str], str | None]
    """Returns the group of a ledger row by its phase, op and tensor; None if it belongs to none."""

    def make_frame(self, panel: Panel, tables: Tables) -> pd.DataFrame | None:
        """Return a row for each part of each bar, and the ideal time; None if all bars are empty."""
        launches = take_columns(panel.launches)
        launches = launches[launches.source.isin(BROKEN_DOWN)]
        alone, ranks = launches.strategy.nunique() == 1, panel.values.get(AT_RANKS)
        # Some predictions give only the epoch time.
        launches = launches[(launches.source == "measured") | launches.run_id.isin(tables.ledgers)]
        points, failed = select_points(launches).dropna(subset=[EPOCH]), select_failures(launches)
        if ranks not in (None, *sorted(points.ranks.unique())[-MAX_RANKS:]):
            return None
        one_rank = self._one_rank_seconds(points, tables)
        if ranks is not None:
            points, failed = points[points.ranks == ranks], failed[failed.ranks == ranks]
        if not alone:
            points = select_best_grids(points, ["curve"], EPOCH)
        frame = self._tabulate_bars(points, failed, tables, with_ranks=ranks is None)
        frame["total"] = frame.groupby("label").seconds.transform("sum", min_count=1)
        frame = frame[frame.total.isna() | (frame.total > 0)].reset_index(drop=True)
        if not frame.total.any():
            return None
        if one_rank:
            frame[IDEAL_TIME.column] = (one_rank / frame.ranks).where(frame.ranks > 1)
        return add_notes(sort_rows(frame, "total"), _format_total)

    def _tabulate_bars(
        self, points: pd.DataFrame, failed: pd.DataFrame, tables: Tables, *, with_ranks: bool
    ) -> pd.DataFrame:
        """Return the parts of a bar of each curve and grid. A curve without a time has the run that did not finish."""
        failed = failed[~failed.curve.isin(points.curve)]
        launches = concat_by_curve(pd.concat([points, failed]), points, failed.drop_duplicates("curve"))
        grids = describe_grids(launches)
        named = grids.str.contains("×") | with_ranks
        launches["label"] = launches.curve + (", " + grids).where(named, "")
        launches["failures"] = describe_failures(launches, failed)
        sums = [
            (label, part, seconds)
            for label, rows in launches.groupby("label", sort=False)
            for part, seconds in self._sum_groups(rows, tables).items()
        ]
        bars = launches.drop_duplicates("label")
        known = ["curve", "strategy", "source", "label", "ranks", "grid", "status", "failures"]
        return pd.DataFrame(sums, columns=["label", "part", "seconds"]).merge(bars[known])[
            ["part", "seconds", *known]
        ]

    def _sum_groups(self, launches: pd.DataFrame, tables: Tables) -> dict[str, float]:
        """Sum the seconds of the median epoch of launches by group. Groups without a row are 0."""
        if launches[EPOCH].isna().all():
            return {"": float("nan")}
        sums = dict.fromkeys(self.groups, 0.0)
        for (phase, op, tensor), seconds in split_launches(launches, tables.parts).items():
            if group := self.group_of(Phase(phase), Op(op), tensor):
                sums[group] += seconds
        return sums

    def _one_rank_seconds(self, points: pd.DataFrame, tables: Tables) -> float:
        """Return the length of the shortest bar of one measured rank; 0 without one."""
        launches = points[(points.source == "measured") & (points.ranks == 1)]
        totals = [sum(self._sum_groups(rows, tables).values()) for _, rows in launches.groupby("curve")]
        return min((total for total in totals if total > 0), default=0.0)


def _format_total(rows: pd.DataFrame) -> str:
    total = rows.total.iloc[0]
    return "" if pd.isna(total) else SECONDS.format_value(total)


def describe_largest_part(frame: pd.DataFrame) -> str:
    """Name the largest part of the shortest bar of several ranks; without one, of the shortest bar."""
    bars = frame.dropna(subset=["total"])
    several = bars[bars.ranks > 1]
    shown = several if len(several) else bars
    if shown.empty:
        return ""
    parts = shown[shown.label == shown.label.iloc[0]].set_index("part").seconds
    which = "shortest parallel bar" if len(several) else "shortest bar"
    return f"Largest part: {parts.idxmax()} ({100 * parts.max() / parts.sum():.0f} % of the {which})"


KIND = FigureKind(
    "breakdown",
    "Breakdown of epoch time",
    "Where does an epoch go?",
    Breakdown(GROUPS, group_of_operation).make_frame,
    Bars(SECONDS, GROUPS, reference=IDEAL_TIME),
    split_by_ranks,
    headline=describe_largest_part,
    place_marks=partial(place_among_times, column="total", kinds=IN_BARS),
    caption="""\
Seconds that each group of operations takes in an epoch, sorted by their sum. A bar is the median epoch on its slowest
rank, so its length is the epoch time. Each curve is on its fastest grid; a single strategy shows all grids. Blue: local
work. Orange, red, violet and yellow: communication, including the wait for other ranks. Green: sampling and fetching,
including their communication. Grey: time between operations. Tick: the ideal time, which is the fastest measured
epoch of one rank divided by the number of ranks.""",
    place=40,
)
