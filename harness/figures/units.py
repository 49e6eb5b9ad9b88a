"""Numbers for people: three significant digits, and the unit that suits the largest of some numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of time, and how many of the unit a second has."""

    name: str
    per_second: float


UNITS = (Unit("s", 1.0), Unit("ms", 1e3), Unit("µs", 1e6))


def unit_for(seconds: float) -> Unit:
    """The largest unit in which this time is at least one."""
    return next((unit for unit in UNITS if seconds * unit.per_second >= 1), UNITS[-1])


def unit_of(times: Sequence[float]) -> Unit:
    """The unit of the slowest epoch, or a smaller one if the fastest is under an eighth of it."""
    if not times:
        return UNITS[0]
    units = UNITS[UNITS.index(unit_for(max(times))) :]
    fine = next((unit for unit in units if min(times) * unit.per_second >= 1 / 8), units[-1])
    return fine if max(times) * fine.per_second < 1e5 else unit_for(math.sqrt(min(times) * max(times)))


class Scale(NamedTuple):
    """A word or a prefix for a number, and how many of what it counts make one."""

    name: str
    size: float


COUNTS = (Scale("", 1.0), Scale("thousand ", 1e3), Scale("million ", 1e6), Scale("billion ", 1e9))
BYTES = (Scale("bytes", 1.0), Scale("kB", 1e3), Scale("MB", 1e6), Scale("GB", 1e9), Scale("TB", 1e12))


def scale_for(largest: float, scales: Sequence[Scale], plain: float = 1e4) -> Scale:
    """No prefix up to the number `plain`, then the prefix that leaves up to three digits: 866 words, 12.3 thousand."""
    if largest < plain:
        return scales[0]
    return next((scale for scale in scales[1:] if largest / scale.size < 1e3), scales[-1])


def three_digits(value: float) -> str:
    """12345 as 12,345; 123.4 as 123; 1.2345 as 1.23."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    rounded = float(f"{value:.2e}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"
