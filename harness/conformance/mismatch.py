"""Descriptions of violated laws: the rank, the time, the tensor, the expected value and the actual value."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from harness.strategy import Strategy

SHOWN = 3
"""The number of mismatches of a law that are printed; the others are only counted."""


class Mismatch(NamedTuple):
    """One violation of a law."""

    rank: int | None
    """The rank; None if the mismatch concerns all ranks together."""
    when: str
    what: str
    expected: object
    got: object

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
        expected, got = self.values
        return f"{self.place}: expected {expected}, got {got}"


def compare_tensors(
    where: tuple[int, str, str],
    expected: Tensor,
    got: Tensor,
    tolerance: float,
    start: tuple[int, ...] = (0, 0),
) -> Mismatch:
    """Describe the element with the largest error. `start` is the tensor's first row and column in the whole matrix.

    `where` is the rank, the time and the name of the tensor.
    """
    rank, when, what = where
    if expected.shape != got.shape:
        return Mismatch(rank, when, what, f"shape {tuple(expected.shape)}", f"shape {tuple(got.shape)}")
    off = (got - expected).abs().nan_to_num(nan=torch.inf)
    place = tuple(int(at) for at in torch.unravel_index(off.argmax(), off.shape))
    index = [at + begin for at, begin in zip(place, start, strict=False)]
    norm = float((got - expected).norm() / expected.norm().clamp(min=1e-300))
    right, wrong = _format_difference(float(expected[place]), float(got[place]))
    worst = (
        f"{wrong} (furthest off; the whole differs by {norm:.1e} of its norm, allowed are {tolerance:.0e})"
    )
    return Mismatch(rank, when, f"{what}, element {index}", right, worst)


def compare_losses(rank: int, expected: Tensor, got: Tensor, tolerance: float) -> Mismatch:
    """Describe the first epoch whose loss differs from the expected loss by more than the tolerance."""
    off = (got - expected).abs().nan_to_num(nan=torch.inf)
    epoch = int((off > tolerance * expected.norm() / len(expected)).nonzero()[0])
    right, wrong = _format_difference(float(expected[epoch]), float(got[epoch]))
    return Mismatch(rank, f"epoch {epoch}", "the loss", right, f"{wrong} (allowed are {tolerance:.0e} of it)")


def summarize(wrong: Sequence[Mismatch]) -> str:
    """Describe the first mismatches, and count the others."""
    listed = "; ".join(map(str, wrong[:SHOWN]))
    return f"{listed}; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else listed


def locate_strategy(strategy: type[Strategy], look: str) -> str:
    """Return the file, line and class of a strategy. The line is that of its first own method that `look` names."""
    file, folder = Path(inspect.getfile(strategy)).resolve(), Path.cwd()
    named = [vars(strategy)[name] for name in re.findall(r"`(\w+)`", look) if name in vars(strategy)]
    _, line = inspect.getsourcelines(next(filter(inspect.isfunction, named), strategy))
    return f"{file.relative_to(folder) if file.is_relative_to(folder) else file}:{line} ({strategy.__name__})"


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
