"""Units for axes and tables: one that suits a time or the largest of several numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of time and the number of them in a second."""

    name: str
    per_second: float


UNITS = (Unit("s", 1.0), Unit("ms", 1e3), Unit("µs", 1e6))


def unit_for(seconds: float) -> Unit:
    """Return the largest unit in which a time is at least one."""
    return next((unit for unit in UNITS if seconds * unit.per_second >= 1), UNITS[-1])


def unit_for_range(times: Sequence[float]) -> Unit:
    """Return the unit of the longest time, or a smaller unit if the shortest time is less than an eighth of it."""
    if not times:
        return UNITS[0]
    units = UNITS[UNITS.index(unit_for(max(times))) :]
    finer = next((unit for unit in units if min(times) * unit.per_second >= 1 / 8), units[-1])
    return finer if max(times) * finer.per_second < 1e5 else unit_for(math.sqrt(min(times) * max(times)))


class Scale(NamedTuple):
    """A word or unit that scales a number, and the factor that it stands for."""

    name: str
    size: float


COUNTS = (Scale("", 1.0), Scale("thousand ", 1e3), Scale("million ", 1e6), Scale("billion ", 1e9))
BYTES = (Scale("bytes", 1.0), Scale("kB", 1e3), Scale("MB", 1e6), Scale("GB", 1e9), Scale("TB", 1e12))


def scale_for(largest: float, scales: Sequence[Scale], plain: float = 1e4) -> Scale:
    """Return the first scale for numbers below `plain`, else one that leaves up to three digits before the point."""
    if largest < plain:
        return scales[0]
    return next((scale for scale in scales[1:] if largest / scale.size < 1e3), scales[-1])
