"""Numbers with intervals, and the times of epochs, predicted or measured: what the formulas of claims compute with."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp
from statistics import fmean
from typing import Any, NamedTuple

from harness.ledger import MOVING, Key
from harness.prediction.epoch import Prediction
from harness.prediction.ratio_error import PredictedTime, compute_ratio_error
from harness.spec.machine_card import MachineCard


class UntestableClaim(Exception):  # noqa: N818 (a verdict, not an error)
    """Raised by a formula whose value cannot be computed on this machine. The message gives the reason."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval; or a range of numbers, where a paper leaves a setting open."""

    least: float
    """The number, or the smallest of a range."""
    low: float
    high: float
    most: float | None = None
    """The largest number of a range, whose ends may be equal; None for a single number."""

    @property
    def is_range(self) -> bool:
        return self.most is not None

    @property
    def largest(self) -> float:
        """The number, or the largest of a range."""
        return self.least if self.most is None else self.most

    @property
    def value(self) -> float:
        """The number. A range has none, because no choice of an open setting is better than another."""
        if self.is_range:
            raise ValueError(f"{self} is a range")
        return self.least

    def __str__(self) -> str:
        least, most, low, high = map(format_number, (self.least, self.largest, self.low, self.high))
        number = f"{least} to {most}" if self.is_range and least != most else least
        is_wider = self.low < self.least or self.high > self.largest
        return f"{number} [{low} to {high}]" if is_wider else number

    def __mul__(self, factor: float) -> "Estimate":
        return self._replace(
            factor * self.least, factor * self.low, factor * self.high, factor * self.largest
        )

    __rmul__ = __mul__

    def __rsub__(self, number: float) -> "Estimate":
        return self._replace(
            number - self.largest, number - self.high, number - self.low, number - self.least
        )

    def __truediv__(self, other: "Estimate") -> "Estimate":
        """Return the ratio of two independent numbers."""
        kind = other if other.is_range else self
        return kind._replace(
            self.least / other.largest,
            self.low / other.high,
            self.high / other.low,
            self.largest / other.least,
        )

    def __rtruediv__(self, number: float) -> "Estimate":
        return self._replace(
            number / self.largest, number / self.high, number / self.low, number / self.least
        )

    def _replace(self, least: float, low: float, high: float, most: float) -> "Estimate":
        """Return an estimate of the same kind: a single number or a range."""
        return Estimate(least, low, high, most if self.is_range else None)


def format_number(number: float) -> str:
    """Format a number with three digits, or as a whole number from 1000 on."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def enclose(estimates: Iterable[Estimate]) -> Estimate:
    """Return the range of estimates of one quantity, such as one for each choice of an open setting."""
    every = list(estimates)
    return every[0] if len(every) == 1 else _combine(every, min, max, is_range=True)


def find_smallest_estimate(estimates: Iterable[Estimate]) -> Estimate:
    """Return the smallest of several quantities."""
    return _combine(list(estimates), min, min)


def find_largest_estimate(estimates: Iterable[Estimate]) -> Estimate:
    """Return the largest of several quantities."""
    return _combine(list(estimates), max, max)


def average(estimates: Iterable[Estimate]) -> Estimate:
    """Return the arithmetic mean of several quantities."""
    return _combine(list(estimates), fmean, fmean)


def _combine(
    every: list[Estimate],
    lower: Callable[[list[float]], float],
    upper: Callable[[list[float]], float],
    *,
    is_range: bool = False,
) -> Estimate:
    """Combine both ends. The result is a range if any of the estimates is one."""
    most = upper([each.largest for each in every])
    return Estimate(
        lower([each.least for each in every]),
        lower([each.low for each in every]),
        upper([each.high for each in every]),
        most if is_range or any(each.is_range for each in every) else None,
    )


@dataclass(frozen=True)
class Choices:
    """The truth of a statement, one value for each choice of the settings that a paper leaves open."""

    values: tuple[bool, ...]

    def __str__(self) -> str:
        return " or ".join(dict.fromkeys("true" if value else "false" for value in sorted(self.values)[::-1]))


class EpochTime(NamedTuple):
    """The time of an epoch of one run. A measured time has no machine card, prediction or strategy."""

    seconds: float
    machine: MachineCard | None = None
    prediction: Prediction | None = None
    strategy: str = ""

    @property
    def estimate(self) -> Estimate:
        return _add_error(self.seconds, self)


class EpochTimes(dict[tuple[Any, ...], EpochTime]):
    """The epoch times of a run, one for each choice of the settings that its paper leaves open.

    A key has the value of each open setting, and None for a setting that the run does not have.
    """

    @property
    def seconds(self) -> Estimate:
        return enclose(each.estimate for each in self.values())

    @property
    def single(self) -> EpochTime:
        """The epoch time of a run whose paper leaves no setting open."""
        (time,) = self.values()
        return time

    def match(self, other: "EpochTimes") -> list[tuple[EpochTime, EpochTime]]:
        """Return the pairs of epochs whose settings are equal, as far as both runs have them."""
        return [
            (self[one], other[another])
            for one in self
            for another in other
            if all(a == b or None in (a, b) for a, b in zip(one, another, strict=True))
        ]

    def __truediv__(self, other: "EpochTimes") -> Estimate:
        """Return the ratio, computed between equal settings."""
        return enclose(divide_epochs(one, another) for one, another in self.match(other))

    def compute_percent_under(self, accepts: Callable[[Key], bool]) -> Estimate:
        """Return the percentage of the epoch that is spent under the ledger keys that `accepts` accepts."""
        shares = [100 * share for share in self._list_shares(accepts)]
        return enclose(Estimate(share, share, share) for share in shares)

    def compute_seconds_under(self, accepts: Callable[[Key], bool]) -> Estimate:
        """Return the seconds that are spent under the ledger keys that `accepts` accepts."""
        shares = self._list_shares(accepts)
        times = (time.estimate * share for time, share in zip(self.values(), shares, strict=True))
        return enclose(times)

    @property
    def communication_seconds(self) -> float:
        (prediction,) = self._list_predictions("seconds of communication")
        return sum(seconds for key, seconds in prediction.entries.items() if key.op in MOVING)

    def _list_shares(self, accepts: Callable[[Key], bool]) -> list[float]:
        """List the part of each epoch that is spent under these keys."""
        return [
            sum(seconds for key, seconds in prediction.entries.items() if accepts(key))
            / sum(prediction.entries.values())
            for prediction in self._list_predictions("shares of an epoch")
        ]

    def _list_predictions(self, what: str) -> list[Prediction]:
        predictions = [each.prediction for each in self.values() if each.prediction]
        if len(predictions) < len(self):
            raise UntestableClaim(f"{what} are taken from predictions, and this run was measured")
        return predictions


def divide_epochs(one: EpochTime, other: EpochTime) -> Estimate:
    """Return the ratio of two epoch times, with an interval for the errors of the predictions."""
    return _add_error(one.seconds / other.seconds, one, other)


def _add_error(value: float, *times: EpochTime) -> Estimate:
    """Return what is computed from one or two times, with an interval for the errors of those that are predicted."""
    predicted = [
        PredictedTime(each.strategy, each.machine, each.prediction)
        for each in times
        if each.machine and each.prediction
    ]
    spread = exp(compute_ratio_error(*predicted).deviation)
    return Estimate(value, value / spread, value * spread)


def is_falling(times: Mapping[int, EpochTimes]) -> bool:
    """Return whether every epoch is shorter than the one on fewer ranks."""
    seconds = [times[ranks].single.seconds for ranks in sorted(times)]
    return seconds == sorted(seconds, reverse=True)
