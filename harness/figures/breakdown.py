"""The breakdown of an epoch: seconds of everything that ran, so a bar is as long as the epoch of the scaling figure.

Groups have the same order and look in every figure: local work first, communication after it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import (
    Group,
    compose,
    frame,
    in_columns,
    places,
    ranks_and_grid,
    write_beside,
)
from harness.figures.palette import GROUPS, PAPER, STEPS, Fill
from harness.figures.panels import Curve, Panel, titles
from harness.figures.units import UNITS, three_digits, unit_for
from harness.ledger import MOVING, SAMPLING, Op, Phase, TensorName
from harness.results import epoch_parts

# Stacked bars: one for each number of ranks and grid, the seconds of a median epoch by groups of ledger rows.
#
# A bar is the median epoch on its slowest rank (`harness.results.epoch_parts`). Rows that belong to no group are
# left out.


class EpochBar(NamedTuple):
    """The bar of a number of ranks and a grid, or the status of a run that did not finish."""

    label: str
    seconds: dict[str, float]
    status: str

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


Rows = list[Group[EpochBar]]
"""The bars of every curve, under its label."""


def longest_of(rows: Rows) -> float:
    """The seconds of the longest bar."""
    return max((bar.total for group in rows for bar in group.bars), default=0.0)


class Breakdown(NamedTuple):
    """A way to divide epochs into groups, and to draw them as stacked bars."""

    fills: Mapping[str, Fill]
    """The groups in the order of stacking, each with its fill."""
    group_of: Callable[[Phase, Op, str], str | None]
    """The group that a row of the ledger counts in, by phase, op and tensor; None if no group does."""
    axis: str
    """The title of the axis: the quantity that the length of a bar shows."""

    def grouped(self, parts: epoch_parts.Parts) -> dict[str, float]:
        """Sums seconds by phase, op and tensor into seconds by group."""
        sums = dict.fromkeys(self.fills, 0.0)
        for (phase, op, tensor), seconds in parts.items():
            if group := self.group_of(Phase(phase), Op(op), tensor):
                sums[group] += seconds
        return sums

    def bars(self, curve: Curve, tables: Tables) -> list[EpochBar]:
        """One bar for each number of ranks and grid, and one for each failure."""
        by_ranks: list[tuple[int, EpochBar]] = []
        for _, launches in curve.points.groupby(["ranks", "grid"]):
            run = launches.iloc[0]
            seconds = self.grouped(epoch_parts.split_launches(launches, tables.epochs, tables.ledgers))
            by_ranks.append((int(run.ranks), EpochBar(ranks_and_grid(run), seconds, "ok")))
        for _, run in curve.failures.iterrows():
            by_ranks.append((int(run.ranks), EpochBar(ranks_and_grid(run), {}, run.status)))
        return [bar for _, bar in sorted(by_ranks, key=lambda pair: pair[0])]

    def rows(self, panel: Panel, tables: Tables) -> Rows:
        """The bars of every curve that has any, under its label: measured, emulated and predicted ones have parts."""
        parted = [_parted(curve, tables) for curve in panel.curves if curve.source in PARTED]
        groups = [Group(curve.label, self.bars(curve, tables)) for curve in parted]
        groups = [group for group in groups if group.bars]
        return groups if any(bar.total for group in groups for bar in group.bars) else []

    def draw(self, axes: Axes, groups: Rows, longest: float) -> None:
        """Draws the groups of a panel from the top down; `longest` is the longest bar of the panel."""
        unit, ticks = unit_for(longest) if longest else UNITS[0], []
        for _, _, bars in places(groups):
            for y, bar in bars:
                self._draw_bar(axes, y, bar, unit.per_second)
                ticks.append((y, bar.label))
        axes.set_xlim(0, longest * unit.per_second or 1)
        frame(axes, groups, ticks)
        axes.set_xlabel(f"{self.axis} ({unit.name})")

    def _draw_bar(self, axes: Axes, y: float, bar: EpochBar, per_second: float) -> None:
        if bar.status != "ok":
            write_beside(axes, f"× {bar.status}", 0, y)
            return
        left = 0.0
        for group, seconds in bar.seconds.items():
            fill, width = self.fills[group], seconds * per_second
            if width > 0:
                axes.barh(
                    y, width, 0.74, left, color=fill.colour, hatch=fill.hatch, edgecolor=PAPER, linewidth=0.3
                )
            left += width
        write_beside(axes, three_digits(left), left, y)

    def handles(self, some: Iterable[Rows]) -> list[Patch]:
        """The legend of some panels: the groups that took any time, in the order of stacking."""
        parts = [bar.seconds for rows in some for _, bars in rows for bar in bars]
        return [
            Patch(facecolor=fill.colour, hatch=fill.hatch, edgecolor=PAPER, label=name)
            for name, fill in self.fills.items()
            if any(seconds.get(name, 0.0) > 0 for seconds in parts)
        ]

    def page(self, some: Sequence[Panel], shown: Sequence[Rows]) -> Figure:
        """The figure: axes for each panel, as tall as its bars need."""
        each, note = titles(some)
        sections = [
            in_columns(title, rows, partial(self.draw, longest=longest_of(rows)))
            for title, rows in zip(each, shown, strict=True)
        ]
        return compose(sections, self.handles(shown), note)

    def data(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """A row for each part of each bar."""
        for label, bars in rows:
            for bar in bars:
                parts = bar.seconds or {"": float("nan")}
                for group, seconds in parts.items():
                    yield {
                        "curve": label,
                        "ranks_or_grid": bar.label,
                        "status": bar.status,
                        "part": group,
                        "seconds": seconds,
                    }


PARTED = ("measured", "emulated", "predicted")
"""The sources of runs whose ledgers have seconds: a paper prints a sum, and another program's log has no parts."""


