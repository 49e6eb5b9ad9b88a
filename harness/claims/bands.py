"""Numbers with intervals, and epochs that are predicted or measured: what the formulas of claims compute with."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any, NamedTuple

from harness.ledger import MOVING, Key
from harness.predict.prediction import RESIDUAL, Prediction
from harness.predict.pricing import constants
from harness.spec.machine_card import MachineCard


class NotHereError(Exception):
    """A value that this machine cannot tell, with the reason."""


@dataclass(frozen=True)
class Band:
    """A number and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = (
            f"{x:,.0f}" if x >= 1000 else f"{x:.3g}" for x in (self.value, self.low, self.high)
        )
        return f"{value} [{low} to {high}]" if self.low < self.high else value

    def __lt__(self, other: "Band") -> bool:
        return self.value < other.value

    def __mul__(self, factor: float) -> "Band":
        return Band(factor * self.value, factor * self.low, factor * self.high)

    __rmul__ = __mul__

    def __rsub__(self, whole: float) -> "Band":
        return Band(whole - self.value, whole - self.high, whole - self.low)

    def __truediv__(self, other: "Band") -> "Band":
        """The ratio of numbers that have nothing in common."""
        return Band(self.value / other.value, self.low / other.high, self.high / other.low)

    def __rtruediv__(self, number: float) -> "Band":
        return Band(number / self.value, number / self.high, number / self.low)


def envelope(bands: Iterable[Band]) -> Band:
    """The interval of several; the value is that of the first."""
    every = list(bands)
    return Band(every[0].value, min(band.low for band in every), max(band.high for band in every))


class EpochTime(NamedTuple):
    """The time of one run's epoch. A measured one has no prediction, and needs no card."""

    seconds: float
    machine: MachineCard | None = None
    predicted: Prediction | None = None

    @property
    def band(self) -> Band:
        between = self.predicted.seconds if self.predicted else None
        return Band(self.seconds, between.low, between.high) if between else Band(*[self.seconds] * 3)

    def deviations(self, names: Iterable[str]) -> list[float]:
        """By constant of the card: how far the epoch moves with the constant, in the logarithm."""
        if self.predicted is None or self.machine is None:
            return [0.0 for _ in names]
        within = {name: each for name, (each, _) in constants(self.machine).items()}
        return [log(1 + self.predicted.shares[name] * (within[name] - 1)) for name in names]


class EpochTimes(dict[tuple[Any, ...], EpochTime]):
    """The epochs of a run by the settings that its paper leaves open."""

    @property
    def seconds(self) -> Band:
        return envelope(each.band for each in self.values())

    @property
    def first(self) -> EpochTime:
        return next(iter(self.values()))

    def __lt__(self, other: "EpochTimes") -> bool:
        return self.first.seconds < other.first.seconds

    def __truediv__(self, other: "EpochTimes") -> Band:
        """The ratio, setting by setting."""
        pairs = [(self[key], other[key]) for key in self if key in other]
        return envelope(ratio(one, another) for one, another in pairs or [(self.first, other.first)])

    def share(self, counts: Callable[[Key], bool]) -> Band:
        """The percentage of the epoch under the keys that count."""
        shares = []
        for predicted in self._predictions("shares of an epoch"):
            under = sum(seconds for key, seconds in predicted.entries.items() if counts(key))
            shares.append(100 * under / sum(predicted.entries.values()))
        return Band(shares[0], min(shares), max(shares))

    @property
    def moving(self) -> float:
        """The seconds of communication."""
        entries = self._predictions("seconds of communication")[0].entries
        return sum(seconds for key, seconds in entries.items() if key.op in MOVING)

    def _predictions(self, what: str) -> list[Prediction]:
        predicted = [each.predicted for each in self.values() if each.predicted]
        if not predicted:
            raise NotHereError(f"{what} are taken from predictions, and this run was measured")
        return predicted


def ratio(one: EpochTime, other: EpochTime) -> Band:
    """The ratio of two epochs. On the same machine its interval is that of what does not cancel."""
    value, apart = one.seconds / other.seconds, 0.0
    if one.predicted or other.predicted:
        apart += log(RESIDUAL) ** 2
        card = one.machine or other.machine
        assert card
        deviations = zip(*(each.deviations(constants(card)) for each in (one, other)), strict=True)
        same = one.machine == other.machine
        apart += sum((mine - its) ** 2 if same else mine**2 + its**2 for mine, its in deviations)
    spread = exp(sqrt(apart))
    return Band(value, value / spread, value * spread)
