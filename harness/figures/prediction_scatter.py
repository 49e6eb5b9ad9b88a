"""Predicted epochs against measured or emulated ones, where the same runs have both (Plexus's figure 5).

A marker is a strategy. Where a panel has a single strategy, it is the number of axes that the grid splits.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import Cell, Section, compose
from harness.figures.palette import MUTED, PAPER, StrategyLook, look_of_number
from harness.figures.panels import VARIANT, Curve, Panel, counted, titles
from harness.figures.scaling import DOTTED
from harness.figures.units import unit_for

DIMENSIONS = "dimensions"
"""The column with the number of axes along which a grid has several ranks."""
SAME = [*VARIANT, "ranks", "grid", DIMENSIONS]
"""The columns in which two runs of a strategy agree that a panel compares."""
FEWEST = 3
"""Points below which nothing can be said of an order."""
HEIGHT = 2.6  # inches
FACTOR = 2.0


class PredictedPoints(NamedTuple):
    """Runs of one strategy that were predicted and took place, with the seconds of both."""

    label: str
    look: StrategyLook
    source: str
    rows: pd.DataFrame


def shown(panel: Panel, _: Tables) -> list[PredictedPoints]:
    """The points of a panel, if these are enough."""
    some = panel.curves
    predicted = [curve for curve in some if curve.source == "predicted" and not curve.points.empty]
    pairs = [
        PredictedPoints(curve.label, curve.look, curve.source, rows)
        for curve in some
        if curve.source in ("measured", "emulated") and not curve.points.empty
        if not (
            rows := _paired(curve, [other for other in predicted if other.strategy == curve.strategy])
        ).empty
    ]
    if sum(len(pair.rows) for pair in pairs) < FEWEST:
        return []
    alone = len({curve.strategy for curve in some}) == 1
    return [part for pair in pairs for part in _by_dimension(pair)] if alone else pairs


def _by_dimension(pair: PredictedPoints) -> list[PredictedPoints]:
    """The points apart by the number of split axes, if these differ."""
    counts = sorted(set(map(int, pair.rows[DIMENSIONS])))
    if len(counts) == 1:
        return [pair]
    return [
        PredictedPoints(
            f"{pair.label}, {count}D grids",
            look_of_number(count - 1),
            pair.source,
            pair.rows[pair.rows[DIMENSIONS] == count],
        )
        for count in counts
    ]


def _paired(curve: Curve, predicted: Sequence[Curve]) -> pd.DataFrame:
    """The grids of a curve that were predicted too: `seconds`, and `predicted`."""
    if not predicted:
        return pd.DataFrame()
    known = pd.concat([_by_grid(other, "predicted") for other in predicted])
    return _by_grid(curve, "seconds").merge(known, on=SAME)


def _by_grid(curve: Curve, name: str) -> pd.DataFrame:
    split = (curve.points.filter(regex=r"^grid\.") > 1).sum(axis=1)
    points = curve.points.assign(**{DIMENSIONS: split})
    medians = points.groupby(SAME, dropna=False)["epoch_seconds_median"].median()
    return medians.rename(name).reset_index()


def verdict(pairs: Sequence[PredictedPoints]) -> tuple[float, float]:
    """The rank correlation of all points of a panel, and the median of their relative errors."""
    rows = pd.concat([pair.rows for pair in pairs])
    errors = (rows.predicted / rows.seconds - 1).abs()
    return float(rows.seconds.corr(rows.predicted, method="spearman")), float(errors.median())


def draw(axes: Axes, pairs: Sequence[PredictedPoints]) -> None:
    """Draws one panel."""
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
        axes.add_line(_sample(pair, x.tolist(), y.tolist()))
    ticks = _ticks(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())
    order, error = verdict(pairs)
    axes.text(
        0.97,
        0.04,
        f"{counted(len(rows), 'run')}\nrank correlation {order:.2f}\nmedian error {100 * error:.0f} %",
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        linespacing=1.2,
    )
    axes.set_xlabel(f"{' or '.join(dict.fromkeys(pair.source for pair in pairs))} epoch ({unit.name})")
    axes.set_ylabel(f"predicted epoch ({unit.name})")


def _ticks(low: float, high: float) -> list[float]:
    """Numbers of one digit on a logarithmic axis: 1, 2 and 5 of each decade, or fewer where there are many."""
    every = [digit * 10.0**power for power in range(-6, 10) for digit in (1, 2, 5)]
    inside = [tick for tick in every if low <= tick <= high]
    return inside if len(inside) <= 6 else inside[:: 1 + len(inside) // 6]


def _sample(pair: PredictedPoints, x: Sequence[float], y: Sequence[float]) -> Line2D:
    """The markers of a strategy, for the axes or for the legend."""
    full = pair.source == "measured"
    return Line2D(
        x,
        y,
        linestyle="none",
        color=pair.look.colour,
        marker=pair.look.marker,
        markersize=4.5,
        markerfacecolor=pair.look.colour if full else PAPER,
        label=pair.label,
    )


def page(some: Sequence[Panel], contents: Sequence[list[PredictedPoints]]) -> Figure:
    """The figure: axes for each panel."""
    each, note = titles(some)
    sections = [
        Section([Cell("", partial(draw, pairs=pairs), HEIGHT)], 1, title)
        for title, pairs in zip(each, contents, strict=True)
    ]
    entries = {pair.label: _sample(pair, [], []) for pairs in contents for pair in pairs}
    return compose(sections, list(entries.values()), note)


def data(pairs: Sequence[PredictedPoints]) -> Iterator[dict[str, Any]]:
    """A row for each point."""
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
Predicted seconds of an epoch over measured ones, a marker for each strategy and grid: the median over launches.
Where a single strategy ran, colours tell grids that split one axis (1D) from those that split two or three. Hollow
markers: emulated, which is measured kernels on the links of the machine's card. On the line both are equal; between
the dotted lines they differ by less than a factor of two. Each panel says how well the order of the grids is
predicted (the rank correlation of Spearman) and the median of the relative errors."""
KIND = FigureKind(
    "prediction", "Predicted against measured epochs", shown, page, data, caption=CAPTION, place=120
)
