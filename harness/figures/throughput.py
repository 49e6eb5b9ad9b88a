"""Throughput: vertices a second of all ranks together, over the varied setting (G3's measure).

The varied setting is the number of ranks, unless models had several depths or features had several widths: then it is
the depth or the width, at each curve's largest number of ranks. A line joins the medians over launches, each on the
best grid; a band shows their range; the dotted line is linear scaling from a curve's first point.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures import page_layout
from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import octaves_axis, tried_axis
from harness.figures.palette import MUTED
from harness.figures.panels import Curve, Panel, curves, panels
from harness.figures.scaling import DOTTED, sample
from harness.spec.dataset import without_width

HEIGHT = 2.2  # inches
SWEPT = {"graph.features": "width of the features", "model.layers": "layers", "ranks": "ranks"}
"""Settings that may vary, and their titles; the first that does is x."""
UNITS = {1e6: "million ", 1e3: "thousand ", 1: ""}

Lines = dict[str, tuple[Curve, pd.DataFrame]]
"""Each curve and its points, by label."""


def together(runs: pd.DataFrame) -> list[Panel]:
    """Panels that do not separate depths, nor widths of one graph's features."""
    graphs = runs["dataset.name"].map(without_width)
    return panels(runs.assign(**{"dataset.name": graphs}), apart=("model.layers",))


def varied(panel: Panel) -> str:
    """The setting that x shows."""
    return next((name for name in SWEPT if panel.runs[name].nunique() > 1), "ranks")


def lines(panel: Panel, _: Tables) -> Lines:
    """The line of every curve that this harness or another program measured."""
    over, measured = varied(panel), Lines()
    for curve in curves(panel):
        points = curve.points
        if over != "ranks":
            points = points[points.ranks == points.ranks.max()]
        line = curve._replace(runs=points).over(over, "vertices_per_second", best="max")
        if curve.source in ("measured", "external") and len(line):
            measured[curve.label] = curve, line
    return measured


def draw(axes: Axes, panel: Panel, shown: Lines) -> None:
    """Draws one panel."""
    over = varied(panel)
    tried_axis(axes, sorted({int(x) for _, line in shown.values() for x in line[over]}), SWEPT[over])
    values = [float(value) for _, line in shown.values() for value in line.middle]
    many, unit = next((many, unit) for many, unit in UNITS.items() if many <= max(min(values), 1))
    octaves_axis(axes, [value / many for value in values], f"throughput ({unit}vertices / s)")
    for curve, line in shown.values():
        x = line[over].astype(int)
        middle, low, high = (line[name] / many for name in ("middle", "low", "high"))
        axes.add_line(sample(curve, x.tolist(), middle.tolist()))
        axes.fill_between(x, low, high, color=curve.look.colour, alpha=0.18, linewidth=0, zorder=1.5)
        if over == "ranks" and len(line) > 1:
            linear = middle.iloc[0] / x.iloc[0] * x.iloc[[0, -1]]
            axes.plot(
                x.iloc[[0, -1]], linear, color=curve.look.colour, linestyle=DOTTED, linewidth=0.7, alpha=0.6
            )


def handles(some: Sequence[Panel], shown: Sequence[Lines]) -> list[Line2D]:
    """The legend of some panels: every curve once, then the dotted lines."""
    entries = [
        sample(curve, [], []) for curve, _ in {k: v for lines in shown for k, v in lines.items()}.values()
    ]
    if any(varied(panel) == "ranks" and panel.runs.ranks.nunique() > 1 for panel in some):
        entries.append(Line2D([], [], color=MUTED, linestyle=DOTTED, linewidth=0.9, label="linear"))
    return entries


def page(some: Sequence[Panel], shown: Sequence[Lines]) -> Figure:
    """The figure: axes for each panel."""
    figure, axes = page_layout.page([HEIGHT] * len(some), [panel.title for panel in some])
    page_layout.legend(figure, handles(some, shown))
    for each, panel, lines in zip(axes, some, shown, strict=True):
        draw(each, panel, lines)
    return figure


KIND = FigureKind("throughput", "Throughput", lines, page, together)
