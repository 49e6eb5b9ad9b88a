"""Breakdown of an epoch: stacked bars with the seconds of each group of operations.

A bar is as long as the epoch time in the scaling figure. Groups have the same order and colours in every figure: local
work first, then communication.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.figures.kind import FigureKind, Tables, compose_panels
from harness.figures.page_layout import (
    BarGroup,
    Section,
    annotate_bar,
    arrange_in_columns,
    format_ranks_or_grid,
    label_bar_groups,
    position_bars,
)
from harness.figures.palette import GROUPS, PAPER, STEPS, Fill
from harness.figures.panels import Curve, Panel
from harness.figures.units import UNITS, unit_for
from harness.formatting import format_three_digits
from harness.ledger import MOVING, SAMPLING, Op, Phase, TensorName
from harness.results import epoch_parts

# Each number of ranks and each grid has a stacked bar: the median epoch on its slowest rank
# (`harness.results.epoch_parts`), by groups of ledger rows. Rows that belong to no group are left out.


class EpochBar(NamedTuple):
    """The bar of one number of ranks and grid, or the status of a run that did not finish."""

    label: str
    seconds: dict[str, float]
    status: str

    @property
    def total(self) -> float:
        """The length of the bar in seconds."""
        return sum(self.seconds.values())


EpochBars = list[BarGroup[EpochBar]]
"""The bars of each curve, under its label."""


def longest_bar(groups: EpochBars) -> float:
    """Return the seconds of the longest bar."""
    return max((bar.total for group in groups for bar in group.bars), default=0.0)


class Breakdown(NamedTuple):
    """A division of epochs into groups of operations, drawn as stacked bars."""

    fills: Mapping[str, Fill]
    """The groups in stacking order, each with its fill."""
    group_of: Callable[[Phase, Op, str], str | None]
    """Returns the group of a row of the ledger by its phase, op and tensor; None if it belongs to no group."""
    x_label: str
    """The label of the x axis, without its unit: what the length of a bar shows."""

    def sum_groups(self, parts: epoch_parts.Parts) -> dict[str, float]:
        """Sum the seconds of each phase, op and tensor into seconds by group."""
        sums = dict.fromkeys(self.fills, 0.0)
        for (phase, op, tensor), seconds in parts.items():
            if group := self.group_of(Phase(phase), Op(op), tensor):
                sums[group] += seconds
        return sums

    def make_bars(self, curve: Curve, tables: Tables) -> list[EpochBar]:
        """Make a bar for each number of ranks and grid, and one for each failure."""
        by_ranks: list[tuple[int, EpochBar]] = []
        for _, launches in curve.points.groupby(["ranks", "grid"]):
            run = launches.iloc[0]
            seconds = self.sum_groups(epoch_parts.split_launches(launches, tables.epochs, tables.ledgers))
            by_ranks.append((int(run.ranks), EpochBar(format_ranks_or_grid(run), seconds, "ok")))
        for _, run in curve.failures.iterrows():
            by_ranks.append((int(run.ranks), EpochBar(format_ranks_or_grid(run), {}, run.status)))
        return [bar for _, bar in sorted(by_ranks, key=lambda pair: pair[0])]

    def select_bars(self, panel: Panel, tables: Tables) -> EpochBars:
        """Make the bars of every measured, emulated or predicted curve; none if all bars are empty."""
        curves = [_select_broken_down(curve, tables) for curve in panel.curves if curve.source in BROKEN_DOWN]
        groups = [BarGroup(curve.label, self.make_bars(curve, tables)) for curve in curves]
        groups = [group for group in groups if group.bars]
        return groups if any(bar.total for group in groups for bar in group.bars) else []

    def draw_bars(self, axes: Axes, groups: EpochBars, longest: float) -> None:
        """Draw groups of bars from top to bottom. `longest` is the longest bar of the panel in seconds."""
        unit, ticks = unit_for(longest) if longest else UNITS[0], []
        for _, _, bars in position_bars(groups):
            for y, bar in bars:
                self._draw_bar(axes, y, bar, unit.per_second)
                ticks.append((y, bar.label))
        axes.set_xlim(0, longest * unit.per_second or 1)
        label_bar_groups(axes, groups, ticks)
        axes.set_xlabel(f"{self.x_label} ({unit.name})")

    def _draw_bar(self, axes: Axes, y: float, bar: EpochBar, per_second: float) -> None:
        if bar.status != "ok":
            annotate_bar(axes, f"× {bar.status}", 0, y)
            return
        left = 0.0
        for group, seconds in bar.seconds.items():
            fill, width = self.fills[group], seconds * per_second
            if width > 0:
                axes.barh(
                    y, width, 0.74, left, color=fill.colour, hatch=fill.hatch, edgecolor=PAPER, linewidth=0.3
                )
            left += width
        annotate_bar(axes, format_three_digits(left), left, y)

    def make_handles(self, contents: Iterable[EpochBars]) -> list[Patch]:
        """Make the handles of a legend: the groups that took any time, in stacking order."""
        parts = [bar.seconds for groups in contents for _, bars in groups for bar in bars]
        return [
            Patch(facecolor=fill.colour, hatch=fill.hatch, edgecolor=PAPER, label=name)
            for name, fill in self.fills.items()
            if any(seconds.get(name, 0.0) > 0 for seconds in parts)
        ]

    def make_section(self, title: str, groups: EpochBars) -> Section:
        """Make the axes of one panel."""
        return arrange_in_columns(title, groups, partial(self.draw_bars, longest=longest_bar(groups)))

    def draw_figure(self, panels: Sequence[Panel], contents: Sequence[EpochBars]) -> Figure:
        """Draw the bars of all panels."""
        return compose_panels(panels, contents, self.make_section, self.make_handles(contents))

    def tabulate(self, groups: EpochBars) -> Iterator[dict[str, Any]]:
        """Yield a row for each part of each bar."""
        for label, bars in groups:
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


BROKEN_DOWN = ("measured", "emulated", "predicted")
"""The sources whose runs may have a ledger. Papers and logs of other programs give only the sum."""


def _select_broken_down(curve: Curve, tables: Tables) -> Curve:
    """Return a curve with only the runs that have a ledger. Some predictions give only the epoch time."""
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


def group_of_operation(phase: Phase, op: Op, tensor: str) -> str:
    """Return the group of a ledger row: by phase if it samples or fetches, else by op. Broadcasts of A are a group."""
    if phase in GROUP_OF_PHASE:
        return GROUP_OF_PHASE[phase]
    return SPARSE if op == Op.BROADCAST and tensor == TensorName.A else GROUP_OF_OP[op]


BREAKDOWN = Breakdown(GROUPS, group_of_operation, "median epoch time")
CAPTION = """\
Seconds that each operation takes in an epoch. A bar is the median epoch on its slowest rank, so its length is the
epoch time. The label on its left is the number of ranks, or the sizes of the axes of their grid. Blue: local work.
Orange, red, violet and yellow: communication, including the wait for other ranks. Grey: time between operations.
Green, for mini-batches: sampling and fetching features, including their communication."""
KIND = FigureKind(
    "breakdown",
    "Breakdown of epoch time",
    BREAKDOWN.select_bars,
    BREAKDOWN.draw_figure,
    BREAKDOWN.tabulate,
    caption=CAPTION,
    place=40,
)


# The breakdown of sampling: computation and communication of each step (bulk sampling's figure 5).

STEP = dict(zip(SAMPLING, ("distributions", "sampling", "extraction"), strict=True))


def sampling_step_of(phase: Phase, op: Op, _: str) -> str | None:
    """Return the sampling step of a ledger row; None if the row is not part of sampling."""
    if phase not in STEP:
        return None
    return f"{STEP[phase]}, sent" if op in MOVING else STEP[phase]


SAMPLING_BREAKDOWN = Breakdown(STEPS, sampling_step_of, "sampling time in the median epoch")


def select_sampling_bars(panel: Panel, tables: Tables) -> EpochBars:
    """Make the bars of every curve that samples."""
    groups = SAMPLING_BREAKDOWN.select_bars(panel, tables)
    return [group for group in groups if any(bar.total for bar in group.bars)]


SAMPLING_CAPTION = """\
Seconds that each step of sampling takes in an epoch: computing the distributions, drawing from them, and extracting
the drawn rows and columns. Blue: computation. Red, orange and yellow: communication, including the wait for other
ranks."""
SAMPLING_KIND = FigureKind(
    "sampling",
    "Breakdown of sampling time",
    select_sampling_bars,
    SAMPLING_BREAKDOWN.draw_figure,
    SAMPLING_BREAKDOWN.tabulate,
    caption=SAMPLING_CAPTION,
    place=50,
)
