"""The claims behind a figure of a paper: our value divided by the printed one, its interval, and the verdict.

Colours and markers show the verdict. A claim without a ratio, because it is a statement or cannot be tested, has its
marker on the left edge. Settings of a paper are drawn only if the figure has no other claims; the report lists them.
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
from harness.figures.page_layout import PAGE_WIDTH, Cell, Section, compose_figure, wrap_text
from harness.figures.palette import BLUE, GREY, INK, MUTED, ORANGE, RED
from harness.figures.panels import Panel

UNTESTED = "cannot be tested here"
VERDICT_LOOKS = {
    "holds": (BLUE, "o"),
    "consistent": (BLUE, "s"),
    "within a factor": (ORANGE, "D"),
    "contradicted": (RED, "X"),
    "fitted": (GREY, "s"),
    UNTESTED: (MUTED, "_"),
}
RESULT_BASES = ("formula", "prediction", "run")
"""Where our value of a result is taken from. Settings are compared with cards and experiments instead."""
LINE_HEIGHT = 0.13  # inches
LABEL_WIDTH, VALUES_WIDTH = 3.0, 1.3
"""Inches, at which the labels on the left and the values on the right are wrapped."""


class ClaimDot(NamedTuple):
    """One claim, as it is drawn. Without a ratio, `ratio`, `low` and `high` are NaN."""

    label: str
    values: str
    ratio: float
    low: float
    high: float
    verdict: str


def split_by_paper_figure(claims: pd.DataFrame) -> list[Panel]:
    """Split claims into panels, one for each figure of a paper."""
    shown = claims[claims.figure != ""]
    return [Panel(str(figure), "", rows) for figure, rows in shown.groupby("figure")]


def select_claims(panel: Panel, _: Tables) -> list[ClaimDot]:
    """Select the results among the claims of a figure, or all claims if there are no results."""
    results = panel.runs[panel.runs.basis.isin(RESULT_BASES)]
    drawn = results if len(results) else panel.runs
    return [_make_dot(row) for _, row in drawn.iterrows() if row.verdict in VERDICT_LOOKS]


def _make_dot(row: "pd.Series[Any]") -> ClaimDot:
    ratio = float(row.ratio) if row.ratio > 0 else nan
    label = f"{row.what} ({row.config})" if row.config else str(row.what)
    low = float(row.ratio_low) if row.ratio_low > 0 else ratio
    high = float(row.ratio_high) if row.ratio_high > 0 else ratio
    return ClaimDot(label, f"{row.ours or 'untested'}  /  {row.printed}", ratio, low, high, row.verdict)


def _wrap_texts(dot: ClaimDot) -> tuple[list[str], list[str]]:
    """Return the lines of the label and of the values."""
    return wrap_text(dot.label, LABEL_WIDTH), wrap_text(dot.values, VALUES_WIDTH)


def _row_heights(claims: Sequence[ClaimDot]) -> list[float]:
    """Return the height of each claim in inches."""
    return [LINE_HEIGHT * max(map(len, _wrap_texts(dot))) + 0.03 for dot in claims]


def draw_figure(panels: Sequence[Panel], contents: Sequence[Sequence[ClaimDot]]) -> Figure:
    """Draw axes for each panel, one below the other."""
    sections = [
        Section(
            [Cell("", partial(draw_claims, claims=claims), sum(_row_heights(claims)) + 0.05)], 1, panel.title
        )
        for panel, claims in zip(panels, contents, strict=True)
    ]
    found = {dot.verdict for claims in contents for dot in claims}
    handles = [_make_handle(verdict) for verdict in VERDICT_LOOKS if verdict in found]
    return compose_figure(sections, handles, stacked_width=PAGE_WIDTH)


def draw_claims(axes: Axes, claims: Sequence[ClaimDot]) -> None:
    """Draw the claims of one figure from top to bottom, with our value and the printed one on the right."""
    ends = [end for dot in claims for end in (dot.low, dot.high) if isfinite(end)] or [1.0]
    low, high = floor(min(-1.0, log2(min(ends)))), ceil(max(1.0, log2(max(ends))))
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0 ** (low - 0.2), 2.0 ** (high + 0.2))
    step = ceil((high - low) / 5)
    powers = [power for power in range(low, high + 1) if power % step == 0]
    names = [f"{2**power}" if power >= 0 else f"1/{2**-power}" for power in powers]
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in powers]))
    axes.xaxis.set_major_formatter(FixedFormatter(names))
    axes.xaxis.set_minor_locator(NullLocator())
    if any(isfinite(dot.ratio) for dot in claims):
        axes.set_xlabel("our value / printed value")
        axes.axvline(1, color=MUTED, linewidth=0.8)
    else:
        axes.set_xticks([])
    bottom, ticks, transform = 0.0, [], axes.get_yaxis_transform()
    for dot, height in zip(claims, _row_heights(claims), strict=True):
        y = bottom + height / 2
        bottom += height
        ticks.append(y)
        colour, marker = VERDICT_LOOKS[dot.verdict]
        if isfinite(dot.ratio):
            axes.plot([dot.low, dot.high], [y, y], color=colour, linewidth=1.2)
            axes.plot([dot.ratio], [y], color=colour, marker=marker, markersize=4)
        else:
            axes.plot([0], [y], color=colour, marker=marker, markersize=4, transform=transform, clip_on=False)
        axes.text(
            1.02,
            y,
            "\n".join(_wrap_texts(dot)[1]),
            transform=transform,
            va="center",
            color=INK,
            linespacing=1.15,
        )
    axes.set_ylim(bottom + 0.03, -0.02)
    axes.set_yticks(ticks, ["\n".join(_wrap_texts(dot)[0]) for dot in claims], linespacing=1.15)
    axes.tick_params(axis="y", length=0)


def tabulate(claims: Sequence[ClaimDot]) -> Iterator[dict[str, Any]]:
    """Yield a row for each claim."""
    for dot in claims:
        yield dot._asdict()


def _make_handle(verdict: str) -> Line2D:
    """Make the legend entry of a verdict."""
    colour, marker = VERDICT_LOOKS[verdict]
    width = 0.0 if verdict == UNTESTED else 1.2
    return Line2D([], [], color=colour, marker=marker, linewidth=width, label=verdict)


CAPTION = """\
Claims behind a figure or table of a paper: our value divided by the printed one, the interval of a prediction, and
the verdict. On the right are our value and the printed one. Our value is measured if the paper's own run was made;
otherwise it comes from a prediction, a formula or a card. Markers on the left edge are claims without a ratio:
statements, and claims that cannot be tested on this machine."""
KIND = FigureKind(
    "papers",
    "Comparison with papers",
    select_claims,
    draw_figure,
    tabulate,
    split_by_paper_figure,
    table="claims",
    caption=CAPTION,
    place=130,
)
