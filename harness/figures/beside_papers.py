"""The claims of a paper's figure: our value over the printed one, its interval, and the verdict by colour and marker.

Settings of a paper, statements in words, and claims that cannot be tested are not drawn: the report lists them.
"""

from collections.abc import Sequence
from math import ceil, floor, log2
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from harness.figures import page_layout
from harness.figures.kind import FigureKind, Tables
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
ROW = 0.15
"""Inches of a claim's row."""
VALUES = 0.29
"""The part of the page's width for the values, on the right of the axes."""
LONGEST = 74
"""The characters of a label."""


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
            row.what if len(row.what) <= LONGEST else f"{row.what[: LONGEST - 1]}…",
            f"{row.ours}  /  {row.printed}",
            row.ratio,
            row.ratio_low if row.ratio_low > 0 else row.ratio,
            row.ratio_high,
            row.verdict,
        )
        for _, row in drawn.iterrows()
    ]


def page(some: Sequence[Panel], shown: Sequence[Sequence[Dot]]) -> Figure:
    """The figure: axes for each panel, one above the other."""
    heights = [0.62 + ROW * len(each) for each in shown]
    titles = [panel.title for panel in some]
    figure, rows = page_layout.rows_of(1, heights, titles)
    figure.set_layout_engine("constrained", rect=(0, 0, 1 - VALUES, 1))
    for (axes,), each in zip(rows, shown, strict=True):
        _draw(axes, each)
    verdicts = [name for name in LOOKS if any(dot.verdict == name for each in shown for dot in each)]
    page_layout.legend(figure, [_handle(name) for name in verdicts])
    return figure


def _draw(axes: Axes, each: Sequence[Dot]) -> None:
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
    for y, dot in enumerate(each):
        colour, marker = LOOKS[dot.verdict]
        axes.plot([dot.low, dot.high], [y, y], color=colour, linewidth=1.2)
        axes.plot([dot.ratio], [y], color=colour, marker=marker, markersize=4)
        values = axes.text(
            1.02, y, dot.values, transform=axes.get_yaxis_transform(), va="center_baseline", color=INK
        )
        values.set_in_layout(False)
    axes.set_ylim(len(each) - 0.4, -0.6)
    axes.set_yticks(range(len(each)), [dot.label for dot in each])
    axes.tick_params(axis="y", length=0)


def _handle(verdict: str) -> Line2D:
    colour, marker = LOOKS[verdict]
    return Line2D([], [], color=colour, marker=marker, linewidth=1.2, label=verdict)


KIND = FigureKind("papers", "Beside the papers", dots, page, paper_panels, of="claims")
