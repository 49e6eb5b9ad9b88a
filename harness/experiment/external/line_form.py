"""The form of a line that a program prints: text, with names in braces in place of its numbers and words.

    Epoch {epoch} | Loss {loss} | Time {seconds:ms} ms

Every repetition in the regular expression of a form is possessive, atomic or bounded, so the time to search a line
grows linearly with its length, whatever the line and the form are.
"""

import re
from collections.abc import Collection, Mapping
from itertools import pairwise
from math import inf, isnan
from string import Formatter
from typing import Any, NamedTuple

from harness.base.validation import suggest_names
from harness.experiment.external.log_options import parse_value

NO_UNIT = {"": 1.0}
TIME = {"": 1.0, "s": 1.0, "ms": 1e3, "us": 1e6}
SHARE = {"": 1.0, "%": 100.0}
SIZE = {"": 1.0, "KB": 2.0**-10, "MB": 2.0**-20, "GB": 2.0**-30}


class PrintedQuantity(NamedTuple):
    """A quantity that a program prints."""

    expected: str
    low: float = 0
    high: float = inf
    units: Mapping[str, float] = NO_UNIT
    """The number by which a value in each unit is divided."""
    is_whole: bool = False
    accepts_nan: bool = False

    def parse(self, text: str, unit: str) -> float:
        """Return the value of a number in a unit. Raise ValueError if the quantity cannot have it."""
        value = float(text) / self.units[unit]
        is_accepted = self.accepts_nan if isnan(value) else self.low <= value <= self.high
        if not is_accepted or (self.is_whole and not value.is_integer()):
            raise ValueError(text)
        return value


WHOLE = PrintedQuantity("a whole number up to 999,999,999", high=10**9 - 1, is_whole=True)
SECONDS = PrintedQuantity("a time from 0 on, or nan", units=TIME, accepts_nan=True)
ACCURACY = PrintedQuantity(
    "a fraction from 0 to 1, or a percentage by {NAME:%}", high=1, units=SHARE, accepts_nan=True
)
QUANTITIES: Mapping[str, PrintedQuantity] = {
    "rank": WHOLE,
    "epoch": WHOLE._replace(expected=f"{WHOLE.expected}, from first_epoch on"),
    "seconds": SECONDS,
    "loss": PrintedQuantity("a number, inf or nan", low=-inf, accepts_nan=True),
    **dict.fromkeys(("train", "valid", "test", "final_test"), ACCURACY),
    "device_peak": PrintedQuantity("a number of bytes below 2^60", high=2.0**60, units=SIZE),
}
"""The quantities by name. Any other name is a part of the seconds, or an option."""
OPTION = "--"
"""The beginning of an option's name."""
COUNTS = WHOLE._replace(units=dict.fromkeys(("", "distinct", "shortfall"), 1.0))
"""Options. Those without a unit have the same value in all lines; `distinct` counts the different ones, and `shortfall`
adds up by how much numbers are less than the number of epochs."""
GAP, END = "...", "end"
"""Text that does not matter, and the end of the line."""

NUMBER = r"([-+]?(?:(?:inf|nan)(?![a-z])|\.*+[0-9]++(?>(?:\.++[0-9]++)*)(?>(?:[eE][-+]?[0-9]++)?)|\.++))"
"""A number, and also several dots and digits that are not one, so that they are refused and not overlooked.

Its groups are atomic and not possessive: Python 3.11.0 to 3.11.4 match too much by a possessive group."""
BLANKS = "[ \t]{1,100}+"
LONGEST = 100
"""The maximum number of characters of a word or a gap."""


class Field(NamedTuple):
    """A name in braces, with its unit."""

    name: str
    unit: str
    quantity: PrintedQuantity

    def parse(self, text: str) -> Any:
        """Return the value of an option, or a number in our unit. Raise ValueError if the quantity cannot have it."""
        if is_option(self.name) and self.unit != "shortfall":
            return parse_value(text)
        return self.quantity.parse(text, self.unit)


class Form(NamedTuple):
    """The form of a line, as it is searched."""

    pattern: re.Pattern[str]
    fields: tuple[Field, ...]
    """What each group of the pattern is."""
    word: str
    """The longest word in every such line."""


def is_option(value: object) -> bool:
    """Return True for the name of an option, such as --lr."""
    return isinstance(value, str) and value.startswith(OPTION)


def name_option(option: str) -> str:
    """Return the name of an option in Python: n_layers for --n-layers."""
    return option.removeprefix(OPTION).replace("-", "_")


def compile_form(text: str, parts: Collection[str]) -> Form:
    """Return a form, in which `parts` are names of parts of the seconds. Raise ValueError for a mistake in the text."""
    try:
        pieces = [(before, name, unit or "") for before, name, unit, _ in Formatter().parse(text.strip())]
    except ValueError:
        raise ValueError("its braces do not match; a brace of the line itself is written {{ or }}") from None
    words = [word for before, *_ in pieces for word in before.split()]
    if not words:
        raise ValueError("it has no text besides its names")
    fields: list[Field] = []
    may_begin_in_number = pieces[0][0][:1] in "0123456789."
    pattern = r"(?<![0-9.])" if may_begin_in_number else ""
    for (before, name, unit), (after, following, _) in pairwise([*pieces, ("", None, "")]):
        pattern += BLANKS.join(map(re.escape, re.split("[ \t]+", before)))
        if name == END:
            if after or following:
                raise ValueError(f"{{{END}}} is not at its end")
            pattern += rf"[ \t]{{0,{LONGEST}}}+$"
        elif name is not None:
            if following not in (None, END) and not after:
                raise ValueError(f"{{{name}}} and {{{following}}} have no text between them")
            if name != GAP:
                fields.append(_make_field(name, unit, parts))
            pattern += _match_name(name, after[:1])
    return Form(re.compile(pattern), tuple(fields), max(words, key=len))


def _match_name(name: str, stop: str) -> str:
    """Return the pattern of a number, or of a word or a gap that ends before the character `stop`."""
    if is_option(name):
        return rf"([^\s{re.escape(stop)}]{{1,{LONGEST}}}+)"
    if name == GAP:
        return f"[^{re.escape(stop)}]{{0,{LONGEST}}}+" if stop.strip() else rf"\S{{0,{LONGEST}}}+"
    return NUMBER


def _make_field(name: str, unit: str, parts: Collection[str]) -> Field:
    """Return the field of a name. Raise ValueError if the name or its unit does not exist."""
    quantity = COUNTS if is_option(name) else SECONDS if name in parts else QUANTITIES.get(name)
    if quantity is None:
        known = [*QUANTITIES, *parts]
        raise ValueError(
            f"{{{name}}} is not a quantity or a part.{suggest_names(name, known)} Known: {', '.join(known)}, {GAP} for "
            f"text that does not matter, {END} for the end of the line, and options, such as {{--lr}}"
        )
    if unit not in quantity.units:
        units = ", ".join(filter(None, quantity.units)) or "none"
        raise ValueError(f"{{{name}}} does not have the unit {unit!r}. Its units: {units}")
    return Field(name, unit, quantity)
