"""Throughput: vertices a second of all ranks together, over the varied setting (G3's measure).

The varied setting is the number of ranks, unless models had several depths or features had several widths: then it is
the depth or the width, at each curve's largest number of ranks. A line joins the medians over launches, each on the
best grid; a band shows their range; the dotted line is linear scaling from a curve's first point. Lines of runs that
were predicted or emulated look as in the figure of scaling.

A second kind has bars: the throughput of each strategy over that of DistDGL-style mini-batches at the same place, which
is how papers say what a system gains (G3's figure 14). Both are of one source: measured, emulated or predicted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import Group, compose, frame, in_columns, places, write_beside
from harness.figures.palette import MUTED, PAPER
from harness.figures.panels import Curve, DrawnColumn, Panel, data, followed, panels, titles
from harness.figures.scaling import handles, sections
from harness.figures.units import COUNTS, scale_for, three_digits
from harness.spec.dataset import strip_width

SWEPT = {"graph.features": "width of the features", "model.layers": "layers", "ranks": "ranks"}
"""Settings that may vary, and their titles; the first that does is x."""
COLUMN = "vertices_per_second"


def together(runs: pd.DataFrame) -> list[Panel]:
    """Panels that do not separate depths, nor widths of one graph's features."""
    graphs = runs["dataset.name"].map(strip_width)
    return panels(runs.assign(**{"dataset.name": graphs}), apart=("model.layers",))


def varied(panel: Panel) -> str:
    """The setting that x shows."""
    return next((name for name in SWEPT if panel.runs[name].nunique() > 1), "ranks")


def lines(panel: Panel, _: Tables) -> list[Curve]:
    """Every curve that has a throughput, with the runs that are drawn."""
    over, some = varied(panel), []
    for curve in panel.curves:
        points = curve.points.dropna(subset=[COLUMN])
        if over != "ranks":
            points = points[points.ranks == points.ranks.max()]
        if len(points):
            some.append(replace(curve, runs=points))
    return some if over == "ranks" else followed(some, over, SWEPT[over])


def rates(panel: Panel, shown: Sequence[Curve]) -> DrawnColumn:
    """Throughput over what was varied, in the unit that suits the fastest."""
    over = varied(panel)
    scale = scale_for(max(float(curve.points[COLUMN].max()) for curve in shown), COUNTS)
    label = f"{scale.name}vertices / s"
    return DrawnColumn(COLUMN, "max", over, SWEPT[over], label, 1 / scale.size, 1 if over == "ranks" else 0)


def page(some: Sequence[Panel], shown: Sequence[list[Curve]]) -> Figure:
    """The figure: axes for each panel."""
    each, note = titles(some)
    measures = [rates(panel, lines) for panel, lines in zip(some, shown, strict=True)]
    parts = [
        part
        for title, lines, measure in zip(each, shown, measures, strict=True)
        for part in sections(title, lines, measure)
    ]
    over_ranks = next((measure for measure in measures if measure.ideal), measures[0])
    return compose(parts, handles(parts, over_ranks), note)


def numbers(shown: Sequence[Curve]) -> Iterator[dict[str, Any]]:
    """A row for each launch."""
    return data(shown, COLUMN)


CAPTION = """\
Vertices a second, all ranks together, over the number of ranks. If models had several depths or features several
widths, x is the depth or the width, at each curve's largest number of ranks. A marker is the median over launches,
the band their range. Setup and compilation are excluded. Dotted line: linear scaling from a curve's first point.
Solid lines: measured. Dashed lines: predicted; dashed and dotted: emulated. Dotted ground: measured ranks shared
cores, so the times say nothing of scaling. Hollow markers: other programs (with a line), published values (without).
Strategies of a single number of ranks are listed, with the median on the right."""
KIND = FigureKind("throughput", "Throughput", lines, page, numbers, together, caption=CAPTION, place=20)


# Throughputs over that of a baseline.

BASELINE = "distdgl"
"""The strategy that every other one is set beside."""


class Gain(NamedTuple):
    """A curve's throughput over the baseline's at one place."""

    curve: Curve
    at: int
    ratio: float


class Gains(NamedTuple):
    """The gains of a panel, and the title of what was varied."""

    across: str
    each: list[Gain]

    @property
    def groups(self) -> list[Group[Gain]]:
        """The gains of every curve, under its label."""
        curves = dict.fromkeys(gain.curve for gain in self.each)
        return [Group(curve.label, [gain for gain in self.each if gain.curve is curve]) for curve in curves]


def gains(panel: Panel, tables: Tables) -> Gains | None:
    """The gain of each curve wherever the baseline has a throughput of the same source; None without any."""
    over, each = varied(panel), list[Gain]()
    shown = lines(panel, tables)
    for curve in shown:
        beside = [other for other in shown if other.strategy == BASELINE and other.source == curve.source]
        if curve.strategy == BASELINE or not beside:
            continue
        runs = pd.concat([other.runs for other in beside])
        slow = replace(beside[0], runs=runs).over(over, COLUMN, best="max").set_index(over).middle
        fast = curve.over(over, COLUMN, best="max").set_index(over).middle
        ratios = (fast / slow).dropna()
        each += [Gain(curve, int(at), ratio) for at, ratio in zip(ratios.index, ratios, strict=True)]
    return Gains(SWEPT[over], each) if each else None


def draw_gains(axes: Axes, groups: Sequence[Group[Gain]], across: str, largest: float) -> None:
    """Draws the gains of a panel from the top down; `largest` is that of the panel."""
    ticks = []
    for _, _, bars in places(groups):
        for y, gain in bars:
            axes.barh(y, gain.ratio, 0.74, color=gain.curve.look.colour, edgecolor=PAPER, linewidth=0.3)
            write_beside(axes, three_digits(gain.ratio), max(gain.ratio, 1.0), y)
            ticks.append((y, f"{gain.at:,}"))
    axes.axvline(1, color=MUTED, linewidth=0.8)
    axes.set_xlim(0, max(largest, 1.0))
    frame(axes, groups, ticks, head=across)
    axes.set_xlabel(f"throughput over that of {BASELINE}")


def gain_page(some: Sequence[Panel], shown: Sequence[Gains]) -> Figure:
    """The figure: axes for each panel."""
    each, note = titles(some)
    parts = [
        in_columns(
            title,
            content.groups,
            partial(draw_gains, across=content.across, largest=max(gain.ratio for gain in content.each)),
        )
        for title, content in zip(each, shown, strict=True)
    ]
    return compose(parts, (), note)


def gain_data(shown: Gains) -> Iterator[dict[str, Any]]:
    """A row for each bar."""
    for gain in shown.each:
        yield {"curve": gain.curve.label, "over": shown.across, "at": gain.at, "ratio": gain.ratio}


GAIN_CAPTION = """\
Vertices a second of each strategy over those of DistDGL-style mini-batches (``distdgl``) on the same graph, model
and machine, at the same number of ranks, layers or features. Beyond the line at 1 a strategy is faster. Each ratio
is of two medians over launches of one source: measured, emulated or predicted. The note says where measured ranks
shared cores."""
GAIN_KIND = FigureKind(
    "gain",
    f"Throughput over that of {BASELINE}",
    gains,
    gain_page,
    gain_data,
    together,
    caption=GAIN_CAPTION,
    place=30,
)
