"""Numbers for people: the units of quantities, counts with their nouns, and the GB and MB of machine cards."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

GIB = 1 << 30
GB, MB = GIB, 1 << 20
"""The bytes of a GB and a MB in machine cards and predictions, which count in powers of two."""
BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB")
"""The units of sizes on disk and in tables: each is 1000 of the unit before it."""


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: 1 rank, 1,024 ranks. `plural` is for nouns that do not end with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_three_digits(value: float) -> str:
    """Format a number with three significant digits: 12345 as 12,345; 123.4 as 123; 1.2345 as 1.23."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    rounded = float(f"{value:.2e}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def format_bytes(count: float) -> str:
    """Format a number of bytes: 12 bytes, 1.50 kB, 16.8 MB."""
    rounded = float(f"{count:.2e}")
    power = next(
        (power for power in range(len(BYTE_UNITS)) if rounded < 1000 ** (power + 1)), len(BYTE_UNITS) - 1
    )
    value = f"{count:.0f}" if power == 0 else format_three_digits(count / 1000**power)
    return f"{value} {BYTE_UNITS[power]}"


def format_whole(number: float) -> str:
    """Format a count in full, without a fraction: 12,073."""
    return f"{number:,.0f}"


SI_UNITS = ("", " k", " M", " G", " T", " P")


def format_si(value: float) -> str:
    """Format a count with three digits and an SI prefix: 950, 13.5 k, 22.0 M."""
    power = 0
    while power + 1 < len(SI_UNITS) and abs(float(f"{value:.2e}")) >= 1000 ** (power + 1):
        power += 1
    if power == 0:
        return f"{value:,.0f}" if float(value).is_integer() else format_three_digits(value)
    return f"{format_three_digits(value / 1000**power)}{SI_UNITS[power]}"


def format_seconds(seconds: float) -> str:
    """Format a time with three digits: 35.0 ns, 5.04 ms, 1.25 s; from ten minutes on in minutes."""
    if seconds == 0:
        return "0 s"
    for unit, size, below in (("ns", 1e-9, 1e-6), ("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 600.0)):
        if seconds < below * 0.9995:
            return f"{format_three_digits(seconds / size)} {unit}"
    return f"{seconds / 60:,.0f} min"


class TimeUnit(NamedTuple):
    """A unit of time, and the number of them in a second."""

    name: str
    per_second: float


TIME_UNITS = (TimeUnit("s", 1.0), TimeUnit("ms", 1e3), TimeUnit("µs", 1e6))


def choose_time_unit(seconds: float) -> TimeUnit:
    """Return the largest unit in which a time is at least one, for a table whose times have one unit."""
    return next((unit for unit in TIME_UNITS if seconds * unit.per_second >= 1), TIME_UNITS[-1])


def format_interval(low: float, high: float) -> str:
    """Format an interval of times in the unit of its upper end: 3.57 - 7.10 ms."""
    number, _, unit = format_seconds(high).partition(" ")
    scale = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}[unit]
    return f"{format_three_digits(low / scale)} - {number} {unit}"


def format_share(share: float) -> str:
    """Format a share as a whole percentage."""
    return f"{100 * share:.0f} %"


def format_number(value: float) -> str:
    """Format a number without an SI prefix: 0.25, 1e-7."""
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.3g}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def format_times(ratio: float) -> str:
    """Format a ratio: 1.25×."""
    return f"{format_three_digits(ratio)}×"


Unit = Literal["s", "B", "%", "count", "whole", "number", "times"]
"""The unit of a quantity: seconds, bytes, a share from 0 to 1, a count with an SI prefix or in full, a number, or how
many times another."""
COUNTS: tuple[Unit, ...] = ("count", "whole")
FORMATS: Mapping[Unit, Callable[[Any], str]] = MappingProxyType(
    {
        "s": format_seconds,
        "B": format_bytes,
        "%": format_share,
        "count": format_si,
        "whole": format_whole,
        "number": format_number,
        "times": format_times,
    }
)
"""How a value of each unit is shown, with its unit."""
