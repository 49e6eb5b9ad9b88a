"""Tidy frames that several kinds of figures share: one row for each launch, with what marks need to draw it.

They are made of `Panel.launches`, all curves at once: to select the rows of each curve takes much longer.
"""

from collections.abc import Callable

import pandas as pd

from harness.base.formatting import format_count, format_three_digits
from harness.report.figures.axis_scales import Scale
from harness.report.figures.panels import TIMES, Curve, Panel
from harness.results.parquet import RunTable
from harness.results.schema import find_quantity
from harness.results.statistics import find_oversubscribed

MIN_LOSSES = 3
"""The fewest epochs whose losses are shown."""
LAUNCH_COLUMNS = ["ranks", "grid", "launch", "status", "run_id"]
CURVE_COLUMNS = ["curve", "strategy", "source"]


def tabulate_launches(curve: Curve, runs: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return a row for each of the given runs of a curve: the curve, the launch, and the requested columns."""
    frame = runs.assign(curve=curve.label, strategy=curve.strategy)
    return frame[[*CURVE_COLUMNS, *LAUNCH_COLUMNS, *columns]]


def take_columns(launches: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the columns of launches that frames have, the sizes of grids, and the requested ones.

    Selecting rows of all columns of the table `runs` takes many times as long.
    """
    grids = [name for name in launches if str(name).startswith("grid.")]
    return launches[[*dict.fromkeys([*CURVE_COLUMNS, *LAUNCH_COLUMNS, *TIMES, *columns, *grids])]]


def select_points(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the launches that succeeded and have a time. Papers may print only the time to a target."""
    return launches[(launches.status == "ok") & launches[TIMES].notna().any(axis=1)]


def select_failures(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the launches that did not succeed, one for each curve, number of ranks and status."""
    return launches[launches.status != "ok"].drop_duplicates(["curve", "ranks", "status"])


def select_largest_ranks(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the measured launches of each curve that have a time, at its largest number of ranks."""
    points = select_points(launches)
    points = points[points.source == "measured"]
    return points[points.ranks == points.groupby("curve").ranks.transform("max")]


def concat_by_curve(launches: pd.DataFrame, *parts: pd.DataFrame) -> pd.DataFrame:
    """Concatenate parts of the launches, with the rows of each curve together and the curves in their order."""
    order = {curve: place for place, curve in enumerate(launches.curve.unique())}
    rows = pd.concat(parts, ignore_index=True)
    return rows.iloc[rows.curve.map(order).argsort(kind="stable")].reset_index(drop=True)


def select_best_grids(launches: pd.DataFrame, columns: list[str], column: str) -> pd.DataFrame:
    """Return the launches on the grid with the best median of a quantity, for each combination of `columns`."""
    medians = launches.groupby([*columns, "grid"])[column].median().reset_index()
    ordered = medians.sort_values([column, "grid"], ascending=[find_quantity(column).better != "more", True])
    return launches.merge(ordered.drop_duplicates(columns)[[*columns, "grid"]], on=[*columns, "grid"])


def tabulate_best_grids(launches: pd.DataFrame, column: str) -> pd.DataFrame | None:
    """Return the launches on the best grid of every number of ranks, and failures, of curves over several ranks."""
    points, failures = select_points(launches).dropna(subset=[column]), select_failures(launches)
    shared = points[(points.source == "measured") & find_oversubscribed(points)].groupby("curve").ranks.min()
    columns = [*CURVE_COLUMNS, *LAUNCH_COLUMNS, column]
    done = select_best_grids(points[columns], ["curve", "ranks"], column)
    done = done[done.groupby("curve").ranks.transform("nunique") > 1]
    if done.empty:
        return None
    failed = failures.loc[failures.curve.isin(done.curve.unique()), columns]
    frame = concat_by_curve(launches, done, failed)
    is_shared = (frame.ranks >= frame.curve.map(shared)).fillna(False).astype(bool)
    return frame.assign(shared_cores=is_shared)


def tabulate_largest_ranks(
    launches: pd.DataFrame, column: str, *columns: str, keep_unknown: bool = False
) -> pd.DataFrame | None:
    """Return the launches of each curve at the largest number of ranks with a value, on the grid with the best median.

    A curve whose runs all failed has a row without a value, and with `keep_unknown` so has one that has no value. The
    column `label` names curve and grid, and `failures` the runs at more ranks that did not finish.
    """
    if launches.empty:
        return None
    launches = take_columns(launches, column, *columns)
    done, failed = launches[launches.status == "ok"], select_failures(launches)
    known = done[column].notna()
    if keep_unknown:
        known |= ~known.groupby(done.curve).transform("any")
    done = done[known]
    largest = done.groupby("curve").ranks.max()
    done = select_best_grids(done[done.ranks == done.curve.map(largest)], ["curve"], column)
    failed = failed[failed.ranks > failed.curve.map(largest).fillna(0)]
    only_failed = failed[~failed.curve.isin(largest.index)].drop_duplicates("curve")
    shown = concat_by_curve(launches, done, only_failed)
    frame = shown[[*CURVE_COLUMNS, *LAUNCH_COLUMNS, column, *columns]].copy()
    frame.insert(3, "label", frame.curve + ", " + describe_grids(shown))
    return frame.assign(failures=describe_failures(frame, failed))


def describe_grids(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return the sizes of the axes of each grid that has several, else its number of ranks: 2×2×1, 4 ranks."""
    axes = [name for name in runs if str(name).startswith("grid.")]
    texts = {}
    for index, ranks, *sizes in runs[["ranks", *axes]].itertuples():
        known = [int(size) for size in sizes if pd.notna(size)]
        texts[index] = "×".join(map(str, known)) if len(known) > 1 else format_count(int(ranks), "rank")
    return pd.Series(texts, index=runs.index, dtype=object)


def describe_failures(frame: pd.DataFrame, failed: pd.DataFrame) -> list[str]:
    """Return for each row of a frame how the failed runs of its curve ended: oom on 8 ranks."""
    fewest = failed.groupby(["curve", "status"], sort=False).ranks.min()
    texts: dict[str, list[str]] = {}
    for curve, status, ranks in fewest.reset_index().itertuples(index=False):
        texts.setdefault(curve, []).append(f"{status} on {format_count(int(ranks), 'rank')}")
    return [", ".join(texts.get(curve, [])) for curve in frame.curve]


def sort_rows(frame: pd.DataFrame, column: str, *, ascending: bool = True) -> pd.DataFrame:
    """Sort the rows of a frame by the median of a column over the rows with the same label."""
    medians = frame[column].groupby(frame.label).transform("median").reset_index(drop=True)
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


def describe_first_rows(what: str) -> Callable[[pd.DataFrame], str]:
    """Return a function that names the first two rows of a sorted frame and their notes: `what`: one (1 ms), ..."""

    def describe(frame: pd.DataFrame) -> str:
        first = frame.drop_duplicates("label").head(2)
        noted = first[first.note != ""]
        rows = [
            f"{label} ({note.partition(', ')[0]})"
            for label, note in zip(noted.label, noted.note, strict=True)
        ]
        return f"{what}: {', then '.join(rows)}" if rows else ""

    return describe


def describe_last_points(x: str, scale: Scale, what: str) -> Callable[[pd.DataFrame], str]:
    """Return a function that names the curve with the largest value at the end of its line: `what`: one (1 %)."""

    def describe(frame: pd.DataFrame) -> str:
        done = frame.dropna(subset=[scale.column])
        last = done[done[x] == done.groupby("curve")[x].transform("max")]
        ends = last.groupby("curve")[scale.column].median()
        return f"{what}: {ends.idxmax()} ({scale.format_value(ends.max())})" if len(ends) else ""

    return describe


def has_differences(frame: pd.DataFrame, column: str) -> bool:
    """Return whether the labels of a frame have different medians, to three digits."""
    medians = frame.groupby("label")[column].median().dropna()
    return medians.map(format_three_digits).nunique() > 1


def add_serial_reference(
    launches: pd.DataFrame, frame: pd.DataFrame | None, column: str
) -> pd.DataFrame | None:
    """Add the column `serial`: the smallest median of a column over the measured serial runs on one rank, if any."""
    if frame is None:
        return None
    points = select_points(launches)
    serial = points[(points.strategy == "serial") & (points.source == "measured")]
    return frame.assign(serial=serial.groupby("curve")[column].median().min())


def tabulate_run_tables(panel: Panel, table: RunTable, *columns: str) -> pd.DataFrame | None:
    """Return the rows that a table has of each measured launch of a curve at its largest number of ranks."""
    launches = select_largest_ranks(panel.launches)[[*CURVE_COLUMNS, *LAUNCH_COLUMNS, *columns]]
    rows = table.select(launches.run_id)
    return launches.merge(rows, on="run_id") if len(rows) else None


def tabulate_losses(panel: Panel, epochs: RunTable, *columns: str) -> pd.DataFrame | None:
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
