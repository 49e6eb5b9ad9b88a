"""How busy ranks are over time: the share of each window spent computing, for five seconds (G3's figure 13).

Of curves whose runs were asked for it (measure.utilisation_ms), at their largest number of ranks, the first launch, one
strip below the other. A window's share is the mean over ranks; timed epochs stand one after the other. Where a driver
tells how busy the devices were, a strip is that instead.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures import layout
from harness.figures.kind import Kind, Tables
from harness.figures.layout import write_beside
from harness.figures.palette import Look
from harness.figures.panels import Panel, largest

STRIP, FRAME = 0.42, 0.45  # inches
FILLED = 0.68  # of a strip; its label is above
SHOWN = 5.0  # seconds


class Strip(NamedTuple):
    """Of one run."""

    label: str
    look: Look
    series: pd.DataFrame


def strips(panel: Panel, tables: Tables) -> list[Strip]:
    """Of every measured curve with windows."""
    found = []
    for curve, points in largest(panel):
        windows = tables.utilisation.get(points.run_id.iloc[0])
        if windows is not None:
            busy = series(windows)
            mean = (busy.percent * busy.seconds).sum() / busy.seconds.sum()
            told = f"{curve.label}: peak {busy.percent.max():.0f} %, mean {mean:.0f} %"
            found.append(Strip(told, curve.look, busy[busy.begin < SHOWN]))
    return found


def series(windows: pd.DataFrame) -> pd.DataFrame:
    """Windows of timed epochs: when each begins, how long it is, and the percentage of it that ranks were busy."""
    timed = windows[windows.epoch >= 0]
    percent = timed.device_percent.fillna(100 * timed.computing_seconds / timed.seconds)
    groups = timed.assign(percent=percent).groupby(["epoch", "window"])
    each = groups.agg(seconds=("seconds", "max"), percent=("percent", "mean"))
    return each.assign(begin=each.seconds.cumsum() - each.seconds)


def draw(axes: Axes, shown: Sequence[Strip]) -> None:
    """One panel, filled from the top."""
    for number, (label, look, series) in enumerate(shown):
        top = series.percent / 100 * FILLED - number
        axes.fill_between(series.begin, -number, top, step="post", color=look.colour, linewidth=0)
        write_beside(axes, label, 0, FILLED + 0.16 - number, fontweight="bold")
    levels = [(share * FILLED - number, f"{share:.0%}") for number in range(len(shown)) for share in (0, 1)]
    axes.set_yticks([at for at, _ in levels], [told for _, told in levels])
    axes.set_ylim(0.95 - len(shown), 1)
    axes.set_xlim(0, max(float(strip.series.begin.max()) for strip in shown) or 1)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("computing")


def page(some: Sequence[Panel], shown: Sequence[Sequence[Strip]]) -> Figure:
    """A panel each."""
    heights = [FRAME + STRIP * len(strips) for strips in shown]
    figure, axes = layout.page(heights, [panel.title for panel in some])
    for each, strips in zip(axes, shown, strict=True):
        draw(each, strips)
    return figure


KIND = Kind("utilisation", "How busy ranks are", strips, page)
