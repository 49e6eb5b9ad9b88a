"""The costs of curves side by side, each at its largest number of ranks: times, messages, words, persistent bytes.

The time to the target accuracy stands first if runs had a target. Messages are the calls of an epoch that send
something, words are their payload, and persistent bytes hold the graph, features, weights and labels. Each number is of
the rank that has most. A bar is a grid, the median of its launches. A hollow bar is the number that a paper prints.
"""

from collections.abc import Iterator, Sequence
from math import isfinite, nan
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures import page_layout
from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import (
    Group,
    frame,
    inches,
    places,
    ranks_and_grid,
    three_digits,
    write_beside,
)
from harness.figures.palette import PAPER, StrategyLook
from harness.figures.panels import Curve, Panel, curves, largest

QUANTITIES = {
    "to the target (s)": 1.0,
    "epoch (ms)": 1e3,
    "messages": 1,
    "words (millions)": 1e-6,
    "held (MB)": 1e-6,
}
"""The quantities from left to right, and how many of the named unit one second, message, word or byte is."""


MEDIANS = ["seconds_to_target", "epoch_seconds_median", "messages", "words_payload"]
"""The columns of all but the last."""


class CostBar(NamedTuple):
    """A grid of a curve: a value for each quantity."""

    label: str
    look: StrategyLook
    values: tuple[float, ...]
    printed: bool = False
    """Whether a paper printed them; it does not print all."""


def bars(panel: Panel, tables: Tables) -> list[Group[CostBar]]:
    """The bars of every measured curve that has a point, and of printed times to a target."""
    groups = []
    for curve, points in [*largest(panel), *_printed(panel)]:
        grids, printed = [], curve.source == "published"
        for _, launches in points.groupby("grid"):
            held = (
                nan
                if printed
                else pd.Series([_held(tables.memory.get(run)) for run in launches.run_id]).median()
            )
            values = (*launches[MEDIANS].astype(float).median(), held)
            grids.append(CostBar(ranks_and_grid(launches.iloc[0]), curve.look, values, printed))
        groups.append(Group(curve.label, grids))
    return groups


def _printed(panel: Panel) -> Iterator[tuple[Curve, pd.DataFrame]]:
    """Every curve of which a paper prints times to a target, and those at its largest number of ranks."""
    for curve in curves(panel):
        times = curve.runs.dropna(subset=["seconds_to_target"])
        if curve.source == "published" and not times.empty:
            yield curve, times[times.ranks == times.ranks.max()]


def quantities(some: Sequence[Sequence[Group[CostBar]]]) -> list[int]:
    """The numbers of the quantities that some bar has."""
    bars = [bar for panel in some for group in panel for bar in group.bars]
    return [number for number in range(len(QUANTITIES)) if any(isfinite(bar.values[number]) for bar in bars)]


def draw(row: Sequence[Axes], some: Sequence[Group[CostBar]], shown: Sequence[int]) -> None:
    """Draws one panel: axes side by side, filled from the top; the first axes have the labels."""
    names = list(QUANTITIES.items())
    for axes, number in zip(row, shown, strict=True):
        (name, unit), ticks, longest = names[number], [], 0.0
        for top, heading, bars in places(some):
            if number == shown[0]:
                write_beside(axes, heading, 0, top, fontweight="bold")
            for y, bar in bars:
                known = isfinite(bar.values[number])
                width = bar.values[number] * unit if known else 0.0
                inside, edge = (PAPER, bar.look.colour) if bar.printed else (bar.look.colour, PAPER)
                axes.barh(y, width, 0.74, color=inside, edgecolor=edge, linewidth=0.3)
                text = f"{width:,.0f}" if isinstance(unit, int) else three_digits(width)
                missing = "" if bar.printed else "not reached"
                write_beside(axes, text if known else missing, width, y)
                ticks.append((y, bar.label if number == shown[0] else ""))
                longest = max(longest, width)
        frame(axes, some, ticks, 1.35 * longest or 1)
        axes.set_xlabel(name)


def _held(memory: pd.DataFrame | None) -> float:
    """Persistent bytes of the rank that has most; 0 without a table."""
    return 0.0 if memory is None else float(memory.groupby("rank").persistent_bytes.sum().max())


def page(some: Sequence[Panel], shown: Sequence[Sequence[Group[CostBar]]]) -> Figure:
    """The figure: a row of axes for each panel."""
    heights, titles = [inches(each) for each in shown], [panel.title for panel in some]
    columns = quantities(shown)
    figure, rows = page_layout.rows_of(len(columns), heights, titles)
    for row, each in zip(rows, shown, strict=True):
        draw(row, each, columns)
    return figure


KIND = FigureKind("costs", "What it costs", bars, page)
