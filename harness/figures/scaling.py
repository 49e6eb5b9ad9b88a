"""Strong scaling: seconds an epoch over ranks, both logarithmic, every launch a point and every failure a cross.

Times are absolute, never speedups. A line joins the medians over launches, a band shows their range, dots beside each
median are the launches, and a dotted line is ideal scaling from each curve's first measured point. Where measured
ranks shared cores, the ground is dotted and curves have no ideal line, because their times say nothing of scaling.
Measured lines are solid, predicted lines dashed, emulated lines dashed and dotted. Lines of other programs have hollow
markers; published numbers are hollow markers alone. Runs that did not finish stand in a strip at the top, over their
number of ranks.

Curves that scale share axes, or have small axes each where so many would hide each other. Curves of one number of
ranks are listed, because they would all stand at one place.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import ScaledTranslation, Transform

from harness.figures.kind import FigureKind
from harness.figures.page_layout import (
    Cell,
    Group,
    Section,
    across,
    compose,
    frame,
    in_columns,
    inches,
    octaves_axis,
    places,
    ranks_and_grid,
    tried_axis,
)
from harness.figures.palette import (
    DASHED,
    DOT_DASH,
    FAINT,
    FILLS,
    GRID,
    INK,
    MUTED,
    PAPER,
    Dash,
    StrategyLook,
    sign_of,
)
from harness.figures.panels import (
    EPOCH,
    TARGET,
    Curve,
    DrawnColumn,
    Panel,
    data,
    graph_panels,
    in_order,
    reaching,
    shown,
    titles,
)
from harness.figures.units import three_digits, unit_of

MOST_TOGETHER = 6
"""Strategies on common axes."""
LONE = 3
"""Curves of a single point on common axes; more are listed."""
PLOT, SMALL, SLOT = 1.75, 0.95, 0.13  # inches: common axes, small axes, one curve's failures above the data
BARE = 0.2  # inches: axes without any time, beneath the failures
PLOT_WIDTH, SMALL_WIDTH = 2.6, 1.3  # about, in inches
APART = 0.07  # inches between markers that would coincide
NEAR = 0.3  # of the way to the next number of ranks: all markers of one number lie within
THIN = ("*", "P", "d", (4, 1, 0), (3, 1, 0))  # markers that look smaller than they are
IDEAL_BELOW = 4  # times below the fastest epoch that ideal lines are followed
DOTTED: Dash = (0, (1, 1.6))
CROWDED: dict[str, Any] = {"facecolor": FAINT, "hatch": "....", "edgecolor": GRID, "linewidth": 0}
"""The ground of measured points whose ranks shared cores: their times say nothing of scaling."""


class Ground(NamedTuple):
    """What all axes of a panel share: the tried numbers, the values, and the slots for failures."""

    tried: list[int]
    values: list[float]
    slots: int
    height: float
    width: float
    crowded: float = 0.0
    """Where on the horizontal axis measured ranks begin to share cores; 0: nowhere."""

    @property
    def whole(self) -> float:
        """The height of the axes, in inches."""
        return self.height + SLOT * self.slots


def times(lines: Iterable[Curve], column: str = EPOCH) -> DrawnColumn:
    """Times of some curves over ranks, of an epoch or to the target accuracy, in the unit that suits them."""
    unit = unit_of([float(value) for curve in lines for value in curve.points[column].dropna()])
    label = f"{'epoch time' if column == EPOCH else 'to the target'} ({unit.name})"
    return DrawnColumn(column, "min", "ranks", "ranks", label, unit.per_second, -1 if column == EPOCH else 0)


def sections(title: str, lines: Sequence[Curve], measure: DrawnColumn) -> list[Section]:
    """The cells of a panel: common axes or small multiples of the curves that scale, and a list of all others."""
    lone = [curve for curve in lines if len(measure.places(curve)) == 1]
    scaled = [curve for curve in lines if curve not in lone]
    listed = list(lines) if len(lone) > LONE or not scaled else []
    base = [curve for curve in lone if measure.places(curve) == {1}]
    drawn = [curve for curve in lines if curve in scaled or (curve in base and len(base) <= LONE)]
    drawn = (drawn if scaled else []) if listed else list(lines)
    cells: list[Cell] = []
    parts: list[Section] = []
    if drawn:
        facets = _facets(drawn)
        alike = len({(curve.look, curve.source) for curve in drawn}) < len(drawn)
        if alike or len(facets) > MOST_TOGETHER:
            parts.append(Section(_multiples(facets, drawn, measure), across(len(facets)), title))
        else:
            timed = any(measure.marks(curve) for curve in drawn)
            ground = _ground(drawn, [drawn], measure, PLOT if timed else BARE, PLOT_WIDTH)
            cells.append(Cell("", partial(draw, own=drawn, measure=measure, ground=ground), ground.whole))
    together = bool(cells)
    if listed:
        groups = [group for curve in listed if (group := _listed(curve, measure)).bars]
        values = [value for group in groups for row in group.bars for value in row.values]
        write = partial(draw_list, measure=measure, values=values)
        if together:
            cells.append(Cell("", partial(write, groups=groups), inches(groups)))
        else:
            cells += in_columns("", groups, write).cells
    if cells:
        named = (
            [cell._replace(title=_kind_of(cell, measure)) for cell in cells] if together and listed else cells
        )
        parts.append(Section(named, len(named), "" if parts else title, alike=not together))
    return parts


def _kind_of(cell: Cell, measure: DrawnColumn) -> str:
    listed = getattr(cell.draw, "func", None) is draw_list
    return f"all, at their largest number of {measure.across}" if listed else f"over {measure.across}"


def _facets(lines: Sequence[Curve]) -> list[list[Curve]]:
    """The curves of each strategy or graph, or of each variant if these are more than markers can tell apart."""
    variants = Counter(curve.subject for curve in lines if curve.source == lines[0].source)
    by_name: dict[tuple[object, int], list[Curve]] = {}
    for curve in lines:
        many = variants[curve.subject] > len(FILLS)
        by_name.setdefault((curve.subject, curve.variant if many else 0), []).append(curve)
    return list(by_name.values())


def _ground(
    lines: Sequence[Curve],
    shown: Sequence[Sequence[Curve]],
    measure: DrawnColumn,
    height: float,
    width: float,
) -> Ground:
    values = [float(y) * measure.factor for curve in lines for y in _values(curve, measure)]
    tried = sorted({x for curve in lines for x in measure.places(curve)})
    slots = max(sum(bool(len(curve.failures)) for curve in some) for some in shown)
    return Ground(
        tried,
        values + _ideal_ends(lines, measure, values),
        slots if measure.over == "ranks" else 0,
        height,
        width,
        _crowded_from(lines, tried) if measure.over == "ranks" else 0.0,
    )


def _crowded_from(lines: Iterable[Curve], tried: Sequence[int]) -> float:
    """Halfway before the fewest ranks that shared cores in a measured run; 0 without such a run."""
    fewest = min((curve.crowded for curve in lines if curve.crowded), default=0)
    return math.sqrt(fewest * max((ranks for ranks in tried if ranks < fewest), default=fewest / 2))


def _scales(curve: Curve, measure: DrawnColumn) -> bool:
    """Whether an ideal line is drawn: from a measured first point to others, with a core for each rank."""
    return curve.source == "measured" and len(measure.line(curve)) > 1 and not curve.crowded


def _values(curve: Curve, measure: DrawnColumn) -> list[float]:
    if measure.over == "ranks" and curve.source == "measured":
        return [float(value) for value in curve.points[measure.column].dropna()]
    return [y / measure.factor for _, y in measure.marks(curve)]


def _ideal_ends(lines: Sequence[Curve], measure: DrawnColumn, values: Sequence[float]) -> list[float]:
    """The ends of ideal lines, within reason: the axis shows them even if no curve comes near."""
    if not measure.ideal or not values:
        return []
    ends = []
    for curve in lines:
        line = measure.line(curve)
        if _scales(curve, measure):
            ratio = float(line[measure.over].iloc[-1] / line[measure.over].iloc[0]) ** measure.ideal
            ends.append(float(line.middle.iloc[0]) * measure.factor * ratio)
    low, high = min(values) / IDEAL_BELOW, max(values) * IDEAL_BELOW
    return [min(max(end, low), high) for end in ends]


def _multiples(facets: Sequence[Sequence[Curve]], lines: Sequence[Curve], measure: DrawnColumn) -> list[Cell]:
    """Small axes, one for each strategy, with the curves of all others in grey behind."""
    ground = _ground(lines, facets, measure, SMALL, SMALL_WIDTH)
    variants = len({curve.subject for curve in lines}) < len(facets)
    columns = across(len(facets))
    return [
        Cell(
            own[0].label if variants or len(own) == 1 else own[0].name,
            partial(
                draw,
                own=own,
                others=[curve for curve in lines if curve not in own],
                measure=measure,
                ground=ground,
                first=number % columns == 0,
                last=number + columns >= len(facets),
            ),
            ground.whole,
        )
        for number, own in enumerate(facets)
    ]


def draw(
    axes: Axes,
    own: Sequence[Curve],
    measure: DrawnColumn,
    ground: Ground,
    others: Sequence[Curve] = (),
    first: bool = True,
    last: bool = True,
) -> None:
    """Draws curves on common axes; `others` stand in grey behind. `first`, `last`: whether the axes have labels."""
    strip = SLOT * ground.slots / ground.whole
    tried_axis(axes, ground.tried, measure.across if last else "", ground.width)
    upright = measure.upright if first and ground.values else ""
    octaves_axis(axes, ground.values, upright, strip, ground.whole)
    if not first:
        axes.tick_params(axis="y", labelleft=False)
    if not last:
        axes.tick_params(axis="x", labelbottom=False)
    if ground.crowded:
        axes.axvspan(ground.crowded, axes.get_xlim()[1], **CROWDED, zorder=0.3)
    _draw_others(axes, others, measure)
    shifts = _shifts(axes, own, measure, ground)
    for curve, shift in zip(own, shifts, strict=True):
        _draw_curve(axes, curve, measure, shift)
    if strip:
        box = Rectangle((0, 1 - strip), 1, strip, transform=axes.transAxes, facecolor=FAINT, zorder=0.6)
        axes.add_patch(box)
        failing = [curve for curve in own if len(curve.failures)]
        for number, curve in enumerate(failing):
            _draw_failures(axes, curve, 1 - SLOT * (number + 0.5) / ground.whole)


def _draw_others(axes: Axes, others: Sequence[Curve], measure: DrawnColumn) -> None:
    """Draws curves in grey: all lines are one path, because small axes repeat them; points alone are dots."""
    joined: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []
    for curve in others:
        points = measure.marks(curve)
        if len(points) == 1 or curve.source == "published":
            alone += points
        else:
            joined += [*points, (math.nan, math.nan)]
    if joined:
        axes.plot(*zip(*joined, strict=True), color=GRID, linewidth=0.8, zorder=1.2)
    if alone:
        axes.plot(
            *zip(*alone, strict=True), color=GRID, linestyle="none", marker="o", markersize=2, zorder=1.2
        )


def _shifts(axes: Axes, own: Sequence[Curve], measure: DrawnColumn, ground: Ground) -> list[Transform]:
    """How each curve is moved sideways: not at all, unless one of its markers would lie on that of another curve."""
    low, high = (math.log2(limit) for limit in axes.get_ylim())
    marks = sorted(
        (x, math.log2(y) / (high - low) * ground.whole, n)
        for n, curve in enumerate(own)
        for x, y in measure.marks(curve)
    )
    near = [(a, b) for (x, lower, a), (z, upper, b) in pairwise(marks) if x == z and upper - lower < APART]
    moved = sorted({n for pair in near for n in pair})
    left, right = (math.log2(limit) for limit in axes.get_xlim())
    pitch = min((math.log2(b / a) for a, b in pairwise(ground.tried)), default=right - left)
    step = min(APART, NEAR * pitch / (right - left) * ground.width / max(len(moved), 1))
    shifts = dict.fromkeys(range(len(own)), 0.0)
    shifts |= {n: step * (place - (len(moved) - 1) / 2) for place, n in enumerate(moved)}
    scale: Any = axes.figure.dpi_scale_trans
    return [axes.transData + ScaledTranslation(shift, 0, scale) for shift in shifts.values()]


def _draw_curve(axes: Axes, curve: Curve, measure: DrawnColumn, place: Transform) -> None:
    line = measure.line(curve)
    if line.empty:
        return
    x = line[measure.over].astype(int)
    middle, low, high = (line[name] * measure.factor for name in ("middle", "low", "high"))
    drawn = sample(curve, x.tolist(), middle.tolist())
    drawn.set_transform(place)
    axes.add_line(drawn)
    if curve.source != "measured":
        return
    colour = curve.look.colour
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.5, transform=place)
    if measure.over == "ranks" and len(curve.points) > len(line):
        beside = place + ScaledTranslation(4.2 / 72, 0, axes.figure.dpi_scale_trans)
        points = curve.points.dropna(subset=[measure.column])
        values = points[measure.column] * measure.factor
        axes.scatter(
            points.ranks.astype(int), values, s=1.8, color=colour, linewidth=0, transform=beside, zorder=3
        )
    if measure.ideal and _scales(curve, measure):
        start, value, end = float(x.iloc[0]), float(middle.iloc[0]), float(x.iloc[-1])
        edge = axes.get_ylim()[0 if measure.ideal < 0 else 1]
        end = min(end, start * (edge / value) ** measure.ideal)
        ideal = [value, value * (end / start) ** measure.ideal]
        axes.plot([start, end], ideal, color=colour, linestyle=DOTTED, linewidth=0.7, alpha=0.6, zorder=1.4)


def sample(curve: Curve, x: Sequence[float], y: Sequence[float]) -> Line2D:
    """The line of a curve, for the axes or for the legend."""
    look, hollow = curve.look, curve.source in ("published", "external")
    styles: dict[str, Any] = {"predicted": DASHED, "emulated": DOT_DASH, "published": "none"}
    return Line2D(
        x,
        y,
        color=look.colour,
        marker=look.marker,
        linestyle=styles.get(curve.source, "-"),
        fillstyle=look.fill,
        markerfacecolor=PAPER if hollow else look.colour,
        markerfacecoloralt=PAPER,
        markeredgecolor=look.colour if hollow or curve.variant else PAPER,
        markeredgewidth=0.9 if hollow else 0.5,
        markersize=5.5 if look.marker in THIN else 4.5,
        label=curve.label,
        zorder=2.5 if len(x) != 1 else 2.6,  # a lone point would vanish under a line
    )


def _draw_failures(axes: Axes, curve: Curve, y: float) -> None:
    """Draws a curve's marker, crossed out by the sign of the status, at each number of ranks that did not finish."""
    place, look = axes.get_xaxis_transform(), curve.look
    for ranks, status in zip(curve.failures.ranks, curve.failures.status, strict=True):
        at: dict[str, Any] = {"xdata": [int(ranks)], "ydata": [y], "transform": place, "linestyle": "none"}
        axes.add_line(
            Line2D(
                **at, marker=look.marker, markersize=4.5, markerfacecolor=PAPER, markeredgecolor=look.colour
            )
        )
        axes.add_line(
            Line2D(**at, marker=sign_of(str(status)), markersize=5, markeredgecolor=INK, markeredgewidth=0.9)
        )


