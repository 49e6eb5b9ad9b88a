"""Bars of quantities side by side, for each curve at its largest number of ranks: its costs, and what it reaches.

Costs are the time to the target accuracy if runs had a target, the time of an epoch, messages, words, and persistent
bytes. Messages are the calls of an epoch that send something, words are their payload, and persistent bytes hold the
graph, features, weights and labels. Each number is of the rank that has most. A line across a bar of words is the
least that any strategy of its kind sends, where a bound is known.

What a curve reaches is the best accuracy on test vertices, the time to the target, and the time of one evaluation;
there a hollow bar is the number that a paper prints. A bar is a grid, the median of its launches.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import (
    Cell,
    Group,
    Section,
    compose,
    frame,
    inches,
    places,
    ranks_and_grid,
    write_beside,
)
from harness.figures.palette import INK, PAPER, StrategyLook
from harness.figures.panels import Curve, Panel, largest, titles
from harness.figures.units import BYTES, COUNTS, scale_for, three_digits, unit_for

QUANTITIES = {
    "seconds_to_target": "to the target",
    "epoch_seconds_median": "epoch",
    "messages": "messages",
    "words_payload": "words",
    "held_bytes": "held",
    "best_accuracy": "best accuracy (%)",
    "evaluation_seconds": "evaluation",
}
"""The names of quantities in tables, and as the axes call them."""


def heading(name: str, largest: float) -> tuple[str, float]:
    """The label of a quantity's axis in the unit that suits the largest value, and how many of the unit make one."""
    said = QUANTITIES[name]
    if "seconds" in name:
        unit = unit_for(largest)
        return f"{said} ({unit.name})", 1 / unit.per_second
    if name == "best_accuracy":
        return said, 0.01
    if name == "held_bytes":
        scale = scale_for(largest, BYTES, plain=1e3)
        return f"{said} ({scale.name})", scale.size
    scale = scale_for(largest, COUNTS)
    return f"{scale.name}{said}", scale.size


class CostBar(NamedTuple):
    """A grid of a curve: a value for each quantity, NaN where it has none."""

    label: str
    look: StrategyLook
    values: dict[str, float]
    printed: bool = False
    """Whether a paper printed them; it does not print all."""
    floor: float = nan
    """The least words of the strategy's kind; NaN where no bound is known."""


Bars = list[Group[CostBar]]
"""The bars of every curve, under its label."""


class Quantities(NamedTuple):
    """Some quantities from left to right, and whether printed ones stand among them."""

    names: tuple[str, ...]
    printed: bool = False

    def rows(self, panel: Panel, tables: Tables) -> Bars:
        """The bars of every measured curve that has a point, and of printed ones; none if nothing is known."""
        groups = []
        for curve, points in [*largest(panel), *(_printed(panel, self.names) if self.printed else ())]:
            grids = [
                self._bar(curve, launches, tables)
                for _, launches in points.groupby("grid")
                if curve.source != "published" or _known(launches, self.names)
            ]
            groups.append(Group(curve.label, grids))
        return groups if self.known(groups) else []

    def _bar(self, curve: Curve, launches: pd.DataFrame, tables: Tables) -> CostBar:
        values = {name: float(_values(name, launches, tables).median()) for name in self.names}
        floor = float(launches.words_floor.astype(float).median()) or nan
        label = ranks_and_grid(launches.iloc[0])
        return CostBar(label, curve.look, values, curve.source == "published", floor)

    def known(self, some: Bars) -> list[str]:
        """The quantities that some bar of a panel has."""
        bars = [bar for group in some for bar in group.bars]
        return [name for name in self.names if any(isfinite(bar.values[name]) for bar in bars)]

    def page(self, some: Sequence[Panel], shown: Sequence[Bars]) -> Figure:
        """The figure: a row of axes for each panel."""
        each, note = titles(some)
        columns = max(len(self.known(groups)) for groups in shown)
        sections = [
            Section(
                [
                    Cell("", partial(draw, some=groups, name=name, first=not number), inches(groups))
                    for number, name in enumerate(self.known(groups))
                ],
                columns,
                title,
            )
            for title, groups in zip(each, shown, strict=True)
        ]
        return compose(sections, (), note)

    def data(self, groups: Bars) -> Iterator[dict[str, Any]]:
        """A row for each bar."""
        for label, some in groups:
            for bar in some:
                yield {
                    "curve": label,
                    "ranks_or_grid": bar.label,
                    "printed_by_a_paper": bar.printed,
                    **bar.values,
                    "words_floor": bar.floor,
                }


