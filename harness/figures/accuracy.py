"""Accuracy on the test vertices over training time, by which epochs of different samplers can be compared.

Every run of a curve at its largest number of ranks is a line, with a point for each evaluation of the full graph. The
time of evaluations is excluded. A dotted line is the accuracy at which runs were to stop.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures import page_layout
from harness.figures.kind import FigureKind, Tables
from harness.figures.palette import MUTED, PAPER, StrategyLook
from harness.figures.panels import Panel, largest

HEIGHT = 2.2  # inches
DOTTED = (0, (1, 1.6))


class AccuracyLine(NamedTuple):
    """One run: its evaluations in order."""

    label: str
    look: StrategyLook
    seconds: list[float]
    accuracies: list[float]


class AccuracyPanel(NamedTuple):
    """The lines of one panel, and the accuracies at which its runs were to stop."""

    lines: list[AccuracyLine]
    targets: list[float]


def lines(panel: Panel, tables: Tables) -> AccuracyPanel:
    """A line for every run of a measured curve that was evaluated on test vertices."""
    evaluated = []
    for curve, points in largest(panel):
        for run in points.run_id:
            if (rows := _tested(tables.accuracy.get(run))) is not None:
                label = f"{curve.label}, {int(points.ranks.iloc[0])} ranks"
                seconds, accuracies = rows.train_seconds.tolist(), rows.accuracy.tolist()
                evaluated.append(AccuracyLine(label, curve.look, seconds, accuracies))
    targets = panel.runs["training.target"].dropna()
    return AccuracyPanel(evaluated, sorted(set(targets[targets > 0])))


def _tested(accuracy: pd.DataFrame | None) -> pd.DataFrame | None:
    """The evaluations on test vertices, or None without any."""
    if accuracy is None:
        return None
    rows = accuracy[accuracy.split == "test"].dropna(subset=["accuracy"]).sort_values("epoch")
    return None if rows.empty else rows


def draw(axes: Axes, shown: AccuracyPanel) -> None:
    """Draws one panel."""
    for line in shown.lines:
        axes.add_line(_sample(line, line.seconds, line.accuracies))
    for target in shown.targets:
        axes.axhline(target, color=MUTED, linestyle=DOTTED, linewidth=0.9)
    longest = max((max(line.seconds) for line in shown.lines), default=1.0)
    axes.set_xlim(0, 1.05 * longest)
    axes.set_ylim(0, 1)
    axes.set_xlabel("training time (s)")
    axes.set_ylabel("accuracy on test vertices")
    axes.grid(axis="y")


def _sample(line: AccuracyLine, x: Sequence[float], y: Sequence[float]) -> Line2D:
    """The line of a run, for the axes or for the legend."""
    look = line.look
    return Line2D(
        x,
        y,
        color=look.colour,
        marker=look.marker,
        fillstyle=look.fill,
        markerfacecoloralt=PAPER,
        markersize=4.5,
        linewidth=0.9,
        markeredgecolor=PAPER if look.fill == "full" else look.colour,
        markeredgewidth=0.4,
        label=line.label,
    )


def handles(some: Iterable[AccuracyPanel]) -> list[Line2D]:
    """The legend of some panels: every curve once, and the target."""
    all_shown = list(some)
    entries = list(
        {line.label: _sample(line, [], []) for shown in all_shown for line in shown.lines}.values()
    )
    if any(shown.targets for shown in all_shown):
        entries.append(Line2D([], [], color=MUTED, linestyle=DOTTED, linewidth=0.9, label="target"))
    return entries


def page(some: Sequence[Panel], shown: Sequence[AccuracyPanel]) -> Figure:
    """The figure: axes for each panel."""
    figure, axes = page_layout.page([HEIGHT] * len(some), [panel.title for panel in some])
    page_layout.legend(figure, handles(shown))
    for each, panel in zip(axes, shown, strict=True):
        draw(each, panel)
    return figure


KIND = FigureKind("accuracy", "Accuracy over training time", lines, page)
