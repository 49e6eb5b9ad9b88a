"""The axes of figures: which column an axis shows, in which unit, and where its ticks are.

An axis is declared once and drawn twice: by matplotlib for files, and by Vega-Lite for the report. Both label ticks
with SI prefixes, as the command line does.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axis import Axis
from matplotlib.ticker import (
    EngFormatter,
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullLocator,
)

from harness.base.formatting import COUNTS, FORMATS, Unit, format_number
from harness.results.schema import find_quantity


class Scale(NamedTuple):
    """One axis of a figure."""

    column: str
    """The column of the frame."""
    label: str
    unit: Unit = "count"
    log: bool = False
    zero: bool = False
    """Whether the axis starts at 0."""

    def set_ticks(self, axis: Axis, values: Sequence[float]) -> None:
        """Scale a matplotlib axis, and place and format its ticks for these values."""
        axes: Any = axis.axes
        (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log" if self.log else "linear")
        axis.set_label_text(self.label)
        room = LABEL_ROOM["x" if axis is axes.xaxis else "y"]
        if self.log and values:
            axis.set_major_locator(FixedLocator(choose_log_ticks(min(values), max(values), room)))
        elif not self.log:
            most = min(math.floor(1.2 / room), 6)
            axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], integer=self.unit in COUNTS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(self.formatter)

    def format_value(self, value: float) -> str:
        """Format a value with its unit, as tables and annotations show it."""
        return FORMATS[self.unit](value)

    def find_limits(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the limits of an axis for these values, with some room around them."""
        low, high = min(values), max(values)
        if self.log:
            room = max((high / low) ** 0.06, 1.08)
            return low / room, high * room
        low = 0.0 if self.zero else low
        room = 0.06 * ((high - low) or abs(high) or 1.0)
        return low if self.zero else low - room, high + room

    @property
    def formatter(self) -> Any:
        """The formatter of ticks."""
        if self.unit == "%":
            return FuncFormatter(lambda value, _: f"{100 * value:.4g} %")
        if self.unit == "times":
            return FuncFormatter(lambda value, _: f"{value:g}×")
        if self.unit == "number":
            return FuncFormatter(lambda value, _: format_number(value))
        if self.unit in COUNTS:
            return EngFormatter(sep="")
        return EngFormatter(unit=self.unit, sep=" ")

    def encode(self, **options: Any) -> dict[str, Any]:
        """Return the Vega-Lite encoding of the axis, without its channel."""
        number, si = "format(datum.value, '{}')", "format(datum.value, '~s')"
        with_unit = f"replace({si}, /([a-zµ]?)$/i, ' $1{self.unit}')"  # "2m" becomes "2 ms"
        labels = {
            "%": "format(100 * datum.value, '~g') + ' %'",
            **dict.fromkeys(COUNTS, si),
            "times": f"{number.format('~g')} + '×'",
        }
        labels |= {"number": f"abs(datum.value) < 1e-3 ? {number.format('~e')} : {number.format('~g')}"}
        return {
            "field": self.column,
            "type": "quantitative",
            "title": self.label,
            "scale": {"type": "log" if self.log else "linear"} | ({} if self.log else {"zero": self.zero}),
            "axis": {"labelExpr": labels.get(self.unit, with_unit), "tickCount": 5},
            **options,
        }


def scale_of(column: str, label: str = "", *, log: bool = False, zero: bool = False) -> Scale:
    """Return the axis of a quantity of a run, with the title and the unit that the schema gives it."""
    quantity = find_quantity(column)
    assert quantity.unit
    return Scale(column, label or quantity.title, quantity.unit, log, zero)


LABEL_ROOM = {"x": 0.3, "y": 0.1}
"""The share of an axis that the label of a tick needs."""


def choose_log_ticks(low: float, high: float, room: float) -> list[float]:
    """Choose the most ticks of a logarithmic axis that are at least a share of `room` of the axis apart.

    They are 1, 2 and 5 times powers of ten, 1 and 3 times, or only powers. Short axes have linear steps.
    """
    length = math.log10(high / low)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for digits, gap in (((1, 2, 5), math.log10(2)), ((1, 3), math.log10(3)), ((1,), 1.0)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        inside = [tick for tick in ticks if low * 0.98 <= tick <= high * 1.02]
        if gap >= room * length and len(inside) > 1:
            return inside
    if length >= 1:
        return [10.0**power for power in powers][:: math.ceil(room * length)]
    return [
        float(tick)
        for tick in MaxNLocator(math.floor(0.9 / room), steps=[1, 2, 5, 10]).tick_values(low, high)
    ]


RANKS = scale_of("ranks", log=True)


def limit_tried(tried: Sequence[int]) -> tuple[float, float]:
    """Return the limits of a binary logarithmic axis for the tried numbers, with room for markers at both ends."""
    room = 2**0.4 if len(tried) > 1 else 2.0
    return tried[0] / room, tried[-1] * room


def set_tried_ticks(axis: Axis, tried: Sequence[int]) -> None:
    """Put the ticks of a binary logarithmic x axis at the tried numbers, and labels where there is room for them."""
    axes: Any = axis.axes
    axes.set_xscale("log", base=2)
    axes.set_xlim(*limit_tried(tried))
    octaves = max(math.log2(tried[-1] / tried[0]), 1.0)
    labelled: list[int] = []
    for number in sorted(tried, key=lambda number: (number & (number - 1) > 0, number)):
        if all(abs(math.log2(number / other)) >= octaves / 7 for other in labelled):
            labelled.append(number)
    axis.set_major_locator(FixedLocator(list(tried)))
    axis.set_major_formatter(
        FixedFormatter([f"{number:,}" if number in labelled else "" for number in tried])
    )
    axis.set_minor_locator(NullLocator())
