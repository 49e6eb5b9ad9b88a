"""The page of changes over time: what changed since which commit, and charts of the series that changed.

The charts are static: each shows a single series, with nothing to select.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes

from harness.figures.axis_scales import Scale, Unit
from harness.figures.drawing import render_formats, style_context
from harness.figures.figure_layout import compose_figure
from harness.figures.marks import Facet, Lines
from harness.figures.palette import MUTED, look_of
from harness.files import write_text
from harness.report.templates import load_template
from harness.results.history import EPOCH, PEAK, QUANTITIES, CodeVersion, History, Series

MOST_CHARTS = 12
"""The largest number of series that are drawn for a quantity: those that changed most."""
UNITS: dict[str, Unit] = {EPOCH.column: "s", PEAK.column: "B"}
MOST_NAMED = 6
"""The largest number of commits that an axis names."""


class PageTable(NamedTuple):
    """A table of the page."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_history(
    history: History, headline: str, tables: Sequence[PageTable], notes: Sequence[str], out: Path
) -> Path:
    """Write the page `out` with tables, notes, and the charts of a history, and return its path."""
    figures = [(title, Markup(svg)) for title, svg in draw_history(history).items()]
    template = load_template("history_page.html")
    write_text(out, template.render(headline=headline, tables=tables, notes=notes, figures=figures))
    return out


def draw_history(history: History) -> dict[str, str]:
    """Draw the series that changed over the commits, one figure for each quantity. Return SVG by title."""
    drawings = {}
    for quantity in QUANTITIES:
        changed = [each for each in history.series if each.quantity is quantity and each.steps]
        changed.sort(key=lambda each: -abs(math.log(each.steps[-1].ratio or 1)))
        if changed:
            title = quantity.title.capitalize()
            drawings[title] = _draw_quantity(changed[:MOST_CHARTS], history.commits, title)
    return drawings


def _draw_quantity(shown: Sequence[Series], commits: Sequence[CodeVersion], title: str) -> str:
    quantity = shown[0].quantity
    mark = Lines(
        Scale("at", "commit"), Scale(quantity.column, quantity.title, UNITS.get(quantity.column, ""))
    )
    facets = [
        Facet(
            f"{each.label}: {describe_change(each, commits)}",
            tabulate_points(each),
            given_looks={each.label: look_of(each.strategy)},
        )
        for each in shown
    ]
    with style_context():
        figure = compose_figure(facets, mark)
        for legend in figure.legends:
            legend.remove()  # the title of each chart names its only curve
        for axes, each in zip(figure.axes, shown, strict=True):
            _name_commits(axes, each, commits)
        pictures = render_formats(figure, ["svg"], quantity.column, "harness report --history", title)
    return re.sub(r"^.*?(?=<svg\b)", "", pictures["svg"].decode(), flags=re.DOTALL)


def describe_change(series: Series, commits: Sequence[CodeVersion]) -> str:
    """Describe the last step of a series: 1.23× since 3f2a91c0, slower."""
    assert series.since is not None
    ratio = Scale("", "", "times").format_value(series.steps[-1].ratio)
    return f"{ratio} since {commits[series.since].name}, {series.verdict}"


def tabulate_points(series: Series) -> pd.DataFrame:
    """Return the tidy frame of a series: a row for each launch."""
    rows = [
        {"curve": series.label, "at": point.at, series.quantity.column: value}
        for point in series.points
        for value in point.values
    ]
    return pd.DataFrame(rows).assign(strategy=series.strategy, source="measured", status="ok")


def _name_commits(axes: Axes, series: Series, commits: Sequence[CodeVersion]) -> None:
    """Name commits below the axis, those with steps first, and mark the steps by vertical lines."""
    steps = [series.points[step.at].at for step in series.steps]
    places = [point.at for point in series.points]
    apart = (places[-1] - places[0]) / MOST_NAMED
    named = list[int]()
    for place in [*reversed(steps), places[-1], *places]:
        if all(abs(place - other) >= max(apart, 1) for other in named):
            named.append(place)
    axes.set_xticks(places, [commits[place].name if place in named else "" for place in places])
    axes.set_xlim(places[0] - 0.5, places[-1] + 0.5)
    for step in steps:
        axes.axvline(step, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
