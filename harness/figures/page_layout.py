"""Panels on a page: one panel fills a column of a paper, more panels fill two; the legend stands above all panels."""

import math
from collections.abc import Iterator, Sequence
from itertools import count as from_one
from typing import Generic, NamedTuple, TypeVar

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

# Times in the unit that suits a figure or a table, and numbers with three significant digits.


class Unit(NamedTuple):
    """A unit of time, and how many of the unit a second has."""

    name: str
    per_second: float


UNITS = (Unit("s", 1.0), Unit("ms", 1e3), Unit("µs", 1e6))


def unit_for(seconds: float) -> Unit:
    """The largest unit in which this time is at least one."""
    return next((unit for unit in UNITS if seconds * unit.per_second >= 1), UNITS[-1])


def three_digits(value: float) -> str:
    """12345 as 12,345; 123.4 as 123; 1.2345 as 1.23."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    rounded = float(f"{value:.2e}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


COLUMN, PAGE = 3.4, 7.0  # widths in inches
LEGEND_LINE, CHARACTER, SAMPLE = 0.155, 0.051, 0.38  # inches of a legend


class Page(NamedTuple):
    """A figure and the axes of its panels, in order."""

    figure: Figure
    axes: list[Axes]


def page(heights: Sequence[float], titles: Sequence[str]) -> Page:
    """A figure with axes of these heights in inches, two side by side. A lone panel has its title in the caption."""
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
    """A figure with `count` axes side by side for every panel, on the width of a page; titles as in `page`."""
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
    """A figure that is a line of text."""
    figure = Figure(figsize=(COLUMN, 3 * LEGEND_LINE))
    figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Adds one legend for all panels, in as few lines as fit above the panels; the figure grows by its height."""
    if not handles:
        return
    labels = [str(handle.get_label()) for handle in handles]
    width, height = figure.get_size_inches()
    lines = next(lines for lines in from_one(1) if lines == len(labels) or _width(labels, lines) < width)
    figure.set_size_inches(width, height + LEGEND_LINE * lines + 0.05)
    figure.legend(handles=list(handles), loc="outside upper left", ncols=-(-len(labels) // lines))


def _width(labels: list[str], lines: int) -> float:
    """The width of a legend of so many lines, filled column by column."""
    columns = [labels[start : start + lines] for start in range(0, len(labels), lines)]
    return sum(SAMPLE + CHARACTER * max(map(len, column)) for column in columns)


# The two logarithmic axes of a scaling figure: ticks at the tried numbers and at powers of two of a unit.

MOST_TICKS = 7
WIDE = 100  # a range of seconds with this ratio has the unit of its middle


def unit_of(times: Sequence[float]) -> Unit:
    """The unit of the slowest epoch, or of the middle if the fastest would be a tiny fraction of that unit."""
    if not times:
        return UNITS[0]
    wide = max(times) > WIDE * min(times)
    return unit_for(math.sqrt(min(times) * max(times)) if wide else max(times))


def tried_axis(axes: Axes, tried: list[int], label: str = "ranks") -> None:
    """Puts ticks at the tried numbers, with labels where they fit."""
    axes.set_xscale("log", base=2)
    pad = 2.0 if len(tried) == 1 else 2**0.4
    axes.set_xlim(tried[0] / pad, tried[-1] * pad)
    labelled = _labelled(tried)
    axes.xaxis.set_major_locator(FixedLocator(tried))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{p:,}" if p in labelled else "" for p in tried]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def seconds_axis(axes: Axes, times: Sequence[float], unit: Unit, strip: float) -> None:
    """Puts ticks around these times, in the unit."""
    octaves_axis(axes, [seconds * unit.per_second for seconds in times], f"epoch time ({unit.name})", strip)


def octaves_axis(axes: Axes, values: Sequence[float], label: str, strip: float = 0.0) -> None:
    """Puts ticks at powers of two around these values; `strip`, a share of the height, stays free at the top."""
    low, high = _octaves(values)
    top = low + (high - low) / (1 - strip)
    axes.set_yscale("log", base=2)
    axes.set_ylim(2**low, 2**top)
    powers = range(math.ceil(low), math.floor(high) + 1, math.ceil((high - low) / MOST_TICKS))
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in powers] if values else []))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{2.0**power:,g}" for power in powers]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(label)
    axes.grid(axis="y")


def _labelled(tried: list[int]) -> set[int]:
    """The numbers whose labels do not touch; powers of two come first."""
    room = math.log2(tried[-1] / tried[0]) / 14
    chosen: set[int] = set()
    for ranks in sorted(tried, key=lambda ranks: (ranks & (ranks - 1) > 0, ranks)):
        if all(abs(math.log2(ranks / other)) > room for other in chosen):
            chosen.add(ranks)
    return chosen


def _octaves(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis for these values, as powers of two, around at least two ticks."""
    if not values:
        return 0.0, 1.0
    low, high = math.log2(min(values)) - 0.3, math.log2(max(values)) + 0.3
    if math.floor(high) - math.ceil(low) < 1:
        low, high = math.floor(low), math.ceil(high)
    return low, high


# Bars from the top of a panel down, in groups under headings.

HEADING, BETWEEN = 1.0, 0.35  # heights, where a bar's row is one
BAR, FRAME = 0.145, 0.62  # inches

T = TypeVar("T")


class Group(NamedTuple, Generic[T]):
    """Some bars, and the label above the first."""

    label: str
    bars: Sequence[T]


def height(groups: Sequence[Group[T]]) -> float:
    """The height of the groups, in bars."""
    return sum(len(group.bars) + HEADING + BETWEEN for group in groups)


def inches(groups: Sequence[Group[T]]) -> float:
    """The height of their panel, in inches."""
    return FRAME + BAR * height(groups)


def places(groups: Sequence[Group[T]]) -> Iterator[tuple[float, str, list[tuple[float, T]]]]:
    """Gives for each group the place of its label, the label, and every bar with its place; the top is 0."""
    y = 0.0
    for label, bars in groups:
        first = y + HEADING
        yield y, label, [(first + number, bar) for number, bar in enumerate(bars)]
        y = first + len(bars) + BETWEEN


def frame(axes: Axes, groups: Sequence[Group[T]], ticks: Sequence[tuple[float, str]], width: float) -> None:
    """Makes room for the groups, and adds a label at each bar and a grid across."""
    axes.set_ylim(height(groups) - BETWEEN - 0.35, -0.6)
    axes.set_xlim(0, width)
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def write_beside(axes: Axes, text: str, x: float, y: float, fontweight: str = "normal") -> None:
    """Writes text a little to the right of a point, on the line of the tick's label."""
    written = axes.annotate(
        text, (x, y), xytext=(3, 0), textcoords="offset points", va="center_baseline", fontweight=fontweight
    )
    written.set_in_layout(False)  # a long label does not widen the axes


def ranks_and_grid(run: "pd.Series[str]") -> str:
    """The number of ranks, with the grid if the number does not decide it."""
    axes = [name for name in run.index if name.startswith("grid.") and pd.notna(run[name])]
    return f"{run.grid}  {run.ranks}" if len(axes) > 1 else f"{run.ranks}"
