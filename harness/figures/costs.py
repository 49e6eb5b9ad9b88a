"""Bars of several quantities side by side, for each curve at its largest number of ranks. A bar is the median over the
launches of a grid.

Costs are the time to the target accuracy if runs had a target, the epoch time, messages, elements received and
persistent memory. Messages are the calls in an epoch that send data, and persistent memory holds the graph, features,
weights and labels. Each number is from the rank with the most. A line across a bar of elements received is the lower
bound for strategies of its kind, if one is known.

Results are the best test accuracy, the time to the target, and the time of one evaluation. Hollow bars are numbers that
papers print.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.kind import FigureKind, Tables, compose_panels
from harness.figures.page_layout import (
    BarGroup,
    Cell,
    Section,
    annotate_bar,
    format_ranks_or_grid,
    height_in_inches,
    label_bar_groups,
    position_bars,
)
from harness.figures.palette import INK, PAPER, CurveLook
from harness.figures.panels import Curve, Panel, select_largest_ranks
from harness.figures.units import BYTES, COUNTS, scale_for, unit_for
from harness.formatting import format_three_digits

QUANTITIES = {
    "seconds_to_target": "time to target",
    "epoch_seconds_median": "epoch time",
    "messages": "messages",
    "elements_received": "elements received",
    "held_bytes": "memory",
    "best_accuracy": "best test accuracy (%)",
    "evaluation_seconds": "evaluation time",
}
"""The names of quantities in tables, and their labels on axes."""


def choose_axis_unit(name: str, largest: float) -> tuple[str, float]:
    """Choose a unit that suits the largest value of a quantity. Return the axis label and the size of the unit."""
    label = QUANTITIES[name]
    if "seconds" in name:
        unit = unit_for(largest)
        return f"{label} ({unit.name})", 1 / unit.per_second
    if name == "best_accuracy":
        return label, 0.01
    if name == "held_bytes":
        scale = scale_for(largest, BYTES, plain=1e3)
        return f"{label} ({scale.name})", scale.size
    scale = scale_for(largest, COUNTS)
    return f"{scale.name}{label}", scale.size


class CostBar(NamedTuple):
    """One grid of a curve: a value for each quantity, NaN where there is none."""

    label: str
    look: CurveLook
    values: dict[str, float]
    printed: bool = False
    """Whether the values are printed in a paper. Papers do not print all quantities."""
    elements_bound: float = nan
    """The lower bound on received elements for strategies of this kind; NaN if none is known."""


CostBars = list[BarGroup[CostBar]]
"""The bars of each curve, under its label."""


class Quantities(NamedTuple):
    """Quantities from left to right, and whether numbers that papers print are shown too."""

    names: tuple[str, ...]
    printed: bool = False

    def select_bars(self, panel: Panel, tables: Tables) -> CostBars:
        """Make the bars of every measured curve with points, and of printed numbers; none if all values are unknown."""
        groups = []
        for curve, points in [
            *select_largest_ranks(panel),
            *(_select_printed(panel, self.names) if self.printed else ()),
        ]:
            bars = [
                self._make_bar(curve, launches, tables)
                for _, launches in points.groupby("grid")
                if curve.source != "published" or _has_printed(launches, self.names)
            ]
            groups.append(BarGroup(curve.label, bars))
        return groups if self.known_quantities(groups) else []

    def _make_bar(self, curve: Curve, launches: pd.DataFrame, tables: Tables) -> CostBar:
        values = {name: float(_quantity_values(name, launches, tables).median()) for name in self.names}
        bound = float(launches.elements_bound.astype(float).median()) or nan
        label = format_ranks_or_grid(launches.iloc[0])
        return CostBar(label, curve.look, values, curve.source == "published", bound)

    def known_quantities(self, groups: CostBars) -> list[str]:
        """Return the quantities for which some bar of a panel has a value."""
        bars = [bar for group in groups for bar in group.bars]
        return [name for name in self.names if any(isfinite(bar.values[name]) for bar in bars)]

    def draw_figure(self, panels: Sequence[Panel], contents: Sequence[CostBars]) -> Figure:
        """Draw a row of axes for each panel, one for each quantity."""
        columns = max(len(self.known_quantities(groups)) for groups in contents)

        def make_section(title: str, groups: CostBars) -> Section:
            cells = [
                Cell(
                    "", partial(draw_bars, groups=groups, name=name, label_y=not n), height_in_inches(groups)
                )
                for n, name in enumerate(self.known_quantities(groups))
            ]
            return Section(cells, columns, title)

        return compose_panels(panels, contents, make_section)

    def tabulate(self, groups: CostBars) -> Iterator[dict[str, Any]]:
        """Yield a row for each bar."""
        for label, bars in groups:
            for bar in bars:
                yield {
                    "curve": label,
                    "ranks_or_grid": bar.label,
                    "printed_by_a_paper": bar.printed,
                    **bar.values,
                    "elements_bound": bar.elements_bound,
                }


def _quantity_values(name: str, launches: pd.DataFrame, tables: Tables) -> "pd.Series[float]":
    """Return the values of a quantity: a column of runs, or computed from the tables of memory and accuracy."""
    if name == "held_bytes":
        return pd.Series(
            [max_persistent_bytes(tables.memory.get(run)) for run in launches.run_id], dtype=float
        )
    if name == "best_accuracy":
        return pd.Series([_best_accuracy(run, tables) for _, run in launches.iterrows()], dtype=float)
    return launches[name].astype(float)


def _best_accuracy(run: "pd.Series[Any]", tables: Tables) -> float:
    """Return the best test accuracy over all evaluations, or the one that a paper or log gives."""
    evaluations = tables.accuracy.get(run.run_id)
    tested = (
        evaluations[evaluations.split == "test"].accuracy.dropna()
        if evaluations is not None
        else pd.Series(dtype=float)
    )
    return float(tested.max()) if len(tested) else float(run.accuracy_test)


def _has_printed(launches: pd.DataFrame, names: Sequence[str]) -> bool:
    """Return whether a paper prints any of these quantities."""
    return bool(launches[_printed_columns(names)].notna().any(axis=None))


def _printed_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of `runs` in which papers print these quantities."""
    return ["accuracy_test" if name == "best_accuracy" else name for name in names]


