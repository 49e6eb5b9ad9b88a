"""Descriptions of failed checks: the rank, the time, the tensor, the expected value and the actual value."""

import inspect
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from harness.strategy import Strategy

SHOWN = 3
"""The number of mismatches of a check that are printed; the others are only counted."""

FORMULA, RUN, SERIAL, REPLAY, ALLOWED = "formula", "run", "serial", "replay", "allowed"
"""The names of what is compared, in messages."""

HARNESS = Path(__file__).resolve().parents[1]
LIBRARIES = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib"))


class Mismatch(NamedTuple):
    """One difference that fails a check."""

    rank: int | None
    """The rank; None if the mismatch concerns all ranks together."""
    when: str
    what: str
    expected: object
    got: object
    sides: tuple[str, str] = ("expected", "got")
    """What `expected` and `got` are values of: for example the formula and the run."""
    parts: str = ""
    """What the actual value consists of, if it is a sum."""

    @property
    def place(self) -> str:
        """The rank, the time and the tensor."""
        rank = "" if self.rank is None else f"rank {self.rank}"
        return ", ".join(part for part in (rank, self.when, self.what) if part)

    @property
    def values(self) -> tuple[str, str]:
        """The expected and the actual value as text."""
        return _format_value(self.expected), _format_value(self.got)

    def __str__(self) -> str:
        (expected, got), (one, other) = self.values, self.sides
        return f"{self.place}: {one} {expected}, {other} {got}" + (f" ({self.parts})" if self.parts else "")


def compare_tensors(
    where: tuple[int, str, str],
    expected: Tensor,
    got: Tensor,
    tolerance: float,
    start: tuple[int, ...] = (0, 0),
    sides: tuple[str, str] = (SERIAL, RUN),
) -> Mismatch:
    """Describe the element with the largest error. `start` is the tensor's first row and column in the whole matrix.

    `where` is the rank, the time and the name of the tensor.
    """
    rank, when, what = where
    if expected.shape != got.shape:
        shapes = f"shape {tuple(expected.shape)}", f"shape {tuple(got.shape)}"
        return Mismatch(rank, when, what, *shapes, sides)
    off = (got - expected).abs().nan_to_num(nan=torch.inf)
    place = tuple(int(at) for at in torch.unravel_index(off.argmax(), off.shape))
    index = [at + begin for at, begin in zip(place, start, strict=False)]
    norm = float((got - expected).norm() / expected.norm().clamp(min=1e-300))
    right, wrong = _format_difference(float(expected[place]), float(got[place]))
    worst = (
        f"{wrong} (furthest off; the whole differs by {norm:.1e} of its norm, allowed are {tolerance:.0e})"
    )
    return Mismatch(rank, when, f"{what}, element {index}", right, worst, sides)


def compare_losses(rank: int, expected: Tensor, got: Tensor, tolerance: float) -> Mismatch:
    """Describe the first epoch whose loss differs from the expected loss by more than the tolerance."""
    off = (got - expected).abs().nan_to_num(nan=torch.inf)
    epoch = int((off > tolerance * expected.norm() / len(expected)).nonzero()[0])
    right, wrong = _format_difference(float(expected[epoch]), float(got[epoch]))
    got_text = f"{wrong} (relative tolerance {tolerance:.0e})"
    return Mismatch(rank, f"epoch {epoch}", "the loss", right, got_text, (SERIAL, RUN))


def summarize(wrong: Sequence[Mismatch]) -> str:
    """Describe the first mismatches, and count the others."""
    listed = "; ".join(map(str, wrong[:SHOWN]))
    return f"{listed}; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else listed


def locate_strategy(strategy: type[Strategy], look: str) -> str:
    """Return the file, line and class of a strategy. The line is that of its first own method that `look` names."""
    named = [vars(strategy)[name] for name in re.findall(r"`(\w+)`", look) if name in vars(strategy)]
    _, line = inspect.getsourcelines(next(filter(inspect.isfunction, named), strategy))
    return f"{_shorten_path(_find_file(strategy))}:{line} ({strategy.__name__})"


FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)\n(?: +(?P<code>\S.*))?', re.M
)


def find_own_frame(strategy: type[Strategy], trace: str) -> str:
    """Return the file, the line, the function and the code of the innermost frame in the strategy's own files.

    Its own files are that of its class, and others in the same folder that belong to no library. Returns an empty
    string if the traceback has no frame in them.
    """
    return _find_frame(_find_file(strategy), trace)


def find_inherited_frame(strategy: type[Strategy], trace: str) -> str:
    """Return the innermost frame next to a class that the strategy inherits from, or an empty string."""
    bases = [base for base in strategy.__mro__[1:] if issubclass(base, Strategy)]
    return next(filter(None, (_find_frame(_find_file(base), trace) for base in bases)), "")


def _find_frame(own: Path, trace: str) -> str:
    for frame in reversed(list(FRAME.finditer(trace))):
        file = Path(frame["file"]).resolve()
        if file == own or (file.is_relative_to(own.parent) and not _is_in_library(file, own.parent)):
            code = f": {frame['code']}" if frame["code"] else ""
            return f"{_shorten_path(file)}:{frame['line']}, in {frame['function']}{code}"
    return ""


def _is_in_library(file: Path, folder: Path) -> bool:
    """Return True if the file belongs to the harness or to another library that is installed below the folder."""
    return any(
        file.is_relative_to(library) and library.is_relative_to(folder) for library in (HARNESS, *LIBRARIES)
    )


def _find_file(strategy: type) -> Path:
    return Path(inspect.getfile(strategy)).resolve()


def _shorten_path(file: Path) -> Path:
    """Return the path relative to the current folder, if the file is below it."""
    folder = Path.cwd()
    return file.relative_to(folder) if file.is_relative_to(folder) else file


def _format_difference(one: float, other: float) -> tuple[str, str]:
    """Format both numbers with enough digits to show the difference."""
    for digits in range(4, 16):
        if f"{one:.{digits}g}" != f"{other:.{digits}g}":
            return f"{one:.{digits + 2}g}", f"{other:.{digits + 2}g}"
    return repr(one), repr(other)


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
