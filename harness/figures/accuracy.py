"""Accuracy on the test vertices over training time, by which epochs of different samplers can be compared.

Every run of a curve at its largest number of ranks is a line, with a point for each evaluation of the full graph. The
time of evaluations is excluded. A dotted line is the accuracy at which runs were to stop. Where many lines would hide
each other, each strategy has small axes of its own, with the lines of all others in grey.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import Cell, Section, across, compose, unit_for
from harness.figures.palette import GRID, MUTED, PAPER, StrategyLook
from harness.figures.panels import Panel, counted, largest, titles
from harness.figures.scaling import DOTTED, PLOT, SMALL

MOST_TOGETHER = 4
"""Strategies on common axes: lines of accuracy cross more than lines of time."""
CROWDED = 12
"""Evaluations of a line beyond which it has fewer markers."""


class AccuracyLine(NamedTuple):
    """One run: its evaluations in order."""

    label: str
    look: StrategyLook
    seconds: list[float]
    accuracies: list[float]
    strategy: str = ""


class AccuracyPanel(NamedTuple):
    """The lines of one panel, and the accuracies at which its runs were to stop."""

    lines: list[AccuracyLine]
    targets: list[float]

    @property
    def strategies(self) -> list[str]:
        """The names of the curves, in order."""
        return list(dict.fromkeys(line.strategy for line in self.lines))

    @property
    def longest(self) -> float:
        """The last evaluation of all lines, in seconds."""
        return max(max(line.seconds) for line in self.lines)


def lines(panel: Panel, tables: Tables) -> AccuracyPanel | None:
    """A line for every run of a measured curve that was evaluated on test vertices; None without any."""
    evaluated = []
    for curve, points in largest(panel):
        for run in points.run_id:
            if (rows := _tested(tables.accuracy.get(run))) is not None:
                label = f"{curve.label}, {counted(int(points.ranks.iloc[0]), 'rank')}"
                seconds, accuracies = rows.train_seconds.tolist(), rows.accuracy.tolist()
                evaluated.append(AccuracyLine(label, curve.look, seconds, accuracies, curve.label))
    targets = panel.runs["training.target"].dropna()
    return AccuracyPanel(evaluated, sorted(set(targets[targets > 0]))) if evaluated else None


def _tested(accuracy: pd.DataFrame | None) -> pd.DataFrame | None:
    """The evaluations on test vertices, or None without any."""
    if accuracy is None:
        return None
    rows = accuracy[accuracy.split == "test"].dropna(subset=["accuracy"]).sort_values("epoch")
    return None if rows.empty else rows


def draw(axes: Axes, shown: AccuracyPanel, own: str = "", first: bool = True, last: bool = True) -> None:
    """Draws one panel; with `own`, the lines of that curve over those of all others in grey."""
    unit = unit_for(shown.longest)
    for line in shown.lines:
        seconds = [second * unit.per_second for second in line.seconds]
        if own and line.strategy != own:
            axes.plot(seconds, line.accuracies, color=GRID, linewidth=0.8, zorder=1.2)
        else:
            axes.add_line(_sample(line, seconds, line.accuracies))
    for target in shown.targets:
        axes.axhline(target, color=MUTED, linestyle=DOTTED, linewidth=0.9)
    end = shown.longest * unit.per_second
    axes.set_xlim(-0.04 * end, 1.05 * end)
    axes.set_ylim(-0.02, 1.04)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 1] if own else [0, 0.2, 0.4, 0.6, 0.8, 1]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(3 if own else 5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel(f"training time ({unit.name})" if last else "")
    axes.set_ylabel(("test (%)" if own else "accuracy on test vertices (%)") if first else "")
    axes.tick_params(axis="y", labelleft=first)
    axes.tick_params(axis="x", labelbottom=last)
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
        markevery=max(1, len(x) // CROWDED),
        linewidth=0.9,
        markeredgecolor=PAPER if look.fill == "full" else look.colour,
        markeredgewidth=0.4,
        label=line.label,
    )


def _section(title: str, shown: AccuracyPanel) -> Section:
    names = shown.strategies
    if len(names) <= MOST_TOGETHER:
        return Section([Cell("", partial(draw, shown=shown), PLOT)], 1, title)
    columns = across(len(names))
    labels = {line.strategy: line.label for line in shown.lines}
    cells = [
        Cell(
            labels[name],
            partial(
                draw,
                shown=shown,
                own=name,
                first=number % columns == 0,
                last=number + columns >= len(names),
            ),
            SMALL,
        )
        for number, name in enumerate(names)
    ]
    return Section(cells, columns, title)


def handles(some: Sequence[AccuracyPanel]) -> list[Line2D]:
    """The legend of some panels: every curve on common axes once, then the target and the grey lines."""
    together = [shown for shown in some if len(shown.strategies) <= MOST_TOGETHER]
    entries: dict[StrategyLook, dict[str, list[AccuracyLine]]] = {}
    for line in (line for shown in together for line in shown.lines):
        entries.setdefault(line.look, {}).setdefault(line.strategy, []).append(line)
    drawn = [_sample(_named(curves), [], []) for curves in entries.values()]
    if any(shown.targets for shown in some):
        drawn.append(Line2D([], [], color=MUTED, linestyle=DOTTED, linewidth=0.9, label="target"))
    if len(together) < len(some):
        drawn.append(Line2D([], [], color=GRID, linewidth=0.8, label="all others"))
    return drawn


def _named(curves: Mapping[str, list[AccuracyLine]]) -> AccuracyLine:
    """One entry for all curves of a look, which stand in different panels; ranks are said where they agree."""
    names = [
        lines[0].label if len({line.label for line in lines}) == 1 else name for name, lines in curves.items()
    ]
    return next(iter(curves.values()))[0]._replace(label="; ".join(names))


def page(some: Sequence[Panel], shown: Sequence[AccuracyPanel]) -> Figure:
    """The figure: axes for each panel."""
    each, note = titles(some)
    parts = [_section(title, content) for title, content in zip(each, shown, strict=True)]
    return compose(parts, handles(shown), note)


def data(shown: AccuracyPanel) -> Iterator[dict[str, Any]]:
    """A row for each evaluation."""
    for line in shown.lines:
        for seconds, accuracy in zip(line.seconds, line.accuracies, strict=True):
            yield {"curve": line.label, "train_seconds": seconds, "accuracy_test": accuracy}


KIND = FigureKind("accuracy", "Accuracy over training time", lines, page, data)
