"""Utilisation of ranks over the first five seconds: the share of each window spent computing (G3's figure 13).

Each curve whose spec asks for windows (measure.utilisation_ms) has a strip, which shows the first launch at its largest
number of ranks. The share of a window is the mean over ranks, and timed epochs follow one another. If the driver
reports the utilisation of the devices, the strip shows that instead.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables, compose_panels
from harness.figures.page_layout import BarGroup, Section, arrange_in_columns, label_bar_groups, position_bars
from harness.figures.palette import MUTED, CurveLook
from harness.figures.panels import Panel, select_largest_ranks
from harness.formatting import format_count

STRIP_HEIGHT = 3.2  # rows
SHOWN_SECONDS = 5.0


class Strip(NamedTuple):
    """One run: its windows, a summary of all timed epochs, and its number of ranks."""

    label: str
    look: CurveLook
    windows: pd.DataFrame
    summary: str
    ranks: int


def select_strips(panel: Panel, tables: Tables) -> list[Strip]:
    """Make the strip of every measured curve that has windows."""
    strips = []
    for curve, points in select_largest_ranks(panel):
        windows = tables.utilisation.get(points.run_id.iloc[0])
        if windows is not None:
            busy = average_ranks(windows)
            mean = (busy.percent * busy.seconds).sum() / busy.seconds.sum()
            summary = f"peak {busy.percent.max():.0f} %\nmean {mean:.0f} %"
            ranks = int(points.ranks.iloc[0])
            strips.append(Strip(curve.label, curve.look, busy[busy.begin < SHOWN_SECONDS], summary, ranks))
    return strips


def average_ranks(windows: pd.DataFrame) -> pd.DataFrame:
    """Return the start, length and utilisation of each window of the timed epochs, averaged over ranks."""
    timed = windows[windows.epoch >= 0]
    percent = timed.device_percent.fillna(100 * timed.computing_seconds / timed.seconds)
    groups = timed.assign(percent=percent).groupby(["epoch", "window"])
    each = groups.agg(seconds=("seconds", "max"), percent=("percent", "mean"))
    return each.assign(begin=each.seconds.cumsum() - each.seconds)


def draw_strips(axes: Axes, groups: Sequence[BarGroup[Strip | None]], longest: float) -> None:
    """Draw strips from top to bottom. `longest` is the length of the longest strip of the panel in seconds."""
    ticks = []
    for top, _, bars in position_bars(groups):
        strip = bars[0][1]
        assert strip
        low = top + STRIP_HEIGHT - 0.4
        axes.fill_between(
            strip.windows.begin,
            low,
            low - STRIP_HEIGHT * strip.windows.percent / 100,
            step="post",
            color=strip.look.colour,
            linewidth=0,
        )
        axes.plot([0, SHOWN_SECONDS], [low, low], color=MUTED, linewidth=0.4)
        ticks += [(low, "0 %"), (low - STRIP_HEIGHT, "100 %")]
        axes.text(
            1.02,
            low - STRIP_HEIGHT / 2,
            f"{strip.summary}\n{format_count(strip.ranks, 'rank')}",
            transform=axes.get_yaxis_transform(),
            va="center",
            linespacing=1.15,
        )
    label_bar_groups(axes, groups, ticks, heading="")
    axes.grid(visible=False)
    axes.set_xlim(0, min(longest, SHOWN_SECONDS) or 1)
    axes.set_xlabel("time (s)")


def make_section(title: str, strips: Sequence[Strip]) -> Section:
    """Make the axes of one panel. Each strip is a group as tall as several bars."""
    groups = [BarGroup(strip.label, [strip, *[None] * int(STRIP_HEIGHT)]) for strip in strips]
    longest = max(float((strip.windows.begin + strip.windows.seconds).max()) for strip in strips)
    return arrange_in_columns(title, groups, partial(draw_strips, longest=longest))


def draw_figure(panels: Sequence[Panel], contents: Sequence[Sequence[Strip]]) -> Figure:
    """Draw the strips of all panels."""
    return compose_panels(panels, contents, make_section)


def tabulate(strips: Sequence[Strip]) -> Iterator[dict[str, Any]]:
    """Yield a row for each window that is drawn."""
    for strip in strips:
        for begin, seconds, percent in strip.windows[["begin", "seconds", "percent"]].itertuples(index=False):
            yield {
                "curve": strip.label,
                "ranks": strip.ranks,
                "begin_seconds": begin,
                "seconds": seconds,
                "computing_percent": percent,
            }


CAPTION = """\
Utilisation of the ranks during the first five seconds of timed epochs: the share of each window spent computing, as
the mean over the ranks of a curve at its largest number of ranks. If the driver of a GPU reports its utilisation,
the figure shows that instead. On the right are the peak and the mean over all timed epochs, and the number of ranks.
A run has windows if its spec sets `measure.utilisation_ms`."""
KIND = FigureKind(
    "utilisation", "Utilisation of ranks", select_strips, draw_figure, tabulate, caption=CAPTION, place=60
)
