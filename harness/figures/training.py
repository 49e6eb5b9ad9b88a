"""Convergence: the test accuracy over training time, and the training loss over epochs.

Accuracy over time makes samplers comparable whose epochs differ. The time of evaluations is excluded, and a dotted line
marks the accuracy at which runs stop. The loss over epochs shows strategies that compute the same numbers as one line.

Each run of a curve at its largest number of ranks is a line. If there are many strategies, each has small axes, with
the lines of all others in grey.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.figures.kind import FigureKind, Tables, compose_panels
from harness.figures.page_layout import Cell, Section, arrange_small_multiples
from harness.figures.palette import GRID, MUTED, PAPER, CurveLook
from harness.figures.panels import Panel, select_largest_ranks
from harness.figures.scaling import DOTTED, PLOT_HEIGHT, SMALL_HEIGHT
from harness.figures.units import unit_for
from harness.formatting import format_count
from harness.results.epoch_parts import Frames

MAX_SHARED = 4
"""The most strategies that share axes. These lines cross more often than those of the scaling figure."""
MAX_MARKERS = 12
"""The approximate number of markers on a line with many points."""
MIN_LOSSES = 3
"""The fewest epochs for which a loss curve is drawn."""


class TrainingLine(NamedTuple):
    """The line of one run: a quantity over time or epochs."""

    label: str
    look: CurveLook
    x: list[float]
    y: list[float]
    strategy: str = ""


class TrainingAxes(NamedTuple):
    """What the lines of a panel show: the names of x and y in the CSV file, and how to label and scale the axes."""

    columns: tuple[str, str]
    choose_x_unit: Callable[[float], tuple[str, float]]
    """Returns the label of the x axis and the size of its unit, given the largest x."""
    y_label: str
    short_y_label: str
    """The label of the y axis of small axes."""
    set_y_range: Callable[[Axes, float, float, bool], None]
    """Sets the limits and ticks of the y axis, given the smallest and largest y and whether the axes are small."""


class TrainingPanel(NamedTuple):
    """The lines of one panel, and the accuracies at which its runs stop."""

    quantity: TrainingAxes
    lines: list[TrainingLine]
    targets: list[float]

    @property
    def strategies(self) -> list[str]:
        """The labels of the curves, in order."""
        return list(dict.fromkeys(line.strategy for line in self.lines))


def select_accuracies(panel: Panel, tables: Tables) -> TrainingPanel | None:
    """Make a line for each run of a measured curve that was evaluated on test vertices; None if there is none."""
    targets = panel.runs["training.target"].dropna()
    lines = [line for line in _make_lines(panel, tables.accuracy, _select_test_accuracies) if line.x]
    return TrainingPanel(ACCURACY, lines, sorted(set(targets[targets > 0]))) if lines else None


def select_losses(panel: Panel, tables: Tables) -> TrainingPanel | None:
    """Make a line for each run of a measured curve that has the losses of several epochs; None if there is none."""
    lines = [line for line in _make_lines(panel, tables.epochs, _select_losses) if len(line.x) >= MIN_LOSSES]
    return TrainingPanel(LOSS, lines, []) if lines else None


def _make_lines(
    panel: Panel, frames: Frames, select_points: Callable[[pd.DataFrame], pd.DataFrame]
) -> Iterator[TrainingLine]:
    """Yield the line of each run of a measured curve at its largest number of ranks."""
    for curve, points in select_largest_ranks(panel):
        for run in points.run_id:
            if (frame := frames.get(run)) is not None:
                rows = select_points(frame)
                label = f"{curve.label}, {format_count(int(points.ranks.iloc[0]), 'rank')}"
                yield TrainingLine(label, curve.look, rows.x.tolist(), rows.y.tolist(), curve.label)


def _select_test_accuracies(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return training time and accuracy of each evaluation on test vertices, as x and y."""
    rows = accuracy[accuracy.split == "test"].dropna(subset=["accuracy"]).sort_values("epoch")
    return rows.rename(columns={"train_seconds": "x", "accuracy": "y"})