# Curves as a list: a row for each, on its largest number of ranks.


class Row(NamedTuple):
    """One row of a list: the launches, or the status of a run that did not finish."""

    label: str
    values: list[float]
    curve: Curve
    status: str = "ok"


def _listed(curve: Curve, measure: DrawnColumn) -> Group[Row]:
    """The row of the best grid at the largest x, and one for every failure at a larger x."""
    rows = []
    points = curve.points.dropna(subset=[measure.column])
    line = measure.line(curve)
    if len(line):
        best = line.iloc[-1]
        launches = points[(points[measure.over] == best[measure.over]) & (points.grid == best.grid)]
        values = [float(value) * measure.factor for value in launches[measure.column]]
        rows.append(Row(_size(launches.iloc[0], measure), values, curve))
    if measure.over == "ranks":
        for _, run in curve.failures.iterrows():
            if points.empty or run.ranks > points.ranks.max():
                rows.append(Row(ranks_and_grid(run), [], curve, str(run.status)))
    return Group(curve.label, rows)


def _size(run: "pd.Series[Any]", measure: DrawnColumn) -> str:
    return ranks_and_grid(run) if measure.over == "ranks" else f"{int(run[measure.over]):,}"


def draw_list(
    axes: Axes, groups: Sequence[Group[Row]], measure: DrawnColumn, values: Sequence[float]
) -> None:
    """Draws rows from the top down: the median as the curve's marker, the launches as dots, the value on the right.

    `values` are those of all rows of the panel, which may stand in several columns of one scale.
    """
    ticks = []
    octaves_axis(axes, values, measure.upright, inches=1.4, upright=False)
    beside: Any = axes.get_yaxis_transform()
    for _, _, bars in places(groups):
        for y, row in bars:
            ticks.append((y, row.label))
            if row.status != "ok":
                axes.text(1.03, y, f"× {row.status}", transform=beside, va="center_baseline")
                continue
            middle = float(pd.Series(row.values).median())
            colour = row.curve.look.colour
            axes.plot([min(row.values), max(row.values)], [y, y], color=colour, linewidth=1)
            axes.scatter(row.values, [y] * len(row.values), s=3, color=colour, linewidth=0, zorder=3)
            drawn = sample(row.curve, [middle], [y])
            drawn.set_markersize(drawn.get_markersize() + 1)
            axes.add_line(drawn)
            axes.text(1.03, y, three_digits(middle), transform=beside, va="center_baseline")
    frame(axes, groups, ticks, head=measure.across)
    if not values:
        axes.set_xticks([])


