"""The claims of a paper's figure: our value over the printed one, its interval, and the verdict by colour and marker.

A claim without a ratio, which is a statement in words or cannot be tested, has the sign of its verdict on the left
edge. Settings of a paper are drawn only if a figure has no other claims: the report lists them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, floor, isfinite, log2, nan
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

UNTESTED = "cannot be tested here"
LOOKS = {
    "holds": (BLUE, "o"),
    "within a factor": (ORANGE, "D"),
    "contradicted": (RED, "X"),
    "fitted": (GREY, "s"),
    UNTESTED: (MUTED, "_"),
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
    return [Panel(str(figure), "", rows) for figure, rows in shown.groupby("figure")]


def dots(panel: Panel, _: Tables) -> list[Dot]:
    """The results among a figure's claims, or all claims if no result is among them."""
    results = panel.runs[panel.runs.basis.isin(RESULTS)]
    drawn = results if len(results) else panel.runs
    return [_dot(row) for _, row in drawn.iterrows() if row.verdict in LOOKS]


def _dot(row: "pd.Series[Any]") -> Dot:
    """A claim; without a ratio it has NaN."""
    ratio = float(row.ratio) if row.ratio > 0 else nan
    label = f"{row.what} ({row.config})" if row.config else str(row.what)
    low = float(row.ratio_low) if row.ratio_low > 0 else ratio
    high = float(row.ratio_high) if row.ratio_high > 0 else ratio
    return Dot(label, f"{row.ours or 'untested'}  /  {row.printed}", ratio, low, high, row.verdict)


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
    ends = [end for dot in each for end in (dot.low, dot.high) if isfinite(end)] or [1.0]
    low, high = floor(min(-1.0, log2(min(ends)))), ceil(max(1.0, log2(max(ends))))
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0 ** (low - 0.2), 2.0 ** (high + 0.2))
    step = ceil((high - low) / 5)
    powers = [power for power in range(low, high + 1) if power % step == 0]
    names = [f"{2**power}" if power >= 0 else f"1/{2**-power}" for power in powers]
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in powers]))
    axes.xaxis.set_major_formatter(FixedFormatter(names))
    axes.xaxis.set_minor_locator(NullLocator())
    if any(isfinite(dot.ratio) for dot in each):
        axes.set_xlabel("ours over printed")
        axes.axvline(1, color=MUTED, linewidth=0.8)
    else:
        axes.set_xticks([])
    at, depths = 0.0, _depths(each)
    places, across = [], axes.get_yaxis_transform()
    for dot, depth in zip(each, depths, strict=True):
        y = at + depth / 2
        at += depth
        places.append(y)
        colour, marker = LOOKS[dot.verdict]
        if isfinite(dot.ratio):
            axes.plot([dot.low, dot.high], [y, y], color=colour, linewidth=1.2)
            axes.plot([dot.ratio], [y], color=colour, marker=marker, markersize=4)
        else:
            axes.plot([0], [y], color=colour, marker=marker, markersize=4, transform=across, clip_on=False)
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
    wide = 0.0 if verdict == UNTESTED else 1.2
    return Line2D([], [], color=colour, marker=marker, linewidth=wide, label=verdict)


CAPTION = """\
Claims of papers that a figure or table shows: our value over the printed one, the interval of a prediction, and the
verdict. On the right stand our value and the printed one. A measured value counts if the paper's own run was made;
otherwise a prediction, a formula or a card. A sign on the left edge belongs to a claim without a ratio: a statement
in words, or one that cannot be tested on this machine."""
KIND = FigureKind(
    "papers", "Beside the papers", dots, page, data, paper_panels, of="claims", caption=CAPTION, place=130
)
