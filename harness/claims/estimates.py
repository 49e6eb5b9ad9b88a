"""Numbers with intervals, and the times of epochs, predicted or measured: what the formulas of claims compute with."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any, NamedTuple

from harness.ledger import MOVING, Key
from harness.prediction.epoch import RESIDUAL, Prediction
from harness.prediction.pricing import list_constants
from harness.spec.machine_card import MachineCard


class UntestableClaim(Exception):  # noqa: N818 (a verdict, not an error)
    """Raised by a formula whose value cannot be computed on this machine. The message gives the reason."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        numbers = (self.value, self.low, self.high)
        value, low, high = (f"{x:,.0f}" if x >= 1000 else f"{x:.3g}" for x in numbers)
        return f"{value} [{low} to {high}]" if self.low < self.high else value

    def __lt__(self, other: "Estimate") -> bool:
        return self.value < other.value

    def __mul__(self, factor: float) -> "Estimate":
        return Estimate(factor * self.value, factor * self.low, factor * self.high)

    __rmul__ = __mul__

    def __rsub__(self, number: float) -> "Estimate":
        return Estimate(number - self.value, number - self.high, number - self.low)

    def __truediv__(self, other: "Estimate") -> "Estimate":
        """Return the ratio of two independent numbers."""
        return Estimate(self.value / other.value, self.low / other.high, self.high / other.low)

    def __rtruediv__(self, number: float) -> "Estimate":
        return Estimate(number / self.value, number / self.high, number / self.low)


def enclose(estimates: Iterable[Estimate]) -> Estimate:
    """Return the value of the first estimate with an interval that encloses all of them."""
    every = list(estimates)
    return Estimate(every[0].value, min(each.low for each in every), max(each.high for each in every))


def average(estimates: Iterable[Estimate]) -> Estimate:
    """Return the arithmetic mean of numbers, and of the ends of their intervals."""
    every = list(estimates)
    ends = ([each.value for each in every], [each.low for each in every], [each.high for each in every])
    return Estimate(*(sum(numbers) / len(every) for numbers in ends))


class EpochTime(NamedTuple):
    """The time of an epoch of one run. A measured time has neither a machine card nor a prediction."""

    seconds: float
    machine: MachineCard | None = None
    prediction: Prediction | None = None

    @property
    def estimate(self) -> Estimate:
        if self.prediction is None:
            return Estimate(self.seconds, self.seconds, self.seconds)
        interval = self.prediction.seconds
        return Estimate(self.seconds, interval.low, interval.high)

    def compute_log_deviations(self, names: Iterable[str]) -> list[float]:
        """Return the change of the logarithm of the time as each named constant moves to the end of its interval.

        A constant that the machine card does not have changes nothing.
        """
        if self.prediction is None or self.machine is None:
            return [0.0 for _ in names]
        factors = {name: factor for name, (factor, _) in list_constants(self.machine).items()}
        shares = self.prediction.shares
        return [log(1 + shares.get(name, 0.0) * (factors.get(name, 1.0) - 1)) for name in names]


class EpochTimes(dict[tuple[Any, ...], EpochTime]):
    """The epoch times of a run, one for each choice of the settings that its paper leaves open."""

    @property
    def seconds(self) -> Estimate:
        return enclose(each.estimate for each in self.values())

    @property
    def first(self) -> EpochTime:
        return next(iter(self.values()))

    def __lt__(self, other: "EpochTimes") -> bool:
        return self.first.seconds < other.first.seconds

    def __truediv__(self, other: "EpochTimes") -> Estimate:
        """Return the ratio, computed between equal settings."""
        pairs = [(self[key], other[key]) for key in self if key in other]
        return enclose(divide_epochs(one, another) for one, another in pairs or [(self.first, other.first)])

    def compute_percent_under(self, accepts: Callable[[Key], bool]) -> Estimate:
        """Return the percentage of the epoch that is spent under the ledger keys that `accepts` accepts."""
        shares = []
        for prediction in self._predictions("shares of an epoch"):
            under = sum(seconds for key, seconds in prediction.entries.items() if accepts(key))
            shares.append(100 * under / sum(prediction.entries.values()))
        return Estimate(shares[0], min(shares), max(shares))

    @property
    def communication_seconds(self) -> float:
        entries = self._predictions("seconds of communication")[0].entries
        return sum(seconds for key, seconds in entries.items() if key.op in MOVING)

    def _predictions(self, what: str) -> list[Prediction]:
        predictions = [each.prediction for each in self.values() if each.prediction]
        if not predictions:
            raise UntestableClaim(f"{what} are taken from predictions, and this run was measured")
        return predictions


def divide_epochs(one: EpochTime, other: EpochTime) -> Estimate:
    """Return the ratio of two epoch times.

    On one machine the errors of shared constants cancel, but not the noise of both runs. The interval covers what is
    left.
    """
    ratio, variance = one.seconds / other.seconds, 0.0
    if one.prediction or other.prediction:
        variance += log(RESIDUAL) ** 2
        cards = [each.machine for each in (one, other) if each.machine]
        constants = list(dict.fromkeys(name for card in cards for name in list_constants(card)))
        deviations = (each.compute_log_deviations(constants) for each in (one, other))
        pairs = zip(*deviations, strict=True)
        same = one.machine == other.machine
        variance += sum((a - b) ** 2 if same else a**2 + b**2 for a, b in pairs)
        variance += sum(each.prediction.noise**2 for each in (one, other) if each.prediction)
    spread = exp(sqrt(variance))
    return Estimate(ratio, ratio / spread, ratio * spread)


def is_falling(times: Mapping[int, EpochTimes]) -> bool:
    """Return whether every epoch is shorter than the one on fewer ranks."""
    seconds = [times[ranks].first.seconds for ranks in sorted(times)]
    return seconds == sorted(seconds, reverse=True)
