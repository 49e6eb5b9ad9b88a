"""What curves cost beside each other, each at its largest number of ranks: the epoch, words, and bytes that are held.

Words are the payload of an epoch, bytes what a rank holds all the time (the graph, features, weights, labels), both of
the rank that has most. A bar is a grid, the median of its launches.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from harness.figures.breakdown import BETWEEN, HEADING, ranks_and_grid, write_beside
from harness.figures.palette import PAPER, Look
from harness.figures.panels import Panel, curves
from harness.figures.units import three_digits

QUANTITIES = {"epoch (ms)": 1e3, "words (millions)": 1e-6, "held (MB)": 1e-6}
"""What is drawn, from left to right, and how many of that unit one second, word or byte is."""


class Bars(NamedTuple):
    """The grids of a curve: their labels, and a value for each of the quantities."""

    label: str
    look: Look
    grids: list[tuple[str, tuple[float, float, float]]]


def bars(panel: Panel, memory: Mapping[str, pd.DataFrame]) -> list[Bars]:
    """Of every measured curve that has a point."""
    found = []
    for curve in curves(panel):
        points = curve.points
        if curve.source != "measured" or points.empty:
            continue
        largest = points[points.ranks == points.ranks.max()]
        grids = []
        for _, launches in largest.groupby("grid"):
            held = pd.Series([_held(memory.get(run)) for run in launches.run_id]).median()
            values = launches.epoch_seconds_median.median(), launches.words_payload.median(), held
            grids.append((ranks_and_grid(launches.iloc[0]), values))
        found.append(Bars(curve.label, curve.look, grids))
    return found


def height(some: Sequence[Bars]) -> float:
    """How tall they are, in bars."""
    return sum(len(one.grids) + HEADING + BETWEEN for one in some)


def draw(three: Sequence[Axes], some: Sequence[Bars]) -> None:
    """A panel: three axes, filled from the top."""
    for number, (axes, (name, unit)) in enumerate(zip(three, QUANTITIES.items(), strict=True)):
        y, ticks, longest = 0.0, [], 0.0
        for one in some:
            if number == 0:
                write_beside(axes, one.label, 0, y, fontweight="bold")
            y += HEADING
            for label, values in one.grids:
                width = values[number] * unit
                axes.barh(y, width, 0.74, color=one.look.colour, edgecolor=PAPER, linewidth=0.3)
                write_beside(axes, three_digits(width), width, y)
                ticks.append((y, label))
                longest = max(longest, width)
                y += 1
            y += BETWEEN
        axes.set_ylim(y - BETWEEN - 0.35, -0.6)
        axes.set_xlim(0, 1.35 * longest or 1)
        axes.set_yticks([at for at, _ in ticks], [label if number == 0 else "" for _, label in ticks])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(name)
        axes.grid(axis="x")


def _held(memory: pd.DataFrame | None) -> float:
    """Bytes of the rank that holds most; 0 if no table says."""
    return 0.0 if memory is None else float(memory.groupby("rank").persistent_bytes.sum().max())
