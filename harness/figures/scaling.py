"""Strong scaling: seconds an epoch over ranks, both logarithmic, every launch a point and every failure a cross.

Times are absolute, never speedups. A line joins the medians over launches, a band shows their range, dots beside each
median are the launches, and a dotted line is ideal scaling from each curve's first measured point. Measured lines are
solid, predicted lines dashed, emulated lines dashed and dotted. Lines of other programs have hollow markers; published
numbers are hollow markers alone. Runs that did not finish stand in a strip at the top, over their number of ranks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from harness.figures import page_layout
from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import Unit, seconds_axis, tried_axis, unit_of
from harness.figures.palette import DOT_DASH, FAINT, INK, MUTED, PAPER, Dash
from harness.figures.panels import Curve, Panel, curves, in_order

THIN = ("*", "P", "d", (4, 1, 0), (3, 1, 0))  # markers that look smaller than they are
FRAME, PLOT, SLOT = 0.45, 1.75, 0.22  # inches: around the axes, of the data, of one failure above it
IDEAL_BELOW = 4  # times below the fastest epoch that ideal lines are followed
DOTTED: Dash = (0, (1, 1.6))


def height(panel: Panel) -> float:
    """The height of a panel in inches, with a slot for each failure."""
    return FRAME + PLOT + SLOT * _slots(_failures(curves(panel)))


def draw(axes: Axes, panel: Panel) -> None:
    """Draws one panel."""
    lines = curves(panel)
    tried = sorted({int(ranks) for ranks in panel.runs.ranks})
    times = [float(seconds) for curve in lines for seconds in curve.points.epoch_seconds_median]
    failed = _failures(lines)
    slot = SLOT / (PLOT + SLOT * _slots(failed))
    unit = unit_of(times)
    tried_axis(axes, tried)
    seconds_axis(axes, times + _ideal_ends(lines, times), unit, strip=slot * _slots(failed))
    for curve in lines:
        _draw_curve(axes, curve, unit, last=tried[-1])
    for ranks, curves_and_statuses in failed.items():
        _draw_failures(axes, ranks, curves_and_statuses, slot)
    if failed:
        depth = slot * _slots(failed)
        axes.add_patch(
            Rectangle((0, 1 - depth), 1, depth, transform=axes.transAxes, facecolor=FAINT, zorder=0.6)
        )


def _draw_curve(axes: Axes, curve: Curve, unit: Unit, last: int) -> None:
    line = curve.line
    if line.empty:
        return
    ranks = line.ranks.astype(int)
    middle, low, high = (line[name] * unit.per_second for name in ("middle", "low", "high"))
    axes.add_line(sample(curve, ranks.tolist(), middle.tolist()))
    if curve.source != "measured":
        return
    colour = curve.look.colour
    axes.fill_between(ranks, low, high, color=colour, alpha=0.18, linewidth=0, zorder=1.5)
    beside = axes.transData + ScaledTranslation(4.2 / 72, 0, axes.figure.dpi_scale_trans)
    points = curve.points
    axes.scatter(
        points.ranks.astype(int),
        points.epoch_seconds_median * unit.per_second,
        s=1.8,
        color=colour,
        linewidth=0,
        transform=beside,
        zorder=3,
    )
    if len(line) > 1:
        ends = [ranks.iloc[0], last]
        ideal = [middle.iloc[0], middle.iloc[0] * ranks.iloc[0] / last]
        axes.plot(ends, ideal, color=colour, linestyle=DOTTED, linewidth=0.7, alpha=0.6, zorder=1.4)


def _ideal_ends(lines: list[Curve], times: list[float]) -> list[float]:
    """The lower ends of ideal lines, within reason: the axis shows them even if no curve comes near."""
    measured = [curve.line for curve in lines if curve.source == "measured" and len(curve.line) > 1]
    ends = [float(line.middle.iloc[0] * line.ranks.iloc[0] / line.ranks.iloc[-1]) for line in measured]
    return [max(end, min(times) / IDEAL_BELOW) for end in ends]


def sample(curve: Curve, x: Sequence[float], y: Sequence[float]) -> Line2D:
    """The line of a curve, for the axes or for the legend."""
    look, hollow = curve.look, curve.source in ("published", "external")
    styles: dict[str, Any] = {"predicted": look.dash, "emulated": DOT_DASH, "published": "none"}
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


def _failures(lines: list[Curve]) -> dict[int, list[tuple[Curve, str]]]:
    """By number of ranks: the curves that failed, each with its status."""
    by_ranks: dict[int, list[tuple[Curve, str]]] = {}
    for curve in lines:
        failures = curve.failures
        for ranks, status in zip(failures.ranks, failures.status, strict=True):
            by_ranks.setdefault(int(ranks), []).append((curve, str(status)))
    return by_ranks


def _slots(failed: dict[int, list[tuple[Curve, str]]]) -> int:
    return max(map(len, failed.values()), default=0)


def _draw_failures(axes: Axes, ranks: int, failed: list[tuple[Curve, str]], slot: float) -> None:
    """Draws each curve's marker crossed out, with the status below, one failure under the other."""
    place = axes.get_xaxis_transform()
    for number, (curve, status) in enumerate(failed):
        y = 1 - slot * (number + 0.36)
        look = curve.look
        axes.plot(
            ranks,
            y,
            marker=look.marker,
            transform=place,
            markersize=5,
            markerfacecolor=PAPER,
            markeredgecolor=look.colour,
        )
        axes.plot(ranks, y, "x", transform=place, markersize=4, markeredgecolor=INK, markeredgewidth=1)
        axes.text(ranks, y - 0.3 * slot, status, transform=place, ha="center", va="top", fontsize=6)


def handles(some: Iterable[Panel]) -> list[Line2D]:
    """The legend of some panels: every curve once, then all other signs."""
    lines = in_order(curve for panel in some for curve in curves(panel) if _has_a_sign(curve))
    entries = list({curve.label: sample(curve, [], []) for curve in lines}.values())
    measured = [curve.line for curve in lines if curve.source == "measured"]
    sign: dict[str, Any] = {"xdata": [], "ydata": [], "color": MUTED, "linestyle": "none"}
    if any(len(line) for line in measured):
        entries.append(Line2D(**sign, marker=".", markersize=3, label="one launch"))
    if any(len(line) > 1 for line in measured):
        entries.append(Line2D(**sign | {"linestyle": DOTTED}, linewidth=0.9, label="ideal"))
    if any(len(curve.failures) for curve in lines):
        entries.append(Line2D(**sign | {"color": INK}, marker="x", markersize=4.5, label="did not finish"))
    return entries


def _has_a_sign(curve: Curve) -> bool:
    """False where a paper prints something else than the time of an epoch."""
    return not (curve.points.empty and curve.failures.empty)


def _panel(panel: Panel, _: Tables) -> list[Curve]:
    return [curve for curve in curves(panel) if _has_a_sign(curve)]


def page(some: Sequence[Panel], _: Sequence[list[Curve]]) -> Figure:
    """The figure: axes for each panel."""
    figure, axes = page_layout.page([height(panel) for panel in some], [panel.title for panel in some])
    page_layout.legend(figure, handles(some))
    for each, panel in zip(axes, some, strict=True):
        draw(each, panel)
    return figure


KIND = FigureKind("strong-scaling", "Strong scaling", _panel, page)
