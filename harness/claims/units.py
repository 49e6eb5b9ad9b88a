"""The units of printed values and of our values, and the conversion from one to another.

Counts, ratios and statements have no unit that could be mistaken.
"""

from typing import NamedTuple

from harness.base.errors import UserError
from harness.base.formatting import GIB


class PrintedUnit(NamedTuple):
    """What is measured, and how many of its basic units make one of this unit."""

    dimension: str
    size: float


UNITS = {
    "s": PrintedUnit("time", 1.0),
    "ms": PrintedUnit("time", 1e-3),
    "min": PrintedUnit("time", 60.0),
    "h": PrintedUnit("time", 3600.0),
    "epoch/s": PrintedUnit("frequency", 1.0),
    "GHz": PrintedUnit("frequency", 1e9),
    "bytes": PrintedUnit("size", 1.0),
    "GB": PrintedUnit("size", 1e9),
    "GiB": PrintedUnit("size", float(GIB)),
    "GB/s": PrintedUnit("bandwidth", 1e9),
    "GiB/s": PrintedUnit("bandwidth", float(GIB)),
    "Gbit/s": PrintedUnit("bandwidth", 1e9 / 8),
    "Tflop/s": PrintedUnit("speed", 1e12),
    "share": PrintedUnit("share", 1.0),
    "percent": PrintedUnit("share", 1e-2),
    "points": PrintedUnit("share", 1e-2),
}
"""The units that values are converted between. A percentage point is a difference of shares."""


def find_conversion(unit: str, wanted: str, who: str) -> float:
    """Return the number of `wanted` units in one `unit`. Both are empty or unknown for counts, ratios and statements.

    Raises UserError, which begins with `who`, if a value in one unit cannot be compared with a value in the other.
    """
    if unit not in UNITS and wanted not in UNITS:
        return 1.0
    if unit not in UNITS or wanted not in UNITS or UNITS[unit].dimension != UNITS[wanted].dimension:
        raise UserError(
            f"{who}: a value in {unit or 'no unit'} cannot be compared with one in {wanted or 'no unit'}"
        )
    return UNITS[unit].size / UNITS[wanted].size
