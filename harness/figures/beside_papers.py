"""The claims of a paper's figure: our value over the printed one, its interval, and the verdict by colour and marker.

Settings of a paper, statements in words, and claims that cannot be tested are not drawn: the report lists them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, floor, log2
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import PAGE, Cell, Section, compose, wrapped
from harness.figures.palette import BLUE, GREY, INK, MUTED, ORANGE, RED
from harness.figures.panels import Panel

LOOKS = {
    "holds": (BLUE, "o"),
    "within a factor": (ORANGE, "D"),
    "contradicted": (RED, "X"),
    "fitted": (GREY, "s"),
}
RESULTS = ("formula", "prediction", "run")
"""What a result is held against; settings are held against cards and experiments."""
LINE = 0.13
"""Inches of a line of a claim's label."""
LABEL, VALUES = 3.0, 1.3
"""Inches of the widest label on the left, and of the values on the right."""


class Dot(NamedTuple):
    """One claim."""

    label: str
    values: str
    ratio: float
    low: float
    high: float
    verdict: str


def paper_panels(claims: pd.DataFrame) -> list[Panel]:
    """A panel for each figure of a paper."""
    shown = claims[claims.figure != ""]
    return [Panel(str(figure), "", rows) for figure, rows in shown.groupby("figure", sort=False)]


def dots(panel: Panel, _: Tables) -> list[Dot]:
    """The results among a figure's claims that have a ratio."""
    rows = panel.runs
    drawn = rows[rows.verdict.isin(list(LOOKS)) & rows.basis.isin(RESULTS) & (rows.ratio > 0)]
    return [
        Dot(
            row.what,
            f"{row.ours}  /  {row.printed}",
            row.ratio,
            row.ratio_low if row.ratio_low > 0 else row.ratio,
            row.ratio_high,
            row.verdict,
        )
        for _, row in drawn.iterrows()
    ]


def _lines(dot: Dot) -> tuple[list[str], list[str]]:
    """The label and the values, as lines."""
    return wrapped(dot.label, LABEL), wrapped(dot.values, VALUES)


def _depths(each: Sequence[Dot]) -> list[float]:
    """The height of each claim's row, in inches."""
    return [LINE * max(map(len, _lines(dot))) + 0.03 for dot in each]


def page(some: Sequence[Panel], shown: Sequence[Sequence[Dot]]) -> Figure:
    """The figure: axes for each panel, one above the other."""
    parts = [
        Section([Cell("", partial(draw, each=each), sum(_depths(each)) + 0.05)], 1, panel.title)
        for panel, each in zip(some, shown, strict=True)
    ]
    verdicts = [name for name in LOOKS if any(dot.verdict == name for each in shown for dot in each)]
    return compose(parts, [_handle(name) for name in verdicts], stacked=PAGE)


def draw(axes: Axes, each: Sequence[Dot]) -> None:
    """Draws the claims of one figure from the top down, our value and the printed one on the right."""
    ends = [end for dot in each for end in (dot.low, dot.high)]
    low, high = floor(min(-1.0, log2(min(ends)))), ceil(max(1.0, log2(max(ends))))
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0 ** (low - 0.2), 2.0 ** (high + 0.2))
    step = ceil((high - low) / 5)
    powers = [power for power in range(low, high + 1) if power % step == 0]
    names = [f"{2**power}" if power >= 0 else f"1/{2**-power}" for power in powers]
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in powers]))
    axes.xaxis.set_major_formatter(FixedFormatter(names))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ours over printed")
    axes.axvline(1, color=MUTED, linewidth=0.8)
    at, depths = 0.0, _depths(each)
    places, across = [], axes.get_yaxis_transform()
    for dot, depth in zip(each, depths, strict=True):
        y = at + depth / 2
        at += depth
        places.append(y)
        colour, marker = LOOKS[dot.verdict]
        axes.plot([dot.low, dot.high], [y, y], color=colour, linewidth=1.2)
        axes.plot([dot.ratio], [y], color=colour, marker=marker, markersize=4)
        axes.text(
            1.02, y, "\n".join(_lines(dot)[1]), transform=across, va="center", color=INK, linespacing=1.15
        )
    axes.set_ylim(at + 0.03, -0.02)
    axes.set_yticks(places, ["\n".join(_lines(dot)[0]) for dot in each], linespacing=1.15)
    axes.tick_params(axis="y", length=0)


def data(each: Sequence[Dot]) -> Iterator[dict[str, Any]]:
    """A row for each claim."""
    for dot in each:
        yield dot._asdict()


def _handle(verdict: str) -> Line2D:
    colour, marker = LOOKS[verdict]
    return Line2D([], [], color=colour, marker=marker, linewidth=1.2, label=verdict)


KIND = FigureKind("papers", "Beside the papers", dots, page, data, paper_panels, of="claims")