def handles(parts: Sequence[Section], measure: DrawnColumn) -> list[Artist]:
    """The legend of some panels: every curve that shares axes with others once, then all other signs."""
    shown: list[Curve] = []
    alone: list[Curve] = []
    for cell in (cell for section in parts for cell in section.cells):
        if getattr(cell.draw, "func", None) is draw:
            words = cell.draw.keywords  # type: ignore[attr-defined]
            (alone if words.get("others") and len(words["own"]) == 1 else shown).extend(words["own"])
    entries: list[Artist] = []
    alike: dict[tuple[StrategyLook, str], list[Curve]] = {}  # of one look in several panels: one entry
    for curve in in_order(shown):
        alike.setdefault((curve.look, curve.source), []).append(curve)
    for some in alike.values():
        entries.append(sample(some[0], [], []))
        entries[-1].set_label("; ".join(dict.fromkeys(curve.label for curve in some)))
    drawn = [*shown, *alone]
    measured = [curve for curve in drawn if curve.source == "measured"]
    sign: dict[str, Any] = {"xdata": [], "ydata": [], "color": MUTED, "linestyle": "none"}
    if measure.over == "ranks" and any(len(curve.points) > len(measure.line(curve)) for curve in measured):
        entries.append(Line2D(**sign, marker=".", markersize=3, label="one launch"))
    if measure.ideal and any(_scales(curve, measure) for curve in measured):
        name = "ideal" if measure.ideal < 0 else "linear"
        entries.append(Line2D(**sign | {"linestyle": DOTTED}, linewidth=0.9, label=name))
    if alone:
        entries.append(
            Line2D(**sign | {"color": GRID, "linestyle": "-"}, marker="o", markersize=2, label="all others")
        )
    return entries + (_warnings(drawn) if measure.over == "ranks" else [])


