"""The utilisation of ranks over time: the share of each window spent computing, for five seconds (G3's figure 13).

Every curve whose spec asks for windows (measure.utilisation_ms) has a strip: its first launch at its largest number of
ranks. A window's share is the mean over ranks; timed epochs follow one another. If a driver reports the utilisation of
the devices, the strip shows that number instead.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures import page_layout
from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import write_beside
from harness.figures.palette import StrategyLook
from harness.figures.panels import Panel, largest

STRIP, FRAME = 0.42, 0.45  # inches
FILLED = 0.68  # share of a strip below its label
SHOWN = 5.0  # seconds


class Strip(NamedTuple):
    """One run: its windows under a label."""

    label: str
    look: StrategyLook
    series: pd.DataFrame


def strips(panel: Panel, tables: Tables) -> list[Strip]:
    """The strip of every measured curve with windows."""
    with_windows = []
    for curve, points in largest(panel):
        windows = tables.utilisation.get(points.run_id.iloc[0])
        if windows is not None:
            busy = series(windows)
            mean = (busy.percent * busy.seconds).sum() / busy.seconds.sum()
            label = f"{curve.label}: peak {busy.percent.max():.0f} %, mean {mean:.0f} %"
            with_windows.append(Strip(label, curve.look, busy[busy.begin < SHOWN]))
    return with_windows


def series(windows: pd.DataFrame) -> pd.DataFrame:
    """Windows of timed epochs: the begin and the length of each, and the percentage for which ranks were busy."""
    timed = windows[windows.epoch >= 0]
    percent = timed.device_percent.fillna(100 * timed.computing_seconds / timed.seconds)
    groups = timed.assign(percent=percent).groupby(["epoch", "window"])
    each = groups.agg(seconds=("seconds", "max"), percent=("percent", "mean"))
    return each.assign(begin=each.seconds.cumsum() - each.seconds)


def draw(axes: Axes, shown: Sequence[Strip]) -> None:
    """Draws one panel, from the top down."""
    for number, (label, look, series) in enumerate(shown):
        top = series.percent / 100 * FILLED - number
        axes.fill_between(series.begin, -number, top, step="post", color=look.colour, linewidth=0)
        write_beside(axes, label, 0, FILLED + 0.16 - number, fontweight="bold")
    ticks = [(share * FILLED - number, f"{share:.0%}") for number in range(len(shown)) for share in (0, 1)]
    axes.set_yticks([place for place, _ in ticks], [label for _, label in ticks])
    axes.set_ylim(0.95 - len(shown), 1)
    axes.set_xlim(0, max(float(strip.series.begin.max()) for strip in shown) or 1)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("computing")


def page(some: Sequence[Panel], shown: Sequence[Sequence[Strip]]) -> Figure:
    """The figure: axes for each panel."""
    heights = [FRAME + STRIP * len(strips) for strips in shown]
    figure, axes = page_layout.page(heights, [panel.title for panel in some])
    for each, strips in zip(axes, shown, strict=True):
        draw(each, strips)
    return figure


KIND = FigureKind("utilisation", "How busy ranks are", strips, page)
