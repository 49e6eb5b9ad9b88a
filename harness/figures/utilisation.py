"""How busy ranks are over time: the share of each window spent computing, for five seconds (G3's figure 13).

Of curves whose runs were asked for it (measure.utilisation_ms), at their largest number of ranks, the first launch. A
window's share is the mean over ranks; timed epochs stand one after the other. Where a driver tells how busy the devices
were, a line is that instead.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures import layout
from harness.figures.kind import Kind, Tables
from harness.figures.palette import Look
from harness.figures.panels import Panel, largest

HEIGHT = 1.6  # inches
SHOWN = 5.0  # seconds


class Line(NamedTuple):
    """Of one run: where windows begin, and the percentage of each."""

    label: str
    look: Look
    seconds: "pd.Series[float]"
    percent: "pd.Series[float]"


def lines(panel: Panel, tables: Tables) -> list[Line]:
    """Of every measured curve with windows."""
    found = []
    for curve, points in largest(panel):
        windows = tables.utilisation.get(points.run_id.iloc[0])
        if windows is not None:
            seconds, percent = series(windows)
            told = f"{curve.label}: peak {percent.max():.0f} %, mean {percent.mean():.0f} %"
            found.append(Line(told, curve.look, seconds[seconds < SHOWN], percent[seconds < SHOWN]))
    return found


def series(windows: pd.DataFrame) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """When each window of the timed epochs begins, and the percentage of it that ranks were busy."""
    timed = windows[windows.epoch >= 0]
    busy = timed.device_percent.fillna(100 * timed.computing_seconds / timed.seconds)
    each = (
        timed.assign(busy=busy)
        .groupby(["epoch", "window"])[["seconds", "busy"]]
        .agg({"seconds": "max", "busy": "mean"})
    )
    return each.seconds.cumsum() - each.seconds, each.busy


def draw(axes: Axes, shown: Sequence[Line]) -> None:
    """One panel."""
    for line in shown:
        axes.step(line.seconds, line.percent, where="post", color=line.look.colour, linewidth=0.7)
    axes.set_xlim(0, max(line.seconds.max() for line in shown) or 1)
    axes.set_ylim(0, 100)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("computing (%)")
    axes.grid(axis="y")


def page(some: Sequence[Panel], shown: Sequence[Sequence[Line]]) -> Figure:
    """A panel each."""
    figure, axes = layout.page([HEIGHT] * len(some), [panel.title for panel in some])
    told = [Line2D([], [], color=line.look.colour, label=line.label) for lines in shown for line in lines]
    layout.legend(figure, told)
    for each, lines in zip(axes, shown, strict=True):
        draw(each, lines)
    return figure


KIND = Kind("utilisation", "How busy ranks are", lines, page)
