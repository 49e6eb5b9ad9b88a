"""Throughput: vertices a second of all ranks together, over the varied setting (G3's measure).

The varied setting is the number of ranks, unless models had several depths or features had several widths: then it is
the depth or the width, at each curve's largest number of ranks. A line joins the medians over launches, each on the
best grid; a band shows their range; the dotted line is linear scaling from a curve's first point. Lines of runs that
were predicted or emulated look as in the figure of scaling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import COUNTS, compose, scale_for
from harness.figures.panels import Curve, DrawnColumn, Panel, data, followed, panels, titles
from harness.figures.scaling import handles, sections
from harness.spec.dataset import without_width

SWEPT = {"graph.features": "width of the features", "model.layers": "layers", "ranks": "ranks"}
"""Settings that may vary, and their titles; the first that does is x."""
COLUMN = "vertices_per_second"


def together(runs: pd.DataFrame) -> list[Panel]:
    """Panels that do not separate depths, nor widths of one graph's features."""
    graphs = runs["dataset.name"].map(without_width)
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


KIND = FigureKind("throughput", "Throughput", lines, page, numbers, together)
