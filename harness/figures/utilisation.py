"""The utilisation of ranks over time: the share of each window spent computing, for five seconds (G3's figure 13).

Every curve whose spec asks for windows (measure.utilisation_ms) has a strip: its first launch at its largest number of
ranks. A window's share is the mean over ranks; timed epochs follow one another. If a driver reports the utilisation of
the devices, the strip shows that number instead.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import Group, compose, frame, in_columns, places
from harness.figures.palette import MUTED, StrategyLook
from harness.figures.panels import Panel, counted, largest, titles

DEEP = 3.2
"""The height of a strip, in bars."""
SHOWN = 5.0  # seconds


class Strip(NamedTuple):
    """One run: its windows, the peak and the mean of all timed epochs, and its number of ranks."""

    label: str
    look: StrategyLook
    series: pd.DataFrame
    summary: str
    ranks: int


def strips(panel: Panel, tables: Tables) -> list[Strip]:
    """The strip of every measured curve with windows."""
    with_windows = []
    for curve, points in largest(panel):
        windows = tables.utilisation.get(points.run_id.iloc[0])
        if windows is not None:
            busy = series(windows)
            mean = (busy.percent * busy.seconds).sum() / busy.seconds.sum()
            summary = f"peak {busy.percent.max():.0f} %\nmean {mean:.0f} %"
            ranks = int(points.ranks.iloc[0])
            with_windows.append(Strip(curve.label, curve.look, busy[busy.begin < SHOWN], summary, ranks))
    return with_windows


def series(windows: pd.DataFrame) -> pd.DataFrame:
    """Windows of timed epochs: the begin and the length of each, and the percentage for which ranks were busy."""
    timed = windows[windows.epoch >= 0]
    percent = timed.device_percent.fillna(100 * timed.computing_seconds / timed.seconds)
    groups = timed.assign(percent=percent).groupby(["epoch", "window"])
    each = groups.agg(seconds=("seconds", "max"), percent=("percent", "mean"))
    return each.assign(begin=each.seconds.cumsum() - each.seconds)


def _groups(shown: Sequence[Strip]) -> list[Group[Strip | None]]:
    """Each strip as a group that is as deep as several bars."""
    return [Group(strip.label, [strip, *[None] * int(DEEP)]) for strip in shown]


def _longest(shown: Sequence[Strip]) -> float:
    return max(float((strip.series.begin + strip.series.seconds).max()) for strip in shown)


def draw(axes: Axes, groups: Sequence[Group[Strip | None]], longest: float) -> None:
    """Draws strips from the top down; `longest` are the seconds of the longest strip of the panel."""
    ticks = []
    for top, _, bars in places(groups):
        strip = bars[0][1]
        assert strip
        low = top + DEEP - 0.4
        axes.fill_between(
            strip.series.begin,
            low,
            low - DEEP * strip.series.percent / 100,
            step="post",
            color=strip.look.colour,
            linewidth=0,
        )
        axes.plot([0, SHOWN], [low, low], color=MUTED, linewidth=0.4)
        ticks += [(low, "0 %"), (low - DEEP, "100 %")]
        axes.text(
            1.02,
            low - DEEP / 2,
            f"{strip.summary}\n{counted(strip.ranks, 'rank')}",
            transform=axes.get_yaxis_transform(),
            va="center",
            linespacing=1.15,
        )
    frame(axes, groups, ticks, head="")
    axes.grid(visible=False)
    axes.set_xlim(0, min(longest, SHOWN) or 1)
    axes.set_xlabel("time (s)")


def page(some: Sequence[Panel], shown: Sequence[Sequence[Strip]]) -> Figure:
    """The figure: axes for each panel."""
    each, note = titles(some)
    sections = [
        in_columns(title, _groups(strips), partial(draw, longest=_longest(strips)))
        for title, strips in zip(each, shown, strict=True)
    ]
    return compose(sections, (), note)


def data(shown: Sequence[Strip]) -> Iterator[dict[str, Any]]:
    """A row for each window that is drawn."""
    for strip in shown:
        for begin, seconds, percent in strip.series[["begin", "seconds", "percent"]].itertuples(index=False):
            yield {
                "curve": strip.label,
                "ranks": strip.ranks,
                "begin_seconds": begin,
                "seconds": seconds,
                "computing_percent": percent,
            }


CAPTION = """\
Utilisation of ranks over the first five seconds of timed epochs: the share of each window spent computing, as the
mean over the ranks of a curve at its largest number of ranks. If a GPU's driver reports utilisation, the figure
shows that instead. On the right stand the peak and the mean over all timed epochs, and the number of ranks. A run
has windows if its spec sets `measure.utilisation_ms`."""
KIND = FigureKind("utilisation", "How busy ranks are", strips, page, data, caption=CAPTION, place=60)
