"""The unit of time that suits the numbers of a table."""

from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of time and the number of them in a second."""

    name: str
    per_second: float


UNITS = (Unit("s", 1.0), Unit("ms", 1e3), Unit("µs", 1e6))


def unit_for(seconds: float) -> Unit:
    """Return the largest unit in which a time is at least one."""
    return next((unit for unit in UNITS if seconds * unit.per_second >= 1), UNITS[-1])