def _parted(curve: Curve, tables: Tables) -> Curve:
    """A curve with the runs that have parts: a prediction may be a sum alone."""
    if curve.source == "measured":
        return curve
    return replace(curve, runs=curve.runs[curve.runs.run_id.isin(tables.ledgers)])


SPARSE = "broadcast of A"
GROUP_OF_PHASE = {Phase.LOAD: "fetching", Phase.FETCH: "fetching", **dict.fromkeys(SAMPLING, "sampling")}
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


def group_of(phase: Phase, op: Op, tensor: str) -> str:
    """The group of a row: by phase if the phase samples or fetches, else by op; broadcasts of A are a group."""
    if phase in GROUP_OF_PHASE:
        return GROUP_OF_PHASE[phase]
    return SPARSE if op == Op.BROADCAST and tensor == TensorName.A else GROUP_OF_OP[op]


BREAKDOWN = Breakdown(GROUPS, group_of, "time of the median epoch")
CAPTION = """\
Seconds of an epoch by operation. A bar is the median epoch on its slowest rank, so its length is the epoch time; on
its left stands the number of ranks, or the sizes of the axes of their grid. Blue: local work. Orange, red, violet
and yellow: communication, waiting for other ranks included. Grey: time between the two. Green, for mini-batches:
sampling and fetching of features, with their communication."""
KIND = FigureKind(
    "breakdown",
    "Where an epoch goes",
    BREAKDOWN.rows,
    BREAKDOWN.page,
    BREAKDOWN.data,
    caption=CAPTION,
    place=40,
)


# The breakdown of sampling: distributions, draws and extraction, each computed and sent (bulk sampling's figure 5).

STEP = dict(zip(SAMPLING, ("distributions", "sampling", "extraction"), strict=True))


def step_of(phase: Phase, op: Op, _: str) -> str | None:
    """The step of sampling that a row belongs to; None for every other row."""
    if phase not in STEP:
        return None
    return f"{STEP[phase]}, sent" if op in MOVING else STEP[phase]


SAMPLING_BREAKDOWN = Breakdown(STEPS, step_of, "sampling in the median epoch")


def rows(panel: Panel, tables: Tables) -> Rows:
    """The bars of every curve that samples."""
    return [group for group in SAMPLING_BREAKDOWN.rows(panel, tables) if any(bar.total for bar in group.bars)]


SAMPLING_CAPTION = """\
Seconds of an epoch that sampling takes, by step: making the distributions, drawing from them, and extracting the
drawn rows and columns. Blue: computing. Red, orange and yellow: communication, waiting for other ranks included."""
SAMPLING_KIND = FigureKind(
    "sampling",
    "Where sampling goes",
    rows,
    SAMPLING_BREAKDOWN.page,
    SAMPLING_BREAKDOWN.data,
    caption=SAMPLING_CAPTION,
    place=50,
)
