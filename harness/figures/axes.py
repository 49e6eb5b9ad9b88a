"""The two logarithmic axes of a scaling figure: ticks at what was tried and at powers of two of a unit."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from harness.figures.units import UNITS, Unit, unit_for

MOST_TICKS = 7
WIDE = 100  # times a range of seconds from which its middle chooses the unit


def unit_of(times: Sequence[float]) -> Unit:
    """The unit of the slowest epoch, unless the fastest would be a tiny fraction of it."""
    if not times:
        return UNITS[0]
    wide = max(times) > WIDE * min(times)
    return unit_for(math.sqrt(min(times) * max(times)) if wide else max(times))


def tried_axis(axes: Axes, tried: list[int], label: str = "ranks") -> None:
    """Ticks at the numbers that were tried, labelled where there is room."""
    axes.set_xscale("log", base=2)
    pad = 2.0 if len(tried) == 1 else 2**0.4
    axes.set_xlim(tried[0] / pad, tried[-1] * pad)
    labelled = _labelled(tried)
    axes.xaxis.set_major_locator(FixedLocator(tried))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{p:,}" if p in labelled else "" for p in tried]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def seconds_axis(axes: Axes, times: Sequence[float], unit: Unit, strip: float) -> None:
    """Ticks around these times, in the unit."""
    octaves_axis(axes, [seconds * unit.per_second for seconds in times], f"epoch time ({unit.name})", strip)


def octaves_axis(axes: Axes, values: Sequence[float], label: str, strip: float = 0.0) -> None:
    """Ticks at powers of two around these values; above them a strip, a share of the height, stays free."""
    low, high = _octaves(values)
    top = low + (high - low) / (1 - strip)
    axes.set_yscale("log", base=2)
    axes.set_ylim(2**low, 2**top)
    powers = range(math.ceil(low), math.floor(high) + 1, math.ceil((high - low) / MOST_TICKS))
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in powers] if values else []))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{2.0**power:,g}" for power in powers]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(label)
    axes.grid(axis="y")


def _labelled(tried: list[int]) -> set[int]:
    """Those that can have a label without touching another's; powers of two first."""
    room = math.log2(tried[-1] / tried[0]) / 14
    chosen: set[int] = set()
    for ranks in sorted(tried, key=lambda ranks: (ranks & (ranks - 1) > 0, ranks)):
        if all(abs(math.log2(ranks / other)) > room for other in chosen):
            chosen.add(ranks)
    return chosen


def _octaves(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis for these values, as powers of two, with at least two ticks between them."""
    if not values:
        return 0.0, 1.0
    low, high = math.log2(min(values)) - 0.3, math.log2(max(values)) + 0.3
    if math.floor(high) - math.ceil(low) < 1:
        low, high = math.floor(low), math.ceil(high)
    return low, high
