"""Seconds in the unit that suits a figure or a table, and numbers with three significant digits."""

import math
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of time and how many of it a second has."""

    name: str
    per_second: float


UNITS = (Unit("s", 1.0), Unit("ms", 1e3), Unit("µs", 1e6))


def unit_for(seconds: float) -> Unit:
    """The largest unit in which this time is at least one."""
    return next((unit for unit in UNITS if seconds * unit.per_second >= 1), UNITS[-1])


def three_digits(value: float) -> str:
    """12345 as 12,345; 123.4 as 123; 1.2345 as 1.23."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    rounded = float(f"{value:.2e}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"
