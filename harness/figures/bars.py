"""Bars from the top of a panel down, in groups under headings: what figures of bars share."""

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import pandas as pd
from matplotlib.axes import Axes

HEADING, BETWEEN = 1.0, 0.35  # heights, where a bar's row is one
BAR, FRAME = 0.145, 0.62  # inches

T = TypeVar("T")


class Group(NamedTuple, Generic[T]):
    """Bars and the label above them."""

    label: str
    bars: Sequence[T]


def height(groups: Sequence[Group[T]]) -> float:
    """How tall they are, in bars."""
    return sum(len(group.bars) + HEADING + BETWEEN for group in groups)


def inches(groups: Sequence[Group[T]]) -> float:
    """How tall their panel is."""
    return FRAME + BAR * height(groups)


def places(groups: Sequence[Group[T]]) -> Iterator[tuple[float, str, list[tuple[float, T]]]]:
    """For each group the height of its label, the label, and every bar with its height; the top is 0."""
    y = 0.0
    for label, bars in groups:
        first = y + HEADING
        yield y, label, [(first + number, bar) for number, bar in enumerate(bars)]
        y = first + len(bars) + BETWEEN


def frame(axes: Axes, groups: Sequence[Group[T]], ticks: Sequence[tuple[float, str]], width: float) -> None:
    """Room for the groups, a label at each bar, and a grid across."""
    axes.set_ylim(height(groups) - BETWEEN - 0.35, -0.6)
    axes.set_xlim(0, width)
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def write_beside(axes: Axes, text: str, x: float, y: float, fontweight: str = "normal") -> None:
    """Text that begins a little to the right of a point, on the line of the tick's label."""
    written = axes.annotate(
        text, (x, y), xytext=(3, 0), textcoords="offset points", va="center_baseline", fontweight=fontweight
    )
    written.set_in_layout(False)  # a long label makes no axes wide


def ranks_and_grid(run: "pd.Series[str]") -> str:
    """The number of ranks, with the grid where it does not follow from that."""
    axes = [name for name in run.index if name.startswith("grid.") and pd.notna(run[name])]
    return f"{run.grid}  {run.ranks}" if len(axes) > 1 else f"{run.ranks}"