def _select_printed(panel: Panel, names: Sequence[str]) -> Iterator[tuple[Curve, pd.DataFrame]]:
    """Yield each curve for which a paper prints a quantity, with its runs at the largest number of such ranks."""
    for curve in panel.curves:
        if curve.source != "published":
            continue
        printed = curve.runs[curve.runs[_printed_columns(names)].notna().any(axis="columns")]
        if not printed.empty:
            yield curve, printed[printed.ranks == printed.ranks.max()]


def draw_bars(axes: Axes, groups: CostBars, name: str, label_y: bool) -> None:
    """Draw the bars of one quantity from top to bottom. With `label_y`, groups and bars have labels."""
    values = [bar.values[name] for group in groups for bar in group.bars]
    largest = max((value for value in values if isfinite(value)), default=0.0)
    label, size = choose_axis_unit(name, largest or 1.0)
    missing = "not reached" if name == "seconds_to_target" else ""
    ticks = []
    for _, _, bars in position_bars(groups):
        for y, bar in bars:
            known = isfinite(bar.values[name])
            width = bar.values[name] / size if known else 0.0
            inside, edge = (PAPER, bar.look.colour) if bar.printed else (bar.look.colour, PAPER)
            if width:
                axes.barh(y, width, 0.74, color=inside, edgecolor=edge, linewidth=0.8 if bar.printed else 0.3)
            if name == "elements_received" and isfinite(bar.elements_bound):
                axes.plot([bar.elements_bound / size] * 2, [y - 0.45, y + 0.45], color=INK, linewidth=1.2)
            text = f"{width:,.0f}" if size == 1 and "seconds" not in name else format_three_digits(width)
            if known or (missing and not bar.printed):
                annotate_bar(axes, text if known else missing, width, y)
            ticks.append((y, bar.label))
    axes.set_xlim(0, largest / size or 1)
    label_bar_groups(axes, groups, ticks, show_labels=label_y)
    axes.set_xlabel(label)


def max_persistent_bytes(memory: pd.DataFrame | None) -> float:
    """Return the persistent bytes of the rank that has the most; 0 without a table."""
    if memory is None:
        return 0.0
    _, rank = np.unique(memory.rank_id.to_numpy(), return_inverse=True)
    return float(np.bincount(rank, memory.persistent_bytes.to_numpy()).max())


COSTS = Quantities(
    ("seconds_to_target", "epoch_seconds_median", "messages", "elements_received", "held_bytes")
)
EVALUATION = Quantities(("best_accuracy", "seconds_to_target", "evaluation_seconds"), printed=True)


CAPTION = """\
For each curve at its largest number of ranks: the training time to the target accuracy if runs have a target, the
epoch time, messages per epoch (calls that send data), elements received per epoch, and the memory held between
epochs (graph, features, weights and labels). Each number is from the rank with the most. A line across a bar of
elements is the lower bound for strategies of its kind; bars without a line have no known bound."""
KIND = FigureKind(
    "costs",
    "Time, communication and memory",
    COSTS.select_bars,
    COSTS.draw_figure,
    COSTS.tabulate,
    caption=CAPTION,
    place=70,
)
EVALUATION_CAPTION = """\
For each curve at its largest number of ranks: the best test accuracy, the training time to the target accuracy if
runs have a target, and the time of one evaluation on the full graph. A bar is the median over launches. Hollow bars
are numbers that papers print."""
EVALUATION_KIND = FigureKind(
    "evaluation",
    "Accuracy and time to the target",
    EVALUATION.select_bars,
    EVALUATION.draw_figure,
    EVALUATION.tabulate,
    caption=EVALUATION_CAPTION,
    place=80,
)