def _values(name: str, launches: pd.DataFrame, tables: Tables) -> "pd.Series[float]":
    """A quantity of some launches: a column of runs, or what the tables of memory and accuracy say."""
    if name == "held_bytes":
        return pd.Series([held_bytes(tables.memory.get(run)) for run in launches.run_id], dtype=float)
    if name == "best_accuracy":
        return pd.Series([_best(run, tables) for _, run in launches.iterrows()], dtype=float)
    return launches[name].astype(float)


def _best(run: "pd.Series[Any]", tables: Tables) -> float:
    """The best accuracy on test vertices of all evaluations, or the one that a paper or a log gives."""
    found = tables.accuracy.get(run.run_id)
    tested = found[found.split == "test"].accuracy.dropna() if found is not None else pd.Series(dtype=float)
    return float(tested.max()) if len(tested) else float(run.accuracy_test)


def _known(launches: pd.DataFrame, names: Sequence[str]) -> bool:
    """Whether a paper prints any of these quantities."""
    return bool(launches[_columns(names)].notna().any(axis=None))


def _columns(names: Sequence[str]) -> list[str]:
    """Return the columns of `runs` in which papers print these quantities."""
    return ["accuracy_test" if name == "best_accuracy" else name for name in names]


def _printed(panel: Panel, names: Sequence[str]) -> Iterator[tuple[Curve, pd.DataFrame]]:
    """Every curve of which a paper prints a quantity, and its runs at the largest number of ranks that has one."""
    for curve in panel.curves:
        if curve.source != "published":
            continue
        some = curve.runs[curve.runs[_columns(names)].notna().any(axis="columns")]
        if not some.empty:
            yield curve, some[some.ranks == some.ranks.max()]


def draw(axes: Axes, some: Bars, name: str, first: bool) -> None:
    """Draws one quantity of a panel, filled from the top; the first axes have the names."""
    values = [bar.values[name] for group in some for bar in group.bars]
    largest = max((value for value in values if isfinite(value)), default=0.0)
    label, size = heading(name, largest or 1.0)
    missing = "not reached" if name == "seconds_to_target" else ""
    ticks = []
    for _, _, bars in places(some):
        for y, bar in bars:
            known = isfinite(bar.values[name])
            width = bar.values[name] / size if known else 0.0
            inside, edge = (PAPER, bar.look.colour) if bar.printed else (bar.look.colour, PAPER)
            if width:
                axes.barh(y, width, 0.74, color=inside, edgecolor=edge, linewidth=0.8 if bar.printed else 0.3)
            if name == "words_payload" and isfinite(bar.floor):
                axes.plot([bar.floor / size] * 2, [y - 0.45, y + 0.45], color=INK, linewidth=1.2)
            text = f"{width:,.0f}" if size == 1 and "seconds" not in name else three_digits(width)
            if known or (missing and not bar.printed):
                write_beside(axes, text if known else missing, width, y)
            ticks.append((y, bar.label))
    axes.set_xlim(0, largest / size or 1)
    frame(axes, some, ticks, named=first)
    axes.set_xlabel(label)


def held_bytes(memory: pd.DataFrame | None) -> float:
    """Return the persistent bytes of the rank that has most; 0 without a table."""
    if memory is None:
        return 0.0
    _, rank = np.unique(memory["rank"].to_numpy(), return_inverse=True)
    return float(np.bincount(rank, memory.persistent_bytes.to_numpy()).max())


COSTS = Quantities(("seconds_to_target", "epoch_seconds_median", "messages", "words_payload", "held_bytes"))
REACHED = Quantities(("best_accuracy", "seconds_to_target", "evaluation_seconds"), printed=True)


CAPTION = """\
Each curve at its largest number of ranks: the training time to the target accuracy, if there is one, the time of an
epoch, its messages (calls that send something), its words (the payload), and the memory between epochs (graph,
features, weights and labels). Each number is of the rank that has most. A line across a bar of words is the least
that any strategy of its kind sends; bars without a line have no known bound."""
KIND = FigureKind("costs", "What it costs", COSTS.rows, COSTS.page, COSTS.data, caption=CAPTION, place=70)
EVALUATION_CAPTION = """\
Each curve at its largest number of ranks: the best accuracy on test vertices, the training time to the target
accuracy if there is one, and the time of one evaluation of the full graph. A bar is the median over launches. A
hollow bar is a number that a paper prints."""
EVALUATION_KIND = FigureKind(
    "evaluation",
    "What is reached",
    REACHED.rows,
    REACHED.page,
    REACHED.data,
    caption=EVALUATION_CAPTION,
    place=80,
)
