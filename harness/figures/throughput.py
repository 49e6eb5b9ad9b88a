"""Throughput: vertices per second of all ranks together, over the setting that varies (as in G3).

The x axis is the number of ranks, unless models differ in depth or features in width; then it is the depth or width, at
the largest number of ranks of each curve. A line joins the medians over launches on the best grid, a band shows their
range, and a dotted line is linear scaling from the first point of the curve. Predicted and emulated curves look as in
the scaling figure.

A second kind has bars with the throughput of each strategy relative to DistDGL-style mini-batches at the same x, which
is how papers report the gain of a system (G3's figure 14). Both throughputs have the same source: measured, emulated or
predicted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables, compose_panels
from harness.figures.page_layout import (
    BarGroup,
    Section,
    annotate_bar,
    arrange_in_columns,
    label_bar_groups,
    position_bars,
)
from harness.figures.palette import MUTED, PAPER
from harness.figures.panels import (
    Curve,
    Panel,
    PlottedQuantity,
    join_variants,
    split_panels,
    tabulate_launches,
)
from harness.figures.scaling import compose_curves
from harness.figures.units import COUNTS, scale_for
from harness.formatting import format_three_digits
from harness.spec.dataset import strip_width

X_LABELS = {"graph.features": "feature width", "model.layers": "layers", "ranks": "ranks"}
"""Settings that may be on the x axis, and their labels. The first one that varies is."""
COLUMN = "vertices_per_second"


def split_across_sizes(runs: pd.DataFrame) -> list[Panel]:
    """Split runs into panels. Runs that differ only in depth or in the feature width of a graph share a panel."""
    graphs = runs["dataset.name"].map(strip_width)
    return split_panels(runs.assign(**{"dataset.name": graphs}), ignore=("model.layers",))


def choose_x_column(panel: Panel) -> str:
    """Choose the column on the x axis: the first setting that varies, else the number of ranks."""
    return next((name for name in X_LABELS if panel.runs[name].nunique() > 1), "ranks")


def select_curves(panel: Panel, _: Tables) -> list[Curve]:
    """Select the curves that have a throughput, with the runs that are drawn."""
    x_column, curves = choose_x_column(panel), []
    for curve in panel.curves:
        points = curve.points.dropna(subset=[COLUMN])
        if x_column != "ranks":
            points = points[points.ranks == points.ranks.max()]
        if len(points):
            curves.append(replace(curve, runs=points))
    return curves if x_column == "ranks" else join_variants(curves, x_column, X_LABELS[x_column])


def plot_throughput(panel: Panel, curves: Sequence[Curve]) -> PlottedQuantity:
    """Return how to plot the throughput over the setting that varies, in a unit that suits the fastest curve."""
    x_column = choose_x_column(panel)
    scale = scale_for(max(float(curve.points[COLUMN].max()) for curve in curves), COUNTS)
    return PlottedQuantity(
        column=COLUMN,
        best="max",
        x_column=x_column,
        x_label=X_LABELS[x_column],
        y_label=f"{scale.name}vertices / s",
        factor=1 / scale.size,
        ideal_exponent=1 if x_column == "ranks" else 0,
    )


def draw_figure(panels: Sequence[Panel], contents: Sequence[list[Curve]]) -> Figure:
    """Draw the throughputs of all panels."""
    quantities = [plot_throughput(panel, curves) for panel, curves in zip(panels, contents, strict=True)]
    return compose_curves(panels, contents, quantities)


CAPTION = """\
Throughput of all ranks together, in vertices per second, over the number of ranks. If models differ in depth or
features in width, the x axis is the depth or width, at the largest number of ranks of each curve. A marker is the
median over launches, and the band is their range. Setup and compilation are excluded. Dotted line: linear scaling
from the first point of the curve. Dotted background: oversubscribed runs, whose ranks shared cores; do not read
scaling from them. Solid lines: measured. Dashed: predicted. Dash-dotted: emulated. Hollow markers: other programs
(with a line) and published values (without). Strategies with a single number of ranks are listed, with the median on
the right."""
KIND = FigureKind(
    "throughput",
    "Throughput",
    select_curves,
    draw_figure,
    partial(tabulate_launches, column=COLUMN),
    split_across_sizes,
    caption=CAPTION,
    place=20,
)


# Throughputs relative to a baseline.

BASELINE = "distdgl"
"""The strategy that all others are compared with."""


class Gain(NamedTuple):
    """The throughput of a curve relative to the baseline at one x."""

    curve: Curve
    x: int
    ratio: float


class Gains(NamedTuple):
    """The gains of a panel, and the label of the setting that varies."""

    x_label: str
    gains: list[Gain]

    @property
    def groups(self) -> list[BarGroup[Gain]]:
        """The gains of each curve, under its label."""
        curves = dict.fromkeys(gain.curve for gain in self.gains)
        return [
            BarGroup(curve.label, [gain for gain in self.gains if gain.curve is curve]) for curve in curves
        ]


def select_gains(panel: Panel, tables: Tables) -> Gains | None:
    """Compute the gain of each curve at every x where the baseline has the same source; None if there is none."""
    x_column, gains = choose_x_column(panel), list[Gain]()
    curves = select_curves(panel, tables)

    def median_throughputs(curve: Curve) -> "pd.Series[float]":
        return curve.summarize_launches(x_column, COLUMN, best="max").set_index(x_column).middle

    for curve in curves:
        baselines = [other for other in curves if other.strategy == BASELINE and other.source == curve.source]
        if curve.strategy == BASELINE or not baselines:
            continue
        baseline = replace(baselines[0], runs=pd.concat([other.runs for other in baselines]))
        ratios = (median_throughputs(curve) / median_throughputs(baseline)).dropna()
        gains += [Gain(curve, int(x), ratio) for x, ratio in zip(ratios.index, ratios, strict=True)]
    return Gains(X_LABELS[x_column], gains) if gains else None


def draw_gains(axes: Axes, groups: Sequence[BarGroup[Gain]], x_label: str, largest: float) -> None:
    """Draw the gains of a panel from top to bottom. `largest` is the largest gain of the panel."""
    ticks = []
    for _, _, bars in position_bars(groups):
        for y, gain in bars:
            axes.barh(y, gain.ratio, 0.74, color=gain.curve.look.colour, edgecolor=PAPER, linewidth=0.3)
            annotate_bar(axes, format_three_digits(gain.ratio), max(gain.ratio, 1.0), y)
            ticks.append((y, f"{gain.x:,}"))
    axes.axvline(1, color=MUTED, linewidth=0.8)
    axes.set_xlim(0, max(largest, 1.0))
    label_bar_groups(axes, groups, ticks, heading=x_label)
    axes.set_xlabel(f"throughput relative to {BASELINE}")


def make_gain_section(title: str, content: Gains) -> Section:
    """Make the axes of one panel."""
    largest = max(gain.ratio for gain in content.gains)
    draw = partial(draw_gains, x_label=content.x_label, largest=largest)
    return arrange_in_columns(title, content.groups, draw)


def draw_gain_figure(panels: Sequence[Panel], contents: Sequence[Gains]) -> Figure:
    """Draw the gains of all panels."""
    return compose_panels(panels, contents, make_gain_section)


def tabulate_gains(content: Gains) -> Iterator[dict[str, Any]]:
    """Yield a row for each bar."""
    for gain in content.gains:
        yield {"curve": gain.curve.label, "over": content.x_label, "at": gain.x, "ratio": gain.ratio}


GAIN_CAPTION = """\
Throughput in vertices per second of each strategy relative to DistDGL-style mini-batches (``distdgl``) on the same
graph, model and machine, at the same number of ranks, layers or features. A strategy with a bar beyond 1 is faster.
Each ratio is of two medians over launches with the same source: measured, emulated or predicted. The note names
oversubscribed runs."""
GAIN_KIND = FigureKind(
    "gain",
    f"Throughput relative to {BASELINE}",
    select_gains,
    draw_gain_figure,
    tabulate_gains,
    split_across_sizes,
    caption=GAIN_CAPTION,
    place=30,
)
