"""Panels on a page: one column of a paper for one panel, two for more, the legend above them and over no data."""

from collections.abc import Sequence
from itertools import count as from_one
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0  # widths in inches
LEGEND_LINE, CHARACTER, SAMPLE = 0.155, 0.051, 0.38  # inches of a legend


class Page(NamedTuple):
    """A figure and the axes of its panels, in order."""

    figure: Figure
    axes: list[Axes]


def page(heights: Sequence[float], titles: Sequence[str]) -> Page:
    """Axes of these heights in inches, two beside each other. A lone panel needs no title: its caption has it."""
    columns = min(2, len(heights))
    rows = [max(heights[start : start + columns]) for start in range(0, len(heights), columns)]
    figure = Figure(figsize=(PAGE if columns == 2 else COLUMN, sum(rows)))
    grid = figure.add_gridspec(len(rows), columns, height_ratios=rows)
    axes = []
    for number, (height, title) in enumerate(zip(heights, titles, strict=True)):
        row, column = divmod(number, columns)
        cell = grid[row, column]
        if height < rows[row]:
            cell = cell.subgridspec(2, 1, height_ratios=[height, rows[row] - height])[0]
        axes.append(figure.add_subplot(cell))
        if len(heights) > 1:
            axes[-1].set_title(title)
    return Page(figure, axes)


def rows_of(count: int, heights: Sequence[float], titles: Sequence[str]) -> tuple[Figure, list[list[Axes]]]:
    """So many axes beside each other for every panel, on the width of a page; titles as in `page`."""
    figure = Figure(figsize=(PAGE, sum(heights)))
    grid = figure.add_gridspec(len(heights), count, height_ratios=heights)
    rows = [
        [figure.add_subplot(grid[number, column]) for column in range(count)]
        for number in range(len(heights))
    ]
    if len(heights) > 1:
        for row, title in zip(rows, titles, strict=True):
            row[0].set_title(title)
    return figure, rows


def blank(text: str) -> Figure:
    """A page with a line of text."""
    figure = Figure(figsize=(COLUMN, 3 * LEGEND_LINE))
    figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend for all panels, in as few lines as fit above them; the figure grows by its height."""
    if not handles:
        return
    labels = [str(handle.get_label()) for handle in handles]
    width, height = figure.get_size_inches()
    lines = next(lines for lines in from_one(1) if lines == len(labels) or _width(labels, lines) < width)
    figure.set_size_inches(width, height + LEGEND_LINE * lines + 0.05)
    figure.legend(handles=list(handles), loc="outside upper left", ncols=-(-len(labels) // lines))


def _width(labels: list[str], lines: int) -> float:
    """How wide a legend of so many lines is, filled column by column."""
    columns = [labels[start : start + lines] for start in range(0, len(labels), lines)]
    return sum(SAMPLE + CHARACTER * max(map(len, column)) for column in columns)
