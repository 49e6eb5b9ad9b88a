"""Strong scaling: seconds an epoch over ranks, both logarithmic, every launch a point and every failure a cross.

Absolute times, never speedups. A line joins the medians over launches, a band shows their range, the launches stand
beside each median as dots, and a dotted line is ideal scaling from each curve's first measured point. Measured lines
are solid, predicted ones dashed, published numbers hollow. What did not finish stands in a strip at the top, over the
ranks it was tried on.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from harness.figures.palette import FAINT, INK, MUTED, PAPER, Dash
from harness.figures.panels import Curve, Panel, curves, in_order
from harness.figures.units import UNITS, Unit, unit_for

FILLS: tuple[Literal["full", "left", "bottom", "right", "top"], ...] = (
    "full",
    "left",
    "bottom",
    "right",
    "top",
)
THIN = ("*", "P", "d", (4, 1, 0), (3, 1, 0))  # markers that look smaller than they are
SLOT = 0.13  # of the height of a panel, for one failure
MOST_TICKS = 7
WIDE = 100  # times a range of seconds from which its middle chooses the unit
DOTTED: Dash = (0, (1, 1.6))


def draw(axes: Axes, panel: Panel) -> None:
    """One panel."""
    lines = curves(panel)
    tried = sorted({int(ranks) for ranks in panel.runs.ranks})
    times = [float(seconds) for curve in lines for seconds in curve.points.epoch_seconds_median]
    failed = _failures(lines)
    slots = max(map(len, failed.values()), default=0)
    unit = _unit(times)
    _ranks_axis(axes, tried)
    _seconds_axis(axes, [seconds * unit.per_second for seconds in times], unit, strip=slots * SLOT)
    for curve in lines:
        _draw_curve(axes, curve, unit, last=tried[-1])
    for ranks, curves_and_statuses in failed.items():
        _draw_failures(axes, ranks, curves_and_statuses)


def _ranks_axis(axes: Axes, tried: list[int]) -> None:
    """Ticks at the numbers of ranks that were tried, labelled where there is room."""
    axes.set_xscale("log", base=2)
    pad = 2.0 if len(tried) == 1 else 2**0.4
    axes.set_xlim(tried[0] / pad, tried[-1] * pad)
    labelled = _labelled(tried)
    axes.xaxis.set_major_locator(FixedLocator(tried))
    axes.xaxis.set_major_formatter(FixedFormatter([str(p) if p in labelled else "" for p in tried]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")


def _labelled(tried: list[int]) -> set[int]:
    """Those that can have a label without touching another's; powers of two first."""
    room = math.log2(tried[-1] / tried[0]) / 14
    chosen: set[int] = set()
    for ranks in sorted(tried, key=lambda ranks: (ranks & (ranks - 1) > 0, ranks)):
        if all(abs(math.log2(ranks / other)) > room for other in chosen):
            chosen.add(ranks)
    return chosen


def _unit(times: list[float]) -> Unit:
    """The unit of the slowest epoch, unless the fastest would be a tiny fraction of it."""
    if not times:
        return UNITS[0]
    wide = max(times) > WIDE * min(times)
    return unit_for(math.sqrt(min(times) * max(times)) if wide else max(times))


def _seconds_axis(axes: Axes, times: list[float], unit: Unit, strip: float) -> None:
    """Ticks at powers of two around the data; above them a strip, a share of the height, for what failed."""
    low, high = _octaves(times)
    top = low + (high - low) / (1 - min(strip, 0.8))
    axes.set_yscale("log", base=2)
    axes.set_ylim(2**low, 2**top)
    powers = range(math.ceil(low), math.floor(high) + 1, math.ceil((high - low) / MOST_TICKS))
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in powers] if times else []))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{2.0**power:,g}" for power in powers]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(f"epoch time ({unit.name})")
    axes.grid(axis="y")
    if strip:
        axes.add_patch(
            Rectangle((0, 1 - strip), 1, strip, transform=axes.transAxes, facecolor=FAINT, zorder=0.6)
        )


def _octaves(times: list[float]) -> tuple[float, float]:
    """The ends of an axis for these times, as powers of two, with at least two ticks between them."""
    if not times:
        return 0.0, 1.0
    low, high = math.log2(min(times)) - 0.3, math.log2(max(times)) + 0.3
    if math.floor(high) - math.ceil(low) < 1:
        low, high = math.floor(low), math.ceil(high)
    return low, high


def _draw_curve(axes: Axes, curve: Curve, unit: Unit, last: int) -> None:
    line = curve.line
    if line.empty:
        return
    ranks = line.ranks.astype(int)
    middle, low, high = (line[name] * unit.per_second for name in ("seconds", "low", "high"))
    axes.add_line(_sample(curve, ranks.tolist(), middle.tolist()))
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


def _sample(curve: Curve, x: Sequence[float], y: Sequence[float]) -> Line2D:
    """The line of a curve, in the axes or in the legend."""
    look, hollow = curve.look, curve.source == "published"
    styles: dict[str, Any] = {"measured": "-", "predicted": look.dash, "published": "none"}
    return Line2D(
        x,
        y,
        color=look.colour,
        marker=look.marker,
        linestyle=styles[curve.source],
        fillstyle=FILLS[curve.variant % len(FILLS)],
        markerfacecolor=PAPER if hollow else look.colour,
        markerfacecoloralt=PAPER,
        markeredgecolor=look.colour if hollow or curve.variant else PAPER,
        markeredgewidth=0.9 if hollow else 0.5,
        markersize=5.5 if look.marker in THIN else 4.5,
        label=curve.label,
        zorder=2.5 if len(x) != 1 else 2.6,  # a lone point would be lost under a line
    )


def _failures(lines: list[Curve]) -> dict[int, list[tuple[Curve, str]]]:
    """By number of ranks, the curves that failed there and how."""
    found: dict[int, list[tuple[Curve, str]]] = {}
    for curve in lines:
        failures = curve.failures
        for ranks, status in zip(failures.ranks, failures.status, strict=True):
            found.setdefault(int(ranks), []).append((curve, str(status)))
    return found


def _draw_failures(axes: Axes, ranks: int, failed: list[tuple[Curve, str]]) -> None:
    """The curve's marker crossed out, and under it what happened, one below the other."""
    place = axes.get_xaxis_transform()
    for number, (curve, status) in enumerate(failed):
        y = 1 - SLOT * (number + 0.36)
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
        axes.text(ranks, y - 0.3 * SLOT, status, transform=place, ha="center", va="top", fontsize=6)


def handles(some: Iterable[Panel]) -> list[Line2D]:
    """The legend of some panels: every curve once, then what the other signs mean."""
    lines = in_order(curve for panel in some for curve in curves(panel))
    told = list({curve.label: _sample(curve, [], []) for curve in lines}.values())
    measured = [curve.line for curve in lines if curve.source == "measured"]
    sign: dict[str, Any] = {"xdata": [], "ydata": [], "color": MUTED, "linestyle": "none"}
    if any(len(line) for line in measured):
        told.append(Line2D(**sign, marker=".", markersize=3, label="one launch"))
    if any(len(line) > 1 for line in measured):
        told.append(Line2D(**sign | {"linestyle": DOTTED}, linewidth=0.9, label="ideal"))
    if any(len(curve.failures) for curve in lines):
        told.append(Line2D(**sign | {"color": INK}, marker="x", markersize=4.5, label="did not finish"))
    return told
