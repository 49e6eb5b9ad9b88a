"""The costs of curves side by side, each at its largest number of ranks: times, messages, words, persistent bytes.

The time to the target accuracy stands first if runs had a target. Messages are the calls of an epoch that send
something, words are their payload, and persistent bytes hold the graph, features, weights and labels. Each number is of
the rank that has most. A bar is a grid, the median of its launches. A hollow bar is the number that a paper prints. A
line across a bar of words is the least that any strategy of its kind sends, where a bound is known.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import (
    BYTES,
    COUNTS,
    Cell,
    Group,
    Section,
    compose,
    frame,
    inches,
    places,
    ranks_and_grid,
    scale_for,
    three_digits,
    unit_for,
    write_beside,
)
from harness.figures.palette import INK, PAPER, StrategyLook
from harness.figures.panels import Curve, Panel, largest, titles

QUANTITIES = {
    "seconds_to_target": "to the target",
    "epoch_seconds_median": "epoch",
    "messages": "messages",
    "words_payload": "words",
    "held_bytes": "held",
}
"""The quantities from left to right: their names in tables, and as the axes call them."""


WORDS = [*QUANTITIES].index("words_payload")
"""The number of the words."""
MEDIANS = [*QUANTITIES][:-1]
"""The columns of all but the last."""


def heading(number: int, largest: float) -> tuple[str, float]:
    """The label of a quantity's axis in the unit that suits the largest value, and how many of the unit make one."""
    name = [*QUANTITIES][number]
    said = QUANTITIES[name]
    if name.startswith(("seconds", "epoch")):
        unit = unit_for(largest)
        return f"{said} ({unit.name})", 1 / unit.per_second
    if name == "held_bytes":
        scale = scale_for(largest, BYTES, plain=1e3)
        return f"{said} ({scale.name})", scale.size
    scale = scale_for(largest, COUNTS)
    return f"{scale.name}{said}", scale.size


class CostBar(NamedTuple):
    """A grid of a curve: a value for each quantity."""

    label: str
    look: StrategyLook
    values: tuple[float, ...]
    printed: bool = False
    """Whether a paper printed them; it does not print all."""
    floor: float = nan
    """The least words of the strategy's kind; NaN where no bound is known."""


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
            floor = float(launches.words_floor.astype(float).median()) or nan
            grids.append(CostBar(ranks_and_grid(launches.iloc[0]), curve.look, values, printed, floor))
        groups.append(Group(curve.label, grids))
    return groups


def _printed(panel: Panel) -> Iterator[tuple[Curve, pd.DataFrame]]:
    """Every curve of which a paper prints times to a target, and those at its largest number of ranks."""
    for curve in panel.curves:
        times = curve.runs.dropna(subset=["seconds_to_target"])
        if curve.source == "published" and not times.empty:
            yield curve, times[times.ranks == times.ranks.max()]


def quantities(some: Sequence[Sequence[Group[CostBar]]]) -> list[int]:
    """The numbers of the quantities that some bar has."""
    bars = [bar for panel in some for group in panel for bar in group.bars]
    return [number for number in range(len(QUANTITIES)) if any(isfinite(bar.values[number]) for bar in bars)]


def draw(axes: Axes, some: Sequence[Group[CostBar]], number: int, first: bool) -> None:
    """Draws one quantity of a panel, filled from the top; the first axes have the names."""
    values = [bar.values[number] for group in some for bar in group.bars]
    largest = max((value for value in values if isfinite(value)), default=0.0)
    label, size = heading(number, largest or 1.0)
    ticks = []
    for _, _, bars in places(some):
        for y, bar in bars:
            known = isfinite(bar.values[number])
            width = bar.values[number] / size if known else 0.0
            inside, edge = (PAPER, bar.look.colour) if bar.printed else (bar.look.colour, PAPER)
            if width:
                axes.barh(y, width, 0.74, color=inside, edgecolor=edge, linewidth=0.8 if bar.printed else 0.3)
            if number == WORDS and isfinite(bar.floor):
                axes.plot([bar.floor / size] * 2, [y - 0.45, y + 0.45], color=INK, linewidth=1.2)
            text = f"{width:,.0f}" if number >= 2 and size == 1 else three_digits(width)
            missing = "" if bar.printed or number else "not reached"
            if known or missing:
                write_beside(axes, text if known else missing, width, y)
            ticks.append((y, bar.label))
    axes.set_xlim(0, largest / size or 1)
    frame(axes, some, ticks, named=first)
    axes.set_xlabel(label)


def _held(memory: pd.DataFrame | None) -> float:
    """Persistent bytes of the rank that has most; 0 without a table."""
    return 0.0 if memory is None else float(memory.groupby("rank").persistent_bytes.sum().max())


def page(some: Sequence[Panel], shown: Sequence[Sequence[Group[CostBar]]]) -> Figure:
    """The figure: a row of axes for each panel."""
    each, note = titles(some)
    columns = quantities(shown)
    sections = [
        Section(
            [
                Cell(
                    "", partial(draw, some=groups, number=number, first=number == columns[0]), inches(groups)
                )
                for number in columns
            ],
            len(columns),
            title,
        )
        for title, groups in zip(each, shown, strict=True)
    ]
    return compose(sections, (), note)


def data(groups: Sequence[Group[CostBar]]) -> Iterator[dict[str, Any]]:
    """A row for each bar."""
    for label, some in groups:
        for bar in some:
            values = dict(zip(QUANTITIES, bar.values, strict=True))
            yield {
                "curve": label,
                "ranks_or_grid": bar.label,
                "printed_by_a_paper": bar.printed,
                **values,
                "words_floor": bar.floor,
            }


KIND = FigureKind("costs", "What it costs", bars, page, data)
