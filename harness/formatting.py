"""Numbers for people: counts with their nouns, and sizes in bytes; and the GB and MB of machine cards."""

import math

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
