"""Tidy frames that several kinds of figures share: one row for each launch, with what marks need to draw it."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import pandas as pd

from harness.figures.axis_scales import Scale
from harness.figures.panels import Curve, Panel, select_largest_ranks
from harness.formatting import format_count, format_three_digits
from harness.results.epoch_parts import Frames
from harness.results.schema import SOURCES

MIN_LOSSES = 3
"""The fewest epochs whose losses are shown."""
LAUNCH_COLUMNS = ["ranks", "grid", "launch", "status", "run_id"]


def tabulate_launches(curve: Curve, runs: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return a row for each of the given runs of a curve: the curve, the launch, and the requested columns."""
    frame = runs[[*LAUNCH_COLUMNS, *columns]].copy()
    frame.insert(0, "curve", curve.label)
    frame.insert(1, "strategy", curve.strategy)
    frame.insert(2, "source", curve.source)
    return frame


def tabulate_best_grids(curves: Iterable[Curve], column: str) -> pd.DataFrame | None:
    """Return the launches on the best grid of every number of ranks, and failures, of curves over several ranks."""
    frames = []
    for curve in curves:
        best = curve.summarize_launches("ranks", column, best="min")[["ranks", "grid"]]
        done = curve.points.merge(best, on=["ranks", "grid"])
        if done.ranks.nunique() > 1:
            frame = tabulate_launches(curve, pd.concat([done, curve.failures]), column)
            frame["shared_cores"] = (curve.oversubscribed_from > 0) & (
                frame.ranks >= curve.oversubscribed_from
            )
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else None


def tabulate_largest_ranks(
    panel: Panel,
    column: str,
    *columns: str,
    sources: Collection[str] = SOURCES,
    best: Literal["min", "max"] = "min",
    keep_unknown: bool = False,
) -> pd.DataFrame | None:
    """Return the launches of each curve at the largest number of ranks with a value, on the grid with the best median.

    A curve whose runs all failed has a row without a value, and with `keep_unknown` so has one that has no value. The
    column `label` names curve and grid, and `failures` the runs at more ranks that did not finish.
    """
    frames = []
    for curve in panel.curves:
        if curve.source not in sources:
            continue
        done, failed = curve.runs[curve.runs.status == "ok"], curve.failures
        if not keep_unknown or done[column].notna().any():
            done = done[done[column].notna()]
        if len(done):
            done = done[done.ranks == done.ranks.max()].sort_values(["grid", "launch"])
            medians = done.groupby("grid")[column].median().fillna(float("inf"))
            done = done[done.grid == (medians.idxmin() if best == "min" else medians.idxmax())]
            failed = failed[failed.ranks > done.ranks.max()]
        shown = done if len(done) else failed.head(1)
        if len(shown):
            frame = tabulate_launches(curve, shown, column, *columns)
            frame.insert(3, "label", f"{curve.label}, {describe_grid(shown.iloc[0])}")
            frame["failures"] = describe_failures(failed)
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else None


def describe_grid(run: "pd.Series[Any]") -> str:
    """Return the sizes of the axes of the grid of a run if it has several, else its number of ranks: 2×2×1, 4 ranks."""
    sizes = [int(run[name]) for name in run.index if str(name).startswith("grid.") and pd.notna(run[name])]
    return "×".join(map(str, sizes)) if len(sizes) > 1 else format_count(int(run.ranks), "rank")


def describe_failures(failed: pd.DataFrame) -> str:
    """Return how runs ended that did not finish: oom on 8 ranks."""
    found = failed.groupby("status", sort=False).ranks.min()
    return ", ".join(f"{status} on {format_count(int(ranks), 'rank')}" for status, ranks in found.items())


def sort_rows(frame: pd.DataFrame, column: str, *, ascending: bool = True) -> pd.DataFrame:
    """Sort the rows of a frame by the median of a column over the rows with the same label."""
    medians = frame[column].groupby(frame.label).transform("median")
    return frame.iloc[medians.sort_values(ascending=ascending, kind="stable").index].reset_index(drop=True)


def add_notes(frame: pd.DataFrame, describe: Callable[[pd.DataFrame], str]) -> pd.DataFrame:
    """Add the column `note`: what `describe` returns for the rows with the same label, and the failures."""
    notes = {}
    for label, rows in frame.groupby("label", sort=False):
        failures = rows.failures.iloc[0] if "failures" in rows else ""
        notes[label] = ", ".join(part for part in (describe(rows), failures) if part)
    return frame.drop(columns="failures", errors="ignore").assign(note=frame.label.map(notes))


def describe_median(scale: Scale, unknown: str = "") -> Callable[[pd.DataFrame], str]:
    """Return a function that formats the median of the column of a scale, or returns `unknown` without a value."""

    def describe(rows: pd.DataFrame) -> str:
        median = rows[scale.column].median()
        return unknown if pd.isna(median) else scale.format_value(median)

    return describe


def has_differences(frame: pd.DataFrame, column: str) -> bool:
    """Return whether the labels of a frame have different medians, to three digits."""
    medians = frame.groupby("label")[column].median().dropna()
    return medians.map(format_three_digits).nunique() > 1


def add_serial_reference(panel: Panel, frame: pd.DataFrame | None, column: str) -> pd.DataFrame | None:
    """Add the column `serial`: the smallest median of a column over the measured serial runs on one rank, if any."""
    if frame is None:
        return None
    medians = [
        float(curve.points[column].median())
        for curve in panel.curves
        if curve.strategy == "serial" and curve.source == "measured"
    ]
    return frame.assign(serial=min(medians, default=float("nan")))


def tabulate_run_tables(panel: Panel, tables: Frames, *columns: str) -> pd.DataFrame | None:
    """Return the rows that a table has of each measured launch of a curve at its largest number of ranks."""
    frames = []
    for curve, points in select_largest_ranks(panel):
        launches = tabulate_launches(curve, points, *columns)
        known = [tables[run].assign(run_id=run) for run in launches.run_id if run in tables]
        if known:
            frames.append(launches.merge(pd.concat(known), on="run_id"))
    return pd.concat(frames, ignore_index=True) if frames else None


def tabulate_losses(panel: Panel, epochs: Frames, *columns: str) -> pd.DataFrame | None:
    """Return the loss of every epoch of measured curves at their largest number of ranks, counted from 1.

    Warm-up epochs train too, so they count. Diverged runs and runs with fewer than three epochs are left out.
    """
    rows = tabulate_run_tables(panel, epochs, *columns)
    if rows is None:
        return None
    rows = rows.dropna(subset=["loss"]).drop_duplicates(["run_id", "epoch"]).sort_values(["run_id", "epoch"])
    counted = rows.assign(epoch=rows.groupby("run_id").cumcount() + 1).sort_index(kind="stable")
    long = counted[counted.groupby("run_id").epoch.transform("max") >= MIN_LOSSES]
    kept = [*dict.fromkeys(["curve", "strategy", "source", *LAUNCH_COLUMNS, *columns, "epoch", "loss"])]
    return long[kept].reset_index(drop=True) if len(long) else None
