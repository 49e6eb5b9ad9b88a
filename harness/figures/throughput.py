"""Throughput: vertices a second of all ranks together, over what was varied (G3's measure).

That is the number of ranks, unless one was tried with models of several depths or with features of several widths: then
it is these, at each curve's largest number of ranks. A line joins the medians over launches, of the best grid where
there are several; a band shows their range; the dotted line is linear scaling from a curve's first point.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures import layout
from harness.figures.kind import Kind, Tables
from harness.figures.layout import octaves_axis, tried_axis
from harness.figures.palette import MUTED
from harness.figures.panels import Curve, Panel, curves, panels
from harness.figures.scaling import DOTTED, sample
from harness.spec.dataset import without_width

HEIGHT = 2.2  # inches
SWEPT = {"graph.features": "width of the features", "model.layers": "layers", "ranks": "ranks"}
"""What may be varied; the first that was."""
UNITS = {1e6: "million ", 1e3: "thousand ", 1: ""}

Lines = dict[str, tuple[Curve, pd.DataFrame]]
"""By label, each curve and its points."""


def together(runs: pd.DataFrame) -> list[Panel]:
    """Panels in which depths, and widths of one graph's features, stand beside each other."""
    graphs = runs["dataset.name"].map(without_width)
    return panels(runs.assign(**{"dataset.name": graphs}), apart=("model.layers",))


def varied(panel: Panel) -> str:
    """What x is."""
    return next((name for name in SWEPT if panel.runs[name].nunique() > 1), "ranks")


def lines(panel: Panel, _: Tables) -> Lines:
    """Of every curve that was measured, by us or by a program of others."""
    over, found = varied(panel), Lines()
    for curve in curves(panel):
        points = curve.points
        if over != "ranks":
            points = points[points.ranks == points.ranks.max()]
        line = curve._replace(runs=points).over(over, "vertices_per_second", best="max")
        if curve.source in ("measured", "external") and len(line):
            found[curve.label] = curve, line
    return found


def draw(axes: Axes, panel: Panel, shown: Lines) -> None:
    """One panel."""
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
    """The legend of some panels: every curve once, then what the dotted lines mean."""
    told = [
        sample(curve, [], []) for curve, _ in {k: v for lines in shown for k, v in lines.items()}.values()
    ]
    if any(varied(panel) == "ranks" and panel.runs.ranks.nunique() > 1 for panel in some):
        told.append(Line2D([], [], color=MUTED, linestyle=DOTTED, linewidth=0.9, label="linear"))
    return told


def page(some: Sequence[Panel], shown: Sequence[Lines]) -> Figure:
    """A panel each."""
    figure, axes = layout.page([HEIGHT] * len(some), [panel.title for panel in some])
    layout.legend(figure, handles(some, shown))
    for each, panel, lines in zip(axes, some, shown, strict=True):
        draw(each, panel, lines)
    return figure


KIND = Kind("throughput", "Throughput", lines, page, together)