def _select_losses(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return number and loss of each epoch as x and y, warm-up included. All ranks have the same loss."""
    rows = epochs.dropna(subset=["loss"]).drop_duplicates("epoch").sort_values("epoch")
    return pd.DataFrame({"x": range(1, len(rows) + 1), "y": rows.loss})


def _set_accuracy_range(axes: Axes, low: float, high: float, small: bool) -> None:
    _set_range(axes, max(low, 0.0), min(high, 1.0), 100.0, small)


def _set_loss_range(axes: Axes, low: float, high: float, small: bool) -> None:
    _set_range(axes, low, high, 1.0, small)


def _set_range(axes: Axes, low: float, high: float, factor: float, small: bool) -> None:
    """Set the limits of the y axis close to the values, so that close lines can be distinguished.

    Tick labels are multiplied by `factor`.
    """
    room = (high - low) or abs(high) or 1.0
    axes.set_ylim(low - 0.06 * room, high + 0.06 * room)
    axes.yaxis.set_major_locator(MaxNLocator(2 if small else 5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{factor * value:,.6g}"))


def _choose_time_unit(longest: float) -> tuple[str, float]:
    """Return the label of a time axis and the size of its unit."""
    unit = unit_for(longest)
    return f"training time ({unit.name})", 1 / unit.per_second


ACCURACY = TrainingAxes(
    ("train_seconds", "accuracy_test"),
    _choose_time_unit,
    "test accuracy (%)",
    "test (%)",
    _set_accuracy_range,
)
LOSS = TrainingAxes(("epoch", "loss"), lambda _: ("epoch", 1.0), "training loss", "loss", _set_loss_range)


def draw_lines(
    axes: Axes, shown: TrainingPanel, own: str = "", label_y: bool = True, label_x: bool = True
) -> None:
    """Draw one panel. With `own`, draw small axes: the lines of that curve, and all others in grey behind."""
    quantity, longest = shown.quantity, max(max(line.x) for line in shown.lines)
    label, unit = quantity.choose_x_unit(longest)
    lines = shown.lines
    if own:
        lines = _drop_repetitions(line for line in shown.lines if line.strategy == own)
        others = _drop_repetitions(line for line in shown.lines if line.strategy != own)
        axes.plot(*_join_lines(others, unit), color=GRID, linewidth=0.8, zorder=1.2)
    for number, line in enumerate(lines):
        x = [each / unit for each in line.x]
        axes.add_line(_make_line(line, x, line.y, 0 if own else number, 1 if own else len(lines)))
    for target in shown.targets:
        axes.axhline(target, color=MUTED, linestyle=DOTTED, linewidth=0.9)
    end = longest / unit
    axes.set_xlim(-0.04 * end, 1.05 * end)
    values = [*(y for line in shown.lines for y in line.y), *shown.targets]
    quantity.set_y_range(axes, min(values), max(values), bool(own))
    axes.xaxis.set_major_locator(MaxNLocator(3 if own else 5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel(label if label_x else "")
    axes.set_ylabel((quantity.short_y_label if own else quantity.y_label) if label_y else "")
    axes.tick_params(axis="y", labelleft=label_y)
    axes.tick_params(axis="x", labelbottom=label_x)
    axes.grid(axis="y")


def _drop_repetitions(lines: Iterable[TrainingLine]) -> list[TrainingLine]:
    """Drop lines that repeat another one. Launches of one configuration often have the same losses."""
    return list({(*line.x, *line.y): line for line in lines}.values())


def _join_lines(lines: Sequence[TrainingLine], unit: float) -> tuple[list[float], list[float]]:
    """Join all lines into one with a gap after each, which one artist draws in a fraction of the time."""
    x = [value for line in lines for value in (*(each / unit for each in line.x), math.nan)]
    y = [value for line in lines for value in (*line.y, math.nan)]
    return x, y


def _make_line(
    line: TrainingLine, x: Sequence[float], y: Sequence[float], number: int = 0, total: int = 1
) -> Line2D:
    """Make the line of a run, for axes or for a legend. It is line `number` of `total` lines on the same axes.

    The lines of exact strategies coincide. Their markers are at different points and their widths decrease, so that all
    can be seen.
    """
    look = line.look
    every = max(1, len(x) // MAX_MARKERS)
    spread = min(total, len(x) // MIN_LOSSES or 1)
    every = max(every, spread)
    return Line2D(
        x,
        y,
        color=look.colour,
        marker=look.marker,
        fillstyle=look.fill,
        markerfacecoloralt=PAPER,
        markersize=4.5,
        markevery=(number % spread * every // spread, every),
        linewidth=0.9 + 0.9 * (total - 1 - number) / total,
        markeredgecolor=PAPER if look.fill == "full" else look.colour,
        markeredgewidth=0.4,
        label=line.label,
    )


def make_section(title: str, content: TrainingPanel) -> Section:
    """Make shared axes for a few strategies, or small axes for each of many."""
    if len(content.strategies) <= MAX_SHARED:
        return Section([Cell("", partial(draw_lines, shown=content), PLOT_HEIGHT)], 1, title)
    labels = {line.strategy: line.label for line in content.lines}
    facets = [(labels[name], partial(draw_lines, shown=content, own=name)) for name in content.strategies]
    return arrange_small_multiples(title, facets, SMALL_HEIGHT)


def make_handles(contents: Sequence[TrainingPanel]) -> list[Line2D]:
    """Make the handles of a legend: each curve on shared axes once, then the target and the grey lines."""
    shared = [content for content in contents if len(content.strategies) <= MAX_SHARED]
    by_look: dict[CurveLook, dict[str, list[TrainingLine]]] = {}
    for line in (line for content in shared for line in content.lines):
        by_look.setdefault(line.look, {}).setdefault(line.strategy, []).append(line)
    handles = [_make_line(_merge_labels(curves), [], []) for curves in by_look.values()]
    if any(content.targets for content in contents):
        handles.append(Line2D([], [], color=MUTED, linestyle=DOTTED, linewidth=0.9, label="target"))
    if len(shared) < len(contents):
        handles.append(Line2D([], [], color=GRID, linewidth=0.8, label="all others"))
    return handles


def _merge_labels(curves: Mapping[str, list[TrainingLine]]) -> TrainingLine:
    """Merge the curves of one look, which are in different panels, for one legend entry.

    The label has the number of ranks where all lines agree on it.
    """
    names = [
        lines[0].label if len({line.label for line in lines}) == 1 else name for name, lines in curves.items()
    ]
    return next(iter(curves.values()))[0]._replace(label="; ".join(names))


def draw_figure(panels: Sequence[Panel], contents: Sequence[TrainingPanel]) -> Figure:
    """Draw the lines of all panels."""
    return compose_panels(panels, contents, make_section, make_handles(contents))


def tabulate(content: TrainingPanel) -> Iterator[dict[str, Any]]:
    """Yield a row for each point."""
    x_name, y_name = content.quantity.columns
    for line in content.lines:
        for x, y in zip(line.x, line.y, strict=True):
            yield {"curve": line.label, x_name: x, y_name: y}


CAPTION = """\
Test accuracy over training time. Each line is a run of a curve at its largest number of ranks, and each marker is an
evaluation on the full graph. The time excludes evaluations and setup (`setup_seconds` of a run: opening the graph
and compiling kernels). Dotted line: target accuracy. If there are many strategies, each has small axes, with the
lines of all others in grey."""
KIND = FigureKind(
    "accuracy",
    "Test accuracy over training time",
    select_accuracies,
    draw_figure,
    tabulate,
    caption=CAPTION,
    place=100,
)
LOSS_CAPTION = """\
Training loss by epoch, including warm-up epochs. Each line is a run of a curve at its largest number of ranks.
Strategies that promise exact training coincide with serial training; the CSV file of the figure has all digits. If
there are many strategies, each has small axes, with the lines of all others in grey."""
LOSS_KIND = FigureKind(
    "loss", "Training loss by epoch", select_losses, draw_figure, tabulate, caption=LOSS_CAPTION, place=110
)
