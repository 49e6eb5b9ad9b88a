"""Where an epoch's time goes: one bar a number of ranks and grid, stacked by groups of ledger rows, in seconds.

A bar is the median epoch on its slowest rank (`harness.results.composition`), so its length is the epoch time that the
scaling figure shows. Groups have one order and one look everywhere; local work comes first, communication after it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.figures import layout
from harness.figures.bars import Group, frame, inches, places, ranks_and_grid, write_beside
from harness.figures.kind import Kind, Tables
from harness.figures.palette import GROUPS, PAPER
from harness.figures.panels import Curve, Panel, curves
from harness.figures.units import UNITS, three_digits, unit_for
from harness.ledger import Op, Phase, TensorName
from harness.results import composition

SPARSE = "broadcast of A"
GATHERING = {Phase.LOAD, Phase.SAMPLE, Phase.FETCH}
GROUP_OF_OP = {
    Op.SPMM: "SpMM",
    Op.GEMM: "GEMM",
    Op.ELEMENTWISE: "elementwise",
    Op.COPY: "elementwise",
    Op.BROADCAST: "broadcast, gather",
    Op.ALL_GATHER: "broadcast, gather",
    Op.REDUCE_SCATTER: "reduce",
    Op.ALL_REDUCE: "reduce",
    Op.ALL_TO_ALL: "exchange",
    Op.SEND: "exchange",
    Op.RECV: "exchange",
    Op.GLUE: "glue, other",
    Op.SKEW: "glue, other",
}


Rows = list[Group["Bar"]]
"""Bars under the label of their curve."""


class Bar(NamedTuple):
    """A bar, or what stands in place of one that did not finish."""

    label: str
    seconds: dict[str, float]
    status: str

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def group_of(phase: str, op: str, tensor: str) -> str:
    """The group that a row of the ledger counts in. Broadcasts of the graph itself stand apart."""
    if Phase(phase) in GATHERING:
        return "sampling, fetching"
    return SPARSE if op == Op.BROADCAST and tensor == TensorName.A else GROUP_OF_OP[Op(op)]


def grouped(parts: "pd.Series[float]") -> dict[str, float]:
    """Seconds by group, in the order of stacking, of seconds by phase, op and tensor."""
    sums = dict.fromkeys(GROUPS, 0.0)
    for (phase, op, tensor), seconds in zip(parts.index, parts, strict=True):
        sums[group_of(phase, op, tensor)] += seconds
    return sums


def bars(curve: Curve, tables: Tables) -> list[Bar]:
    """One for each number of ranks and grid, and one for each failure."""
    found: list[tuple[int, Bar]] = []
    points = curve.points
    for _, launches in points.groupby(["ranks", "grid"]):
        parts = composition.of_launches(launches, tables.epochs, tables.ledgers)
        found.append(
            (int(launches.ranks.iloc[0]), Bar(ranks_and_grid(launches.iloc[0]), grouped(parts), "ok"))
        )
    for _, run in curve.failures.iterrows():
        found.append((int(run.ranks), Bar(ranks_and_grid(run), {}, run.status)))
    return [bar for _, bar in sorted(found, key=lambda pair: pair[0])]


def rows(panel: Panel, tables: Tables) -> Rows:
    """The bars of every measured curve, under its label."""
    measured = [curve for curve in curves(panel) if curve.source == "measured"]
    return [Group(curve.label, bars(curve, tables)) for curve in measured]


def draw(axes: Axes, rows: Rows) -> None:
    """One panel, filled from the top."""
    longest = max((bar.total for group in rows for bar in group.bars), default=0.0)
    unit, ticks = unit_for(longest) if longest else UNITS[0], []
    for top, label, bars in places(rows):
        write_beside(axes, label, 0, top, fontweight="bold")
        for y, bar in bars:
            _draw_bar(axes, y, bar, unit.per_second)
            ticks.append((y, bar.label))
    frame(axes, rows, ticks, 1.13 * longest * unit.per_second or 1)
    if longest:
        axes.set_xlabel(f"time of the median epoch ({unit.name})")
    else:
        axes.set_xticks([])
    axes.set_ylabel("ranks")


def _draw_bar(axes: Axes, y: float, bar: Bar, per_second: float) -> None:
    if bar.status != "ok":
        write_beside(axes, f"× {bar.status}", 0, y)
        return
    left = 0.0
    for group, seconds in bar.seconds.items():
        fill, width = GROUPS[group], seconds * per_second
        axes.barh(y, width, 0.74, left, color=fill.colour, hatch=fill.hatch, edgecolor=PAPER, linewidth=0.3)
        left += width
    write_beside(axes, three_digits(left), left, y)


def handles(some: Iterable[Rows]) -> list[Patch]:
    """The legend of some panels: the groups that took any time, in their order."""
    parts = [bar.seconds for rows in some for _, bars in rows for bar in bars]
    return [
        Patch(facecolor=fill.colour, hatch=fill.hatch, edgecolor=PAPER, label=name)
        for name, fill in GROUPS.items()
        if any(seconds.get(name, 0.0) > 0 for seconds in parts)
    ]


def page(some: Sequence[Panel], shown: Sequence[Rows]) -> Figure:
    """A panel each, as tall as its bars need."""
    figure, axes = layout.page([inches(rows) for rows in shown], [panel.title for panel in some])
    layout.legend(figure, handles(shown))
    for each, rows in zip(axes, shown, strict=True):
        draw(each, rows)
    return figure


KIND = Kind("breakdown", "Where an epoch goes", rows, page)
