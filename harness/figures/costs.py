"""What curves cost beside each other, each at its largest number of ranks: epoch, messages, words, bytes that are held.

Messages are the calls of an epoch that send something, words their payload, bytes what a rank holds all the time (the
graph, features, weights, labels), each of the rank that has most. A bar is a grid, the median of its launches.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures import layout
from harness.figures.kind import Kind, Tables
from harness.figures.layout import Group, frame, inches, places, ranks_and_grid, three_digits, write_beside
from harness.figures.palette import PAPER, Look
from harness.figures.panels import Panel, largest

QUANTITIES = {"epoch (ms)": 1e3, "messages": 1, "words (millions)": 1e-6, "held (MB)": 1e-6}
"""What is drawn, from left to right, and how many of that unit one second, message, word or byte is."""


class Bar(NamedTuple):
    """A grid of a curve: a value for each of the quantities."""

    label: str
    look: Look
    values: tuple[float, ...]


def bars(panel: Panel, tables: Tables) -> list[Group[Bar]]:
    """Of every measured curve that has a point."""
    found = []
    for curve, points in largest(panel):
        grids = []
        for _, launches in points.groupby("grid"):
            held = pd.Series([_held(tables.memory.get(run)) for run in launches.run_id]).median()
            values = launches[["epoch_seconds_median", "messages", "words_payload"]].median()
            grids.append(Bar(ranks_and_grid(launches.iloc[0]), curve.look, (*values, held)))
        found.append(Group(curve.label, grids))
    return found


def draw(row: Sequence[Axes], some: Sequence[Group[Bar]]) -> None:
    """A panel: axes beside each other, filled from the top; the first has the labels."""
    for number, (axes, (name, unit)) in enumerate(zip(row, QUANTITIES.items(), strict=True)):
        ticks, longest = [], 0.0
        for top, heading, bars in places(some):
            if number == 0:
                write_beside(axes, heading, 0, top, fontweight="bold")
            for y, bar in bars:
                width = bar.values[number] * unit
                axes.barh(y, width, 0.74, color=bar.look.colour, edgecolor=PAPER, linewidth=0.3)
                write_beside(axes, f"{width:,.0f}" if unit == 1 else three_digits(width), width, y)
                ticks.append((y, bar.label if number == 0 else ""))
                longest = max(longest, width)
        frame(axes, some, ticks, 1.35 * longest or 1)
        axes.set_xlabel(name)


def _held(memory: pd.DataFrame | None) -> float:
    """Bytes of the rank that holds most; 0 if no table says."""
    return 0.0 if memory is None else float(memory.groupby("rank").persistent_bytes.sum().max())


def page(some: Sequence[Panel], shown: Sequence[Sequence[Group[Bar]]]) -> Figure:
    """A row of axes a panel."""
    heights, titles = [inches(each) for each in shown], [panel.title for panel in some]
    figure, rows = layout.rows_of(len(QUANTITIES), heights, titles)
    for row, each in zip(rows, shown, strict=True):
        draw(row, each)
    return figure


KIND = Kind("costs", "What it costs", bars, page)