def _ended(status: str) -> str:
    """The words of a status in the legend; a strategy or a prediction refuses a run before it begins."""
    return "refused: no time" if status == "refused" else f"did not finish: {status}"


def _warnings(drawn: Sequence[Curve]) -> list[Artist]:
    """The legend of what is no time of a scaling run: ranks that shared cores, and runs that did not finish."""
    crowded = [Patch(**CROWDED, label="ranks share cores: no scaling")]
    statuses = sorted({str(status) for curve in drawn for status in curve.failures.status})
    look: dict[str, Any] = {"color": INK, "linestyle": "none", "markersize": 4.5}
    return [
        *(crowded if any(curve.crowded for curve in drawn) else []),
        *(Line2D([], [], marker=sign_of(status), label=_ended(status), **look) for status in statuses),
    ]


def page(some: Sequence[Panel], shown: Sequence[list[Curve]], column: str = EPOCH) -> Figure:
    """The figure: axes for each panel."""
    each, note = titles(some)
    measures = [times(lines, column) for lines in shown]
    parts = [
        part
        for title, lines, measure in zip(each, shown, measures, strict=True)
        for part in sections(title, lines, measure)
    ]
    return compose(parts, handles(parts, measures[0]), note)


CAPTION = """\
Seconds an epoch over ranks, both axes logarithmic. A marker is the median over launches, the dots beside it are the
launches, and the band is their range; markers that would coincide stand side by side. If several grids ran on one
number of ranks, the line follows the fastest. Dotted line: ideal scaling from a curve's first point. Dotted ground:
measured ranks shared cores, so the times say nothing of scaling. Solid lines: measured. Dashed lines: predicted;
dashed and dotted: emulated. Hollow markers: other programs (with a line), published values (without). Crossed-out
markers at the top: runs that did not finish. A strategy that is alone in its tables has a curve for each graph.
Strategies of a single number of ranks are listed, with the ranks, or the sizes of the axes of their grid, on the
left and the median in the unit of the axis on the right."""
KIND = FigureKind(
    "strong-scaling", "Strong scaling", shown, page, data, graph_panels, caption=CAPTION, place=10
)
TARGET_CAPTION = """\
Training time to the target accuracy on test vertices over ranks, both axes logarithmic. Evaluations are not counted.
A marker is the median over launches that reached the target; hollow markers are the times that papers print. Curves
of a single number of ranks are listed, with the time on the right."""
TARGET_KIND = FigureKind(
    "time-to-target",
    "Time to the target accuracy",
    reaching,
    partial(page, column=TARGET),
    partial(data, column=TARGET),
    caption=TARGET_CAPTION,
    place=90,
)
