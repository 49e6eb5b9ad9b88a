"""How training goes: the accuracy on the test vertices over training time, and the loss over epochs.

By accuracy over time, epochs of different samplers can be compared. The time of evaluations is excluded, and a dotted
line is the accuracy at which runs were to stop. By loss over epochs, strategies that compute the same numbers lie on
one line.

Every run of a curve at its largest number of ranks is a line. Where many lines would hide each other, each strategy has
small axes of its own, with the lines of all others in grey.
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

from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import Cell, Section, across, compose
from harness.figures.palette import GRID, MUTED, PAPER, StrategyLook
from harness.figures.panels import Panel, counted, largest, titles
from harness.figures.scaling import DOTTED, PLOT, SMALL
from harness.figures.units import unit_for
from harness.results.epoch_parts import Frames

MOST_TOGETHER = 4
"""Strategies on common axes: these lines cross more than lines of time."""
CROWDED = 12
"""Points of a line beyond which it has fewer markers."""
FEWEST_LOSSES = 3
"""Epochs below which a loss shows no course."""


class TrainingLine(NamedTuple):
    """One run: a quantity by time or by epoch."""

    label: str
    look: StrategyLook
    x: list[float]
    y: list[float]
    strategy: str = ""


class TrainingAxes(NamedTuple):
    """What lines show: the columns of their numbers, and the axes for the lines of a panel."""

    columns: tuple[str, str]
    over: Callable[[float], tuple[str, float]]
    """The label of the horizontal axis and the length of its unit, by the largest number on it."""
    label: str
    short: str
    dress: Callable[[Axes, float, float, bool], None]
    """Sets the limits and ticks of the vertical axis, by the ends of what it shows; axes may be small."""


class TrainingPanel(NamedTuple):
    """The lines of one panel, and the values at which its runs were to stop."""

    quantity: TrainingAxes
    lines: list[TrainingLine]
    targets: list[float]

    @property
    def strategies(self) -> list[str]:
        """The names of the curves, in order."""
        return list(dict.fromkeys(line.strategy for line in self.lines))


def accuracies(panel: Panel, tables: Tables) -> TrainingPanel | None:
    """A line for every run of a measured curve that was evaluated on test vertices; None without any."""
    targets = panel.runs["training.target"].dropna()
    reached = [rows for rows in _lines(panel, tables.accuracy, _tested) if rows.x]
    return TrainingPanel(ACCURACY, reached, sorted(set(targets[targets > 0]))) if reached else None


def losses(panel: Panel, tables: Tables) -> TrainingPanel | None:
    """A line for every run of a measured curve that has the losses of some epochs; None without any."""
    known = [rows for rows in _lines(panel, tables.epochs, _known_losses) if len(rows.x) >= FEWEST_LOSSES]
    return TrainingPanel(LOSS, known, []) if known else None


def _lines(
    panel: Panel, frames: Frames, numbers: Callable[[pd.DataFrame], pd.DataFrame]
) -> Iterator[TrainingLine]:
    for curve, points in largest(panel):
        for run in points.run_id:
            if (frame := frames.get(run)) is not None:
                rows = numbers(frame)
                label = f"{curve.label}, {counted(int(points.ranks.iloc[0]), 'rank')}"
                yield TrainingLine(label, curve.look, rows.x.tolist(), rows.y.tolist(), curve.label)


def _tested(accuracy: pd.DataFrame) -> pd.DataFrame:
    """The evaluations on test vertices."""
    rows = accuracy[accuracy.split == "test"].dropna(subset=["accuracy"]).sort_values("epoch")
    return rows.rename(columns={"train_seconds": "x", "accuracy": "y"})


def _known_losses(epochs: pd.DataFrame) -> pd.DataFrame:
    """The losses of epochs, warm-up included; all ranks have the same."""
    rows = epochs.dropna(subset=["loss"]).drop_duplicates("epoch").sort_values("epoch")
    return pd.DataFrame({"x": range(1, len(rows) + 1), "y": rows.loss})


def _dress_accuracy(axes: Axes, low: float, high: float, small: bool) -> None:
    _fit(axes, max(low, 0.0), min(high, 1.0), 100.0, small)


def _dress_loss(axes: Axes, low: float, high: float, small: bool) -> None:
    _fit(axes, low, high, 1.0, small)


def _fit(axes: Axes, low: float, high: float, factor: float, small: bool) -> None:
    """Limits around the values, so that lines which are close to each other stay apart; labels are times `factor`."""
    room = (high - low) or abs(high) or 1.0
    axes.set_ylim(low - 0.06 * room, high + 0.06 * room)
    axes.yaxis.set_major_locator(MaxNLocator(2 if small else 5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{factor * value:,.6g}"))


def _over_time(longest: float) -> tuple[str, float]:
    unit = unit_for(longest)
    return f"training time ({unit.name})", 1 / unit.per_second


ACCURACY = TrainingAxes(
    ("train_seconds", "accuracy_test"),
    _over_time,
    "accuracy on test vertices (%)",
    "test (%)",
    _dress_accuracy,
)
LOSS = TrainingAxes(("epoch", "loss"), lambda _: ("epoch", 1.0), "training loss", "loss", _dress_loss)


def draw(axes: Axes, shown: TrainingPanel, own: str = "", first: bool = True, last: bool = True) -> None:
    """Draws one panel; with `own`, the lines of that curve over those of all others in grey."""
    quantity, longest = shown.quantity, max(max(line.x) for line in shown.lines)
    label, unit = quantity.over(longest)
    lines = shown.lines
    if own:
        lines = _distinct(line for line in shown.lines if line.strategy == own)
        others = _distinct(line for line in shown.lines if line.strategy != own)
        axes.plot(*_in_one(others, unit), color=GRID, linewidth=0.8, zorder=1.2)
    for number, line in enumerate(lines):
        x = [each / unit for each in line.x]
        axes.add_line(_sample(line, x, line.y, 0 if own else number, 1 if own else len(lines)))
    for target in shown.targets:
        axes.axhline(target, color=MUTED, linestyle=DOTTED, linewidth=0.9)
    end = longest / unit
    axes.set_xlim(-0.04 * end, 1.05 * end)
    values = [*(y for line in shown.lines for y in line.y), *shown.targets]
    quantity.dress(axes, min(values), max(values), bool(own))
    axes.xaxis.set_major_locator(MaxNLocator(3 if own else 5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel(label if last else "")
    axes.set_ylabel((quantity.short if own else quantity.label) if first else "")
    axes.tick_params(axis="y", labelleft=first)
    axes.tick_params(axis="x", labelbottom=last)
    axes.grid(axis="y")


def _distinct(lines: Iterable[TrainingLine]) -> list[TrainingLine]:
    """The lines without repetitions: launches of one configuration often have the same losses."""
    return list({(*line.x, *line.y): line for line in lines}.values())


def _in_one(lines: Sequence[TrainingLine], unit: float) -> tuple[list[float], list[float]]:
    """The points of all lines, with a gap behind each line: one artist draws them in a fraction of the time."""
    x = [value for line in lines for value in (*(each / unit for each in line.x), math.nan)]
    y = [value for line in lines for value in (*line.y, math.nan)]
    return x, y


def _sample(
    line: TrainingLine, x: Sequence[float], y: Sequence[float], number: int = 0, together: int = 1
) -> Line2D:
    """The line of a run, for the axes or for the legend: `number` of so many lines on common axes.

    Exact strategies lie on one line. Each line has its markers at places of its own, and the first is the widest.
    """
    look = line.look
    every = max(1, len(x) // CROWDED)
    spread = min(together, len(x) // FEWEST_LOSSES or 1)
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
        linewidth=0.9 + 0.9 * (together - 1 - number) / together,
        markeredgecolor=PAPER if look.fill == "full" else look.colour,
        markeredgewidth=0.4,
        label=line.label,
    )


def _section(title: str, shown: TrainingPanel) -> Section:
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


def handles(some: Sequence[TrainingPanel]) -> list[Line2D]:
    """The legend of some panels: every curve on common axes once, then the target and the grey lines."""
    together = [shown for shown in some if len(shown.strategies) <= MOST_TOGETHER]
    entries: dict[StrategyLook, dict[str, list[TrainingLine]]] = {}
    for line in (line for shown in together for line in shown.lines):
        entries.setdefault(line.look, {}).setdefault(line.strategy, []).append(line)
    drawn = [_sample(_named(curves), [], []) for curves in entries.values()]
    if any(shown.targets for shown in some):
        drawn.append(Line2D([], [], color=MUTED, linestyle=DOTTED, linewidth=0.9, label="target"))
    if len(together) < len(some):
        drawn.append(Line2D([], [], color=GRID, linewidth=0.8, label="all others"))
    return drawn


def _named(curves: Mapping[str, list[TrainingLine]]) -> TrainingLine:
    """One entry for all curves of a look, which stand in different panels; ranks are said where they agree."""
    names = [
        lines[0].label if len({line.label for line in lines}) == 1 else name for name, lines in curves.items()
    ]
    return next(iter(curves.values()))[0]._replace(label="; ".join(names))


def page(some: Sequence[Panel], shown: Sequence[TrainingPanel]) -> Figure:
    """The figure: axes for each panel."""
    each, note = titles(some)
    parts = [_section(title, content) for title, content in zip(each, shown, strict=True)]
    return compose(parts, handles(shown), note)


def data(shown: TrainingPanel) -> Iterator[dict[str, Any]]:
    """A row for each point."""
    x, y = shown.quantity.columns
    for line in shown.lines:
        for along, value in zip(line.x, line.y, strict=True):
            yield {"curve": line.label, x: along, y: value}


CAPTION = """\
Accuracy on the test vertices over training time. Each run of a curve at its largest number of ranks is a line, and
each marker is an evaluation of the full graph. The time of evaluations is excluded, and so is setup (`setup_seconds`
of a run: opening the graph, compiling kernels). Dotted line: target accuracy. Of many strategies each has small axes
of its own, with the lines of all others in grey."""
KIND = FigureKind(
    "accuracy", "Accuracy over training time", accuracies, page, data, caption=CAPTION, place=100
)
LOSS_CAPTION = """\
Training loss by epoch, warm-up included. Each run of a curve at its largest number of ranks is a line. Strategies
that promise exact training lie on the line of serial training; the numbers beside the figure have all digits. Of
many strategies each has small axes of its own, with the lines of all others in grey."""
LOSS_KIND = FigureKind("loss", "Training loss by epoch", losses, page, data, caption=LOSS_CAPTION, place=110)
