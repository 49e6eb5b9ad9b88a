"""Breakdown of an epoch: stacked bars with the seconds of each group of operations."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from harness.figures.axis_scales import Scale
from harness.figures.frames import add_notes, describe_failures, describe_grid, sort_rows
from harness.figures.kind import FigureKind, Tables
from harness.figures.marks import Bars
from harness.figures.operation_groups import group_of_operation
from harness.figures.palette import GROUPS, Fill
from harness.figures.panels import AT_RANKS, EPOCH, Curve, Panel, split_panels
from harness.ledger import Op, Phase
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
        curves = [_select_broken_down(curve, tables) for curve in panel.curves if curve.source in BROKEN_DOWN]
        alone = len({curve.strategy for curve in curves}) == 1
        ranks = panel.values.get(AT_RANKS)
        if ranks not in (None, *sorted({n for curve in curves for n in curve.points.ranks})[-MAX_RANKS:]):
            return None
        bars = [bar for curve in curves for bar in self._tabulate(curve, tables, ranks, all_grids=alone)]
        if not bars or not (frame := pd.concat(bars, ignore_index=True)).seconds.sum() > 0:
            return None
        frame["total"] = frame.groupby("label").seconds.transform("sum", min_count=1)
        frame = frame[frame.total.isna() | (frame.total > 0)].reset_index(drop=True)
        if one_rank := self._one_rank_seconds(curves, tables):
            frame[IDEAL_TIME.column] = (one_rank / frame.ranks).where(frame.ranks > 1)
        return add_notes(sort_rows(frame, "total"), _format_total)

    def _tabulate(
        self, curve: Curve, tables: Tables, ranks: int | None, *, all_grids: bool
    ) -> Iterator[pd.DataFrame]:
        """Yield the parts of each bar of a curve: its fastest grid or all grids, or the run that did not finish."""
        points, failed = curve.points.dropna(subset=[EPOCH]), curve.failures
        if ranks is not None:
            points, failed = points[points.ranks == ranks], failed[failed.ranks == ranks]
        grids = [launches for _, launches in points.groupby("grid")]
        if not all_grids:
            grids = sorted(grids, key=lambda launches: float(launches[EPOCH].median()))[:1]
        for launches in grids or ([failed.head(1)] if len(failed) else []):
            sums = self.sum_groups(launches, tables) if grids else {"": float("nan")}
            frame = pd.DataFrame({"part": list(sums), "seconds": list(sums.values())})
            first = launches.iloc[0]
            grid = describe_grid(first)
            name = curve.label if ranks is not None and "×" not in grid else f"{curve.label}, {grid}"
            known = {"curve": curve.label, "strategy": curve.strategy, "source": curve.source, "label": name}
            known |= {name: first[name] for name in ("ranks", "grid", "status")}
            yield frame.assign(**known, failures="" if grids else describe_failures(failed))

    def sum_groups(self, launches: pd.DataFrame, tables: Tables) -> dict[str, float]:
        """Sum the seconds of the median epoch of launches by group. Groups without a row are 0."""
        sums = dict.fromkeys(self.groups, 0.0)
        for (phase, op, tensor), seconds in split_launches(launches, tables.epochs, tables.ledgers).items():
            if group := self.group_of(Phase(phase), Op(op), tensor):
                sums[group] += seconds
        return sums

    def _one_rank_seconds(self, curves: list[Curve], tables: Tables) -> float:
        """Return the length of the shortest bar of one measured rank; 0 without one."""
        runs = [curve.points[curve.points.ranks == 1] for curve in curves if curve.source == "measured"]
        totals = [sum(self.sum_groups(launches, tables).values()) for launches in runs if len(launches)]
        return min((total for total in totals if total > 0), default=0.0)


def _select_broken_down(curve: Curve, tables: Tables) -> Curve:
    """Return a curve with only the runs that have a ledger. Some predictions give only the epoch time."""
    if curve.source == "measured":
        return curve
    return replace(curve, runs=curve.runs[curve.runs.run_id.isin(tables.ledgers)])


def _format_total(rows: pd.DataFrame) -> str:
    total = rows.total.iloc[0]
    return "" if pd.isna(total) else SECONDS.format_value(total)


KIND = FigureKind(
    "breakdown",
    "Breakdown of epoch time",
    "Where does an epoch go?",
    Breakdown(GROUPS, group_of_operation).make_frame,
    Bars(SECONDS, GROUPS, reference=IDEAL_TIME),
    split_by_ranks,
    caption="""\
Seconds that each group of operations takes in an epoch, sorted by their sum. A bar is the median epoch on its slowest
rank, so its length is the epoch time. Each curve is on its fastest grid; a single strategy shows all grids. Blue: local
work. Orange, red, violet and yellow: communication, including the wait for other ranks. Green: sampling and fetching,
including their communication. Grey: time between operations. Tick: the ideal time, which is the fastest measured
epoch of one rank divided by the number of ranks.""",
    place=40,
)
