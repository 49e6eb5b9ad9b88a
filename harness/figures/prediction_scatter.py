"""Predicted epoch times over measured or emulated ones, for runs that have both (Plexus's figure 5).

Markers stand for strategies. If a panel has a single strategy, they stand for the number of axes that the grid splits.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from harness.figures.kind import FigureKind, Tables, compose_panels
from harness.figures.page_layout import Cell, Section
from harness.figures.palette import MUTED, PAPER, CurveLook, numbered_look
from harness.figures.panels import VARIANT, Curve, Panel
from harness.figures.scaling import DOTTED
from harness.figures.units import unit_for
from harness.formatting import format_count

DIMENSIONS = "dimensions"
"""The column with the number of axes along which a grid has several ranks."""
JOIN_COLUMNS = [*VARIANT, "ranks", "grid", DIMENSIONS]
"""The columns that identify a run of a strategy within a panel."""
MIN_POINTS = 3
"""The fewest points for which an order of runs means anything."""
HEIGHT = 2.6  # inches
FACTOR = 2.0


class PredictedPoints(NamedTuple):
    """Runs of one strategy that have a predicted and a measured or emulated epoch time, with both times."""

    label: str
    look: CurveLook
    source: str
    rows: pd.DataFrame


def select_points(panel: Panel, _: Tables) -> list[PredictedPoints]:
    """Select the points of a panel; none if there are too few."""
    curves = panel.curves
    predicted = [curve for curve in curves if curve.source == "predicted" and not curve.points.empty]
    pairs = [
        PredictedPoints(curve.label, curve.look, curve.source, rows)
        for curve in curves
        if curve.source in ("measured", "emulated") and not curve.points.empty
        if not (
            rows := _pair_with_predictions(
                curve, [other for other in predicted if other.strategy == curve.strategy]
            )
        ).empty
    ]
    if sum(len(pair.rows) for pair in pairs) < MIN_POINTS:
        return []
    single_strategy = len({curve.strategy for curve in curves}) == 1
    return [part for pair in pairs for part in _split_by_dimension(pair)] if single_strategy else pairs


def _split_by_dimension(pair: PredictedPoints) -> list[PredictedPoints]:
    """Split points by the number of axes that the grid splits, if it varies."""
    counts = sorted(set(map(int, pair.rows[DIMENSIONS])))
    if len(counts) == 1:
        return [pair]
    return [
        PredictedPoints(
            f"{pair.label}, {count}D grids",
            numbered_look(count - 1),
            pair.source,
            pair.rows[pair.rows[DIMENSIONS] == count],
        )
        for count in counts
    ]


def _pair_with_predictions(curve: Curve, predicted: Sequence[Curve]) -> pd.DataFrame:
    """Join the runs of a curve with their predictions, as columns `seconds` and `predicted`."""
    if not predicted:
        return pd.DataFrame()
    predictions = pd.concat([_median_by_grid(other, "predicted") for other in predicted])
    return _median_by_grid(curve, "seconds").merge(predictions, on=JOIN_COLUMNS)


def _median_by_grid(curve: Curve, name: str) -> pd.DataFrame:
    """Return the median epoch time of each grid over launches, in a column of this name."""
    split = (curve.points.filter(regex=r"^grid\.") > 1).sum(axis=1)
    points = curve.points.assign(**{DIMENSIONS: split})
    medians = points.groupby(JOIN_COLUMNS, dropna=False)["epoch_seconds_median"].median()
    return medians.rename(name).reset_index()


def assess_predictions(pairs: Sequence[PredictedPoints]) -> tuple[float, float]:
    """Return the rank correlation of all points of a panel and the median of their relative errors."""
    rows = pd.concat([pair.rows for pair in pairs])
    errors = (rows.predicted / rows.seconds - 1).abs()
    return float(rows.seconds.corr(rows.predicted, method="spearman")), float(errors.median())


def draw_points(axes: Axes, pairs: Sequence[PredictedPoints]) -> None:
    """Draw the points of one panel, the line of equality, and lines at a factor of two."""
    rows = pd.concat([pair.rows for pair in pairs])
    values = rows[["seconds", "predicted"]]
    unit = unit_for(float(values.max().max()))
    low, high = values.min().min() * unit.per_second / 1.5, values.max().max() * unit.per_second * 1.5
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.8, zorder=1)
    for factor in (FACTOR, 1 / FACTOR):
        axes.plot(
            [low, high], [factor * low, factor * high], color=MUTED, linewidth=0.6, linestyle=DOTTED, zorder=1
        )
    for pair in pairs:
        x, y = (pair.rows[name] * unit.per_second for name in ("seconds", "predicted"))
        axes.add_line(_make_markers(pair, x.tolist(), y.tolist()))
    ticks = _choose_ticks(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())
    order, error = assess_predictions(pairs)
    axes.text(
        0.97,
        0.04,
        f"{format_count(len(rows), 'run')}\nrank correlation {order:.2f}\nmedian error {100 * error:.0f} %",
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        linespacing=1.2,
    )
    axes.set_xlabel(f"{' or '.join(dict.fromkeys(pair.source for pair in pairs))} epoch time ({unit.name})")
    axes.set_ylabel(f"predicted epoch time ({unit.name})")


def _choose_ticks(low: float, high: float) -> list[float]:
    """Choose ticks for a logarithmic axis: 1, 2 and 5 times each power of ten, or fewer if these are many."""
    every = [digit * 10.0**power for power in range(-6, 10) for digit in (1, 2, 5)]
    inside = [tick for tick in every if low <= tick <= high]
    return inside if len(inside) <= 6 else inside[:: 1 + len(inside) // 6]


def _make_markers(pair: PredictedPoints, x: Sequence[float], y: Sequence[float]) -> Line2D:
    """Make the markers of a strategy, for axes or for a legend."""
    filled = pair.source == "measured"
    return Line2D(
        x,
        y,
        linestyle="none",
        color=pair.look.colour,
        marker=pair.look.marker,
        markersize=4.5,
        markerfacecolor=pair.look.colour if filled else PAPER,
        label=pair.label,
    )


def make_section(title: str, pairs: Sequence[PredictedPoints]) -> Section:
    """Make the axes of one panel."""
    return Section([Cell("", partial(draw_points, pairs=pairs), HEIGHT)], 1, title)


def draw_figure(panels: Sequence[Panel], contents: Sequence[list[PredictedPoints]]) -> Figure:
    """Draw the points of all panels."""
    handles = {pair.label: _make_markers(pair, [], []) for pairs in contents for pair in pairs}
    return compose_panels(panels, contents, make_section, list(handles.values()))


def tabulate(pairs: Sequence[PredictedPoints]) -> Iterator[dict[str, Any]]:
    """Yield a row for each point."""
    for pair in pairs:
        for row in pair.rows.sort_values(["ranks", "seconds"]).to_dict("records"):
            yield {
                "curve": pair.label,
                "ranks": row["ranks"],
                "grid": row["grid"],
                DIMENSIONS: row[DIMENSIONS],
                "seconds": row["seconds"],
                "predicted_seconds": row["predicted"],
            }


CAPTION = """\
Predicted epoch time over measured epoch time. A marker is a strategy and grid, the median over launches. If there is
a single strategy, colours distinguish grids that split one axis (1D), two (2D) or three (3D). Hollow markers are
emulated: measured kernels with the links of the machine's card. Both times are equal on the solid line, and within a
factor of two between the dotted lines. Each panel gives Spearman's rank correlation, which shows how well the order
of the grids is predicted, and the median of the relative errors."""
KIND = FigureKind(
    "prediction",
    "Predicted and measured epoch times",
    select_points,
    draw_figure,
    tabulate,
    caption=CAPTION,
    place=120,
)
