"""Lays out a figure: facets in rows and columns, titles above, the legend and a note below.

matplotlib's constrained layout keeps texts apart. What it guarantees is held by tests/figures/test_geometry.py.
"""

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.marks.facet import Facet, Mark
from harness.figures.palette import MUTED

COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0
"""The widths of a figure in inches: a column of a paper, and its page."""
MAX_COLUMNS = 3
LETTER = 0.056
"""Inches of an average letter of 7 points. Texts are wrapped by it."""


def compose_figure(facets: Sequence[Facet], mark: Mark, note: str = "", title: str = "") -> Figure:
    """Draw every facet by the mark, and lay the figure out."""
    sizes = [mark.measure(facet) for facet in facets]
    widest = max(width for width, _ in sizes)
    columns = max(1, min(MAX_COLUMNS, len(facets), int(PAGE_WIDTH / widest)))
    page = PAGE_WIDTH if columns > 1 or widest > COLUMN_WIDTH else COLUMN_WIDTH
    letters = int(page / columns / LETTER) - 4
    titles = [fill(facet.title, letters) for facet in facets]
    cells = [*zip(facets, sizes, titles, strict=True)]
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(height + 0.14 * text.count("\n") for _, (_, height), text in row) for row in rows]
    figure = Figure(layout="constrained")
    grid: Any = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for axes_of_row, row in zip(grid, rows, strict=True):
        for axes, (facet, _, text) in zip(axes_of_row, row, strict=False):
            mark.draw(axes, facet)
            axes.set_title(text)
        for axes in axes_of_row[len(row) :]:
            axes.remove()
    lines = _add_legend(figure, page, fill(title, int(page / LETTER / 1.3)))
    if note:
        note = fill(note, int(page / LETTER) - 4)
        figure.supxlabel(note, x=0.01, ha="left", size=7, color=MUTED)
        lines += 1 + note.count("\n")
    figure.set_size_inches(page, sum(heights) + 0.55 * len(rows) + 0.15 * lines)
    return figure


def _add_legend(figure: Figure, page: float, title: str) -> int:
    """Add a legend of all labelled artists, each label once, below the title. Return its lines.

    The title belongs to the legend because constrained layout would let them overlap.
    """
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=9)
        return 2 * bool(title)
    labels = [fill(label, int(page / LETTER) - 10) for label in found]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(len(found), int(page / (0.5 + LETTER * longest))))
    figure.legend(
        list(found.values()),
        labels,
        loc="outside upper left",
        ncols=columns,
        title=title or None,
        alignment="left",
        title_fontproperties={"weight": "bold", "size": 9},
    )
    extra = sum(label.count("\n") for label in labels) + 2 * (1 + title.count("\n")) * bool(title)
    return math.ceil(len(found) / columns) + extra


def set_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows of an axis from top to bottom, the first row at 0."""
    axes.set_yticks(range(len(labels)), [fill(label, 34) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
