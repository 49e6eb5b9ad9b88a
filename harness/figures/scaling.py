"""Strong scaling: epoch time over ranks, both axes logarithmic, with every launch a point and every failure a cross.

Times are absolute, never speedups. A line joins the medians over launches, a band shows their range, dots next to each
median are the launches, and a dotted line is ideal scaling from the first measured point of the curve. A dotted
background marks oversubscribed runs, whose times do not measure scaling; such curves have no ideal line. Measured
lines are solid, predicted lines dashed, and emulated lines dash-dotted. Other programs have hollow markers with a line,
published values hollow markers without one. Runs that did not finish are shown in a strip at the top, at their number
of ranks.

Curves with several numbers of ranks share axes; if they are many, each strategy has small axes. Curves with a single
number of ranks are listed instead, because they would lie on top of each other.
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
    BarGroup,
    Cell,
    Section,
    arrange_in_columns,
    arrange_small_multiples,
    compose_figure,
    format_ranks_or_grid,
    height_in_inches,
    label_bar_groups,
    position_bars,
    set_octave_ticks,
    set_tried_ticks,
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
    CurveLook,
    Dash,
    failure_marker,
)
from harness.figures.panels import (
    EPOCH,
    TARGET,
    Curve,
    Panel,
    PlottedQuantity,
    select_epoch_curves,
    select_target_curves,
    sort_curves,
    split_with_graph_curves,
    tabulate_launches,
    title_panels,
)
from harness.figures.units import unit_for_range
from harness.formatting import format_three_digits

MAX_SHARED = 6
"""The most strategies that share axes."""
MAX_SINGLE_POINTS = 3
"""The most curves of a single point that share axes with others. If there are more, all curves are listed."""
PLOT_HEIGHT, SMALL_HEIGHT, EMPTY_HEIGHT = 1.75, 0.95, 0.2
"""Inches of shared axes, of small axes, and of axes without any time."""
PLOT_WIDTH, SMALL_WIDTH = 2.6, 1.3  # inches, approximately
FAILURE_HEIGHT = 0.13  # inches above the data for the failures of one curve
MARKER_GAP = 0.07  # inches between markers that would coincide
MAX_SHIFT = 0.3  # of the distance to the next number of ranks: all shifted markers lie within
THIN = ("*", "P", "d", (4, 1, 0), (3, 1, 0))  # markers that look smaller than others
IDEAL_RANGE = 4  # ideal lines may extend the y axis by this factor
DOTTED: Dash = (0, (1, 1.6))
OVERSUBSCRIBED: dict[str, Any] = {"facecolor": FAINT, "hatch": "....", "edgecolor": GRID, "linewidth": 0}
"""The background of oversubscribed runs, whose times do not measure scaling."""


class SharedScale(NamedTuple):
    """What all axes of a panel have in common: the tried numbers, the values, the rows of failures, and the size."""

    tried: list[int]
    values: list[float]
    failure_rows: int
    height: float
    width: float
    oversubscribed_from: float = 0.0
    """The x from which measured runs are oversubscribed; 0 if none are."""

    @property
    def total_height(self) -> float:
        """The height of the axes in inches, including the rows of failures."""
        return self.height + FAILURE_HEIGHT * self.failure_rows


def plot_times(lines: Iterable[Curve], column: str = EPOCH) -> PlottedQuantity:
    """Return how to plot epoch times or times to the target accuracy over ranks, in a unit that suits the values."""
    unit = unit_for_range([float(value) for curve in lines for value in curve.points[column].dropna()])
    label = f"{'epoch time' if column == EPOCH else 'time to target'} ({unit.name})"
    return PlottedQuantity(
        column, "min", "ranks", "ranks", label, unit.per_second, -1 if column == EPOCH else 0
    )


def make_sections(title: str, lines: Sequence[Curve], quantity: PlottedQuantity) -> list[Section]:
    """Make the sections of a panel: curves with several points in shared or small axes, and a list of the others."""
    single = [curve for curve in lines if len(quantity.x_positions(curve)) == 1]
    scaled = [curve for curve in lines if curve not in single]
    listed = list(lines) if len(single) > MAX_SINGLE_POINTS or not scaled else []
    on_one_rank = [curve for curve in single if quantity.x_positions(curve) == {1}]
    drawn = [
        curve
        for curve in lines
        if curve in scaled or (curve in on_one_rank and len(on_one_rank) <= MAX_SINGLE_POINTS)
    ]
    drawn = (drawn if scaled else []) if listed else list(lines)
    cells: list[Cell] = []
    parts: list[Section] = []
    if drawn:
        facets = _group_facets(drawn)
        ambiguous = len({(curve.look, curve.source) for curve in drawn}) < len(drawn)
        if ambiguous or len(facets) > MAX_SHARED:
            parts.append(_make_small_multiples(title, facets, drawn, quantity))
        else:
            timed = any(quantity.scaled_points(curve) for curve in drawn)
            height = PLOT_HEIGHT if timed else EMPTY_HEIGHT
            scale = _make_scale(drawn, [drawn], quantity, height, PLOT_WIDTH)
            draw = partial(draw_curves, own=drawn, quantity=quantity, scale=scale)
            cells.append(Cell("", draw, scale.total_height))
    together = bool(cells)
    if listed:
        groups = [group for curve in listed if (group := _list_curve(curve, quantity)).bars]
        values = [value for group in groups for row in group.bars for value in row.values]
        write = partial(draw_list, quantity=quantity, values=values)
        if together:
            cells.append(Cell("", partial(write, groups=groups), height_in_inches(groups)))
        else:
            cells += arrange_in_columns("", groups, write).cells
    if cells:
        if together and listed:
            cells = [cell._replace(title=_title_cell(cell, quantity)) for cell in cells]
        parts.append(Section(cells, len(cells), "" if parts else title, share_x=not together))
    return parts


def _title_cell(cell: Cell, quantity: PlottedQuantity) -> str:
    is_list = getattr(cell.draw, "func", None) is draw_list
    return f"all, at their largest number of {quantity.x_label}" if is_list else f"over {quantity.x_label}"


def _group_facets(lines: Sequence[Curve]) -> list[list[Curve]]:
    """Group curves by strategy or graph; by variant where there are more variants than ways to fill a marker."""
    variants = Counter(curve.subject for curve in lines if curve.source == lines[0].source)
    groups: dict[tuple[object, int], list[Curve]] = {}
    for curve in lines:
        many = variants[curve.subject] > len(FILLS)
        groups.setdefault((curve.subject, curve.variant if many else 0), []).append(curve)
    return list(groups.values())


def _make_scale(
    lines: Sequence[Curve],
    facets: Sequence[Sequence[Curve]],
    quantity: PlottedQuantity,
    height: float,
    width: float,
) -> SharedScale:
    """Return the scale on which all facets of a panel are drawn."""
    values = [float(y) * quantity.factor for curve in lines for y in _values_in_seconds(curve, quantity)]
    tried = sorted({x for curve in lines for x in quantity.x_positions(curve)})
    failure_rows = max(sum(bool(len(curve.failures)) for curve in facet) for facet in facets)
    return SharedScale(
        tried,
        values + _ideal_ends(lines, quantity, values),
        failure_rows if quantity.x_column == "ranks" else 0,
        height,
        width,
        _find_oversubscription(lines, tried) if quantity.x_column == "ranks" else 0.0,
    )


def _find_oversubscription(lines: Iterable[Curve], tried: Sequence[int]) -> float:
    """Return an x just below the fewest oversubscribed ranks, halfway to the next smaller number; 0 if none are."""
    fewest = min((curve.oversubscribed_from for curve in lines if curve.oversubscribed_from), default=0)
    return math.sqrt(fewest * max((ranks for ranks in tried if ranks < fewest), default=fewest / 2))


def _has_ideal_line(curve: Curve, quantity: PlottedQuantity) -> bool:
    """Return whether a curve has an ideal line: it is measured, has several points, and is not oversubscribed."""
    return (
        curve.source == "measured" and len(quantity.median_line(curve)) > 1 and not curve.oversubscribed_from
    )


def _values_in_seconds(curve: Curve, quantity: PlottedQuantity) -> list[float]:
    if quantity.x_column == "ranks" and curve.source == "measured":
        return [float(value) for value in curve.points[quantity.column].dropna()]
    return [y / quantity.factor for _, y in quantity.scaled_points(curve)]


def _ideal_ends(lines: Sequence[Curve], quantity: PlottedQuantity, values: Sequence[float]) -> list[float]:
    """Return the y at which ideal lines end, limited to a factor around the values, so that the axis includes them."""
    if not quantity.ideal_exponent or not values:
        return []
    ends = []
    for curve in lines:
        line = quantity.median_line(curve)
        if _has_ideal_line(curve, quantity):
            ratio = (
                float(line[quantity.x_column].iloc[-1] / line[quantity.x_column].iloc[0])
                ** quantity.ideal_exponent
            )
            ends.append(float(line.middle.iloc[0]) * quantity.factor * ratio)
    low, high = min(values) / IDEAL_RANGE, max(values) * IDEAL_RANGE
    return [min(max(end, low), high) for end in ends]


def _make_small_multiples(
    title: str, facets: Sequence[Sequence[Curve]], lines: Sequence[Curve], quantity: PlottedQuantity
) -> Section:
    """Make small axes for each facet, with all other curves in grey behind it."""
    scale = _make_scale(lines, facets, quantity, SMALL_HEIGHT, SMALL_WIDTH)
    by_variant = len({curve.subject for curve in lines}) < len(facets)
    labels = [own[0].label if by_variant or len(own) == 1 else own[0].name for own in facets]
    draws = [
        partial(
            draw_curves,
            own=own,
            others=[curve for curve in lines if curve not in own],
            quantity=quantity,
            scale=scale,
        )
        for own in facets
    ]
    return arrange_small_multiples(title, list(zip(labels, draws, strict=True)), scale.total_height)


def draw_curves(
    axes: Axes,
    own: Sequence[Curve],
    quantity: PlottedQuantity,
    scale: SharedScale,
    others: Sequence[Curve] = (),
    label_y: bool = True,
    label_x: bool = True,
) -> None:
    """Draw curves on shared axes, with `others` in grey behind. `label_x` and `label_y` show the labels of an axis."""
    strip = FAILURE_HEIGHT * scale.failure_rows / scale.total_height
    set_tried_ticks(axes, scale.tried, quantity.x_label if label_x else "", scale.width)
    y_label = quantity.y_label if label_y and scale.values else ""
    set_octave_ticks(axes, scale.values, y_label, strip, scale.total_height)
    if not label_y:
        axes.tick_params(axis="y", labelleft=False)
    if not label_x:
        axes.tick_params(axis="x", labelbottom=False)
    if scale.oversubscribed_from:
        axes.axvspan(scale.oversubscribed_from, axes.get_xlim()[1], **OVERSUBSCRIBED, zorder=0.3)
    _draw_others(axes, others, quantity)
    shifts = _compute_shifts(axes, own, quantity, scale)
    for curve, shift in zip(own, shifts, strict=True):
        _draw_curve(axes, curve, quantity, shift)
    if strip:
        box = Rectangle((0, 1 - strip), 1, strip, transform=axes.transAxes, facecolor=FAINT, zorder=0.6)
        axes.add_patch(box)
        failing = [curve for curve in own if len(curve.failures)]
        for number, curve in enumerate(failing):
            _draw_failures(axes, curve, 1 - FAILURE_HEIGHT * (number + 0.5) / scale.total_height)


def _draw_others(axes: Axes, others: Sequence[Curve], quantity: PlottedQuantity) -> None:
    """Draw curves in grey, single points as dots. All lines are one path, since each of the small axes repeats them."""
    joined: list[tuple[float, float]] = []
    single: list[tuple[float, float]] = []
    for curve in others:
        points = quantity.scaled_points(curve)
        if len(points) == 1 or curve.source == "published":
            single += points
        else:
            joined += [*points, (math.nan, math.nan)]
    if joined:
        axes.plot(*zip(*joined, strict=True), color=GRID, linewidth=0.8, zorder=1.2)
    if single:
        axes.plot(
            *zip(*single, strict=True), color=GRID, linestyle="none", marker="o", markersize=2, zorder=1.2
        )


def _compute_shifts(
    axes: Axes, own: Sequence[Curve], quantity: PlottedQuantity, scale: SharedScale
) -> list[Transform]:
    """Return a transform for each curve, which shifts it sideways if a marker would hide one of another curve."""
    low, high = (math.log2(limit) for limit in axes.get_ylim())
    marks = sorted(
        (x, math.log2(y) / (high - low) * scale.total_height, n)
        for n, curve in enumerate(own)
        for x, y in quantity.scaled_points(curve)
    )
    near = [
        (a, b) for (x, lower, a), (z, upper, b) in pairwise(marks) if x == z and upper - lower < MARKER_GAP
    ]
    moved = sorted({n for pair in near for n in pair})
    left, right = (math.log2(limit) for limit in axes.get_xlim())
    pitch = min((math.log2(b / a) for a, b in pairwise(scale.tried)), default=right - left)
    step = min(MARKER_GAP, MAX_SHIFT * pitch / (right - left) * scale.width / max(len(moved), 1))
    shifts = dict.fromkeys(range(len(own)), 0.0)
    shifts |= {n: step * (number - (len(moved) - 1) / 2) for number, n in enumerate(moved)}
    inches: Any = axes.figure.dpi_scale_trans
    return [axes.transData + ScaledTranslation(shift, 0, inches) for shift in shifts.values()]


def _draw_curve(axes: Axes, curve: Curve, quantity: PlottedQuantity, transform: Transform) -> None:
    """Draw the line of a curve, the range and dots of its launches, and its ideal line."""
    line = quantity.median_line(curve)
    if line.empty:
        return
    x = line[quantity.x_column].astype(int)
    middle, low, high = (line[name] * quantity.factor for name in ("middle", "low", "high"))
    drawn = make_line(curve, x.tolist(), middle.tolist())
    drawn.set_transform(transform)
    axes.add_line(drawn)
    if curve.source != "measured":
        return
    colour = curve.look.colour
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.5, transform=transform)
    if quantity.x_column == "ranks" and len(curve.points) > len(line):
        next_to_marker = transform + ScaledTranslation(4.2 / 72, 0, axes.figure.dpi_scale_trans)
        points = curve.points.dropna(subset=[quantity.column])
        values = points[quantity.column] * quantity.factor
        axes.scatter(
            points.ranks.astype(int),
            values,
            s=1.8,
            color=colour,
            linewidth=0,
            transform=next_to_marker,
            zorder=3,
        )
    if quantity.ideal_exponent and _has_ideal_line(curve, quantity):
        start, value, end = float(x.iloc[0]), float(middle.iloc[0]), float(x.iloc[-1])
        edge = axes.get_ylim()[0 if quantity.ideal_exponent < 0 else 1]
        end = min(end, start * (edge / value) ** quantity.ideal_exponent)
        ideal = [value, value * (end / start) ** quantity.ideal_exponent]
        axes.plot([start, end], ideal, color=colour, linestyle=DOTTED, linewidth=0.7, alpha=0.6, zorder=1.4)


def make_line(curve: Curve, x: Sequence[float], y: Sequence[float]) -> Line2D:
    """Make the line of a curve, for axes or for a legend."""
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
        zorder=2.5 if len(x) != 1 else 2.6,  # a single point would vanish under a line
    )


def _draw_failures(axes: Axes, curve: Curve, y: float) -> None:
    """Draw the marker of a curve, crossed out by the mark of the status, at each number of ranks that failed."""
    transform, look = axes.get_xaxis_transform(), curve.look
    for ranks, status in zip(curve.failures.ranks, curve.failures.status, strict=True):
        at: dict[str, Any] = {
            "xdata": [int(ranks)],
            "ydata": [y],
            "transform": transform,
            "linestyle": "none",
        }
        axes.add_line(
            Line2D(
                **at, marker=look.marker, markersize=4.5, markerfacecolor=PAPER, markeredgecolor=look.colour
            )
        )
        axes.add_line(
            Line2D(
                **at,
                marker=failure_marker(str(status)),
                markersize=5,
                markeredgecolor=INK,
                markeredgewidth=0.9,
            )
        )


# Curves as a list: a row for each, at its largest number of ranks.


class ListRow(NamedTuple):
    """One row of a list: the values of the launches, or the status of a run that did not finish."""

    label: str
    values: list[float]
    curve: Curve
    status: str = "ok"


def _list_curve(curve: Curve, quantity: PlottedQuantity) -> BarGroup[ListRow]:
    """Make a row for the best grid at the largest x, and one for each failure at a larger x."""
    rows = []
    points = curve.points.dropna(subset=[quantity.column])
    line = quantity.median_line(curve)
    if len(line):
        best = line.iloc[-1]
        launches = points[(points[quantity.x_column] == best[quantity.x_column]) & (points.grid == best.grid)]
        values = [float(value) * quantity.factor for value in launches[quantity.column]]
        rows.append(ListRow(_format_x(launches.iloc[0], quantity), values, curve))
    if quantity.x_column == "ranks":
        for _, run in curve.failures.iterrows():
            if points.empty or run.ranks > points.ranks.max():
                rows.append(ListRow(format_ranks_or_grid(run), [], curve, str(run.status)))
    return BarGroup(curve.label, rows)


def _format_x(run: "pd.Series[Any]", quantity: PlottedQuantity) -> str:
    return format_ranks_or_grid(run) if quantity.x_column == "ranks" else f"{int(run[quantity.x_column]):,}"


def draw_list(
    axes: Axes, groups: Sequence[BarGroup[ListRow]], quantity: PlottedQuantity, values: Sequence[float]
) -> None:
    """Draw rows from top to bottom: the median as the marker of the curve, launches as dots, the value on the right.

    `values` has the values of all rows of the panel, which may be split over columns that share their x axis.
    """
    ticks = []
    set_octave_ticks(axes, values, quantity.y_label, inches=1.4, vertical=False)
    transform: Any = axes.get_yaxis_transform()
    for _, _, bars in position_bars(groups):
        for y, row in bars:
            ticks.append((y, row.label))
            if row.status != "ok":
                axes.text(1.03, y, f"× {row.status}", transform=transform, va="center_baseline")
                continue
            middle = float(pd.Series(row.values).median())
            colour = row.curve.look.colour
            axes.plot([min(row.values), max(row.values)], [y, y], color=colour, linewidth=1)
            axes.scatter(row.values, [y] * len(row.values), s=3, color=colour, linewidth=0, zorder=3)
            drawn = make_line(row.curve, [middle], [y])
            drawn.set_markersize(drawn.get_markersize() + 1)
            axes.add_line(drawn)
            axes.text(1.03, y, format_three_digits(middle), transform=transform, va="center_baseline")
    label_bar_groups(axes, groups, ticks, heading=quantity.x_label)
    if not values:
        axes.set_xticks([])


def make_handles(parts: Sequence[Section], quantity: PlottedQuantity) -> list[Artist]:
    """Make the handles of a legend: each curve on shared axes once, then all other signs."""
    shared: list[Curve] = []
    in_small_axes: list[Curve] = []
    for cell in (cell for section in parts for cell in section.cells):
        if getattr(cell.draw, "func", None) is draw_curves:
            arguments = cell.draw.keywords  # type: ignore[attr-defined]
            own = arguments["own"]
            (in_small_axes if arguments.get("others") and len(own) == 1 else shared).extend(own)
    entries: list[Artist] = []
    by_look: dict[
        tuple[CurveLook, str], list[Curve]
    ] = {}  # curves of one look in several panels have one entry
    for curve in sort_curves(shared):
        by_look.setdefault((curve.look, curve.source), []).append(curve)
    for curves in by_look.values():
        entries.append(make_line(curves[0], [], []))
        entries[-1].set_label("; ".join(dict.fromkeys(curve.label for curve in curves)))
    drawn = [*shared, *in_small_axes]
    measured = [curve for curve in drawn if curve.source == "measured"]
    sign: dict[str, Any] = {"xdata": [], "ydata": [], "color": MUTED, "linestyle": "none"}
    if quantity.x_column == "ranks" and any(
        len(curve.points) > len(quantity.median_line(curve)) for curve in measured
    ):
        entries.append(Line2D(**sign, marker=".", markersize=3, label="one launch"))
    if quantity.ideal_exponent and any(_has_ideal_line(curve, quantity) for curve in measured):
        name = "ideal" if quantity.ideal_exponent < 0 else "linear"
        entries.append(Line2D(**sign | {"linestyle": DOTTED}, linewidth=0.9, label=name))
    if in_small_axes:
        entries.append(
            Line2D(**sign | {"color": GRID, "linestyle": "-"}, marker="o", markersize=2, label="all others")
        )
    return entries + (_make_warning_handles(drawn) if quantity.x_column == "ranks" else [])


def _describe_status(status: str) -> str:
    """Describe a status for the legend. Refused runs never started."""
    return "refused" if status == "refused" else f"did not finish: {status}"


def _make_warning_handles(drawn: Sequence[Curve]) -> list[Artist]:
    """Make the legend entries for oversubscribed and failed runs."""
    background = [Patch(**OVERSUBSCRIBED, label="oversubscribed (ranks share cores)")]
    statuses = sorted({str(status) for curve in drawn for status in curve.failures.status})
    look: dict[str, Any] = {"color": INK, "linestyle": "none", "markersize": 4.5}
    return [
        *(background if any(curve.oversubscribed_from for curve in drawn) else []),
        *(
            Line2D([], [], marker=failure_marker(status), label=_describe_status(status), **look)
            for status in statuses
        ),
    ]


def compose_curves(
    panels: Sequence[Panel], contents: Sequence[Sequence[Curve]], quantities: Sequence[PlottedQuantity]
) -> Figure:
    """Compose a figure of the curves of all panels. `quantities` has what each panel plots."""
    titles, note = title_panels(panels)
    parts = [
        part
        for title, lines, quantity in zip(titles, contents, quantities, strict=True)
        for part in make_sections(title, lines, quantity)
    ]
    with_ideal_lines = next((quantity for quantity in quantities if quantity.ideal_exponent), quantities[0])
    return compose_figure(parts, make_handles(parts, with_ideal_lines), note)


def draw_figure(panels: Sequence[Panel], contents: Sequence[list[Curve]], column: str = EPOCH) -> Figure:
    """Draw the times of all panels."""
    return compose_curves(panels, contents, [plot_times(lines, column) for lines in contents])


CAPTION = """\
Epoch time over the number of ranks, both axes logarithmic. A marker is the median over launches, the dots next to it
are the launches, and the band is their range; markers that would coincide are shifted sideways. If several grids ran
on the same number of ranks, the line follows the fastest. Dotted line: ideal scaling from the first point of the
curve. Dotted background: oversubscribed runs, whose ranks shared cores; do not read scaling from them. Solid lines:
measured. Dashed: predicted. Dash-dotted: emulated. Hollow markers: other programs (with a line) and published values
(without). Crossed-out markers at the top: runs that did not finish. If the tables have a single strategy, each graph
has a curve. Strategies with a single number of ranks are listed: on the left the number of ranks or the sizes of the
axes of their grid, on the right the median in the unit of the axis."""
KIND = FigureKind(
    "strong-scaling",
    "Strong scaling",
    select_epoch_curves,
    draw_figure,
    tabulate_launches,
    split_with_graph_curves,
    caption=CAPTION,
    place=10,
)
TARGET_CAPTION = """\
Training time to the target accuracy on test vertices over the number of ranks, both axes logarithmic. The time of
evaluations is excluded. A marker is the median over launches that reached the target; hollow markers are times that
papers print. Curves with a single number of ranks are listed, with the time on the right."""
TARGET_KIND = FigureKind(
    "time-to-target",
    "Time to the target accuracy",
    select_target_curves,
    partial(draw_figure, column=TARGET),
    partial(tabulate_launches, column=TARGET),
    caption=TARGET_CAPTION,
    place=90,
)
