"""The error of the ratio of two epoch times, of which one or both are predicted."""

from collections.abc import Mapping
from math import log, sqrt
from typing import NamedTuple

from harness.prediction.epoch import RESIDUAL, Prediction
from harness.prediction.pricing import list_constants
from harness.spec.machine_card import MachineCard


class PredictedTime(NamedTuple):
    """A prediction with its strategy and its machine card."""

    strategy: str
    card: MachineCard
    prediction: Prediction


class RatioError(NamedTuple):
    """The error of the logarithm of a ratio."""

    deviation: float
    by_constant: Mapping[str, float]
    """The change of the logarithm as each constant of the card moves to the end of its interval."""


def compute_ratio_error(*predicted: PredictedTime) -> RatioError:
    """Return the error of the ratio of two times, from the times that are predicted; a measured time has no error.

    The errors of the model are independent for two strategies: sqrt(2) times the deviation of one of them. Runs of one
    strategy share the error of the model, which counts once. On one card, the errors of the constants cancel where both
    times depend on them equally. The noise of both runs counts.
    """
    variance = len({each.strategy for each in predicted}) * log(RESIDUAL) ** 2
    variance += sum(each.prediction.noise**2 for each in predicted)
    changes = [_list_changes(each) for each in predicted]
    if len(predicted) == 2 and predicted[0].card == predicted[1].card:
        one, other = changes
        changes = [{name: one[name] - other[name] for name in one}]
    variance += sum(change**2 for each in changes for change in each.values())
    return RatioError(sqrt(variance), changes[0] if len(changes) == 1 else {})


def _list_changes(predicted: PredictedTime) -> dict[str, float]:
    """Return the change of the logarithm of the time as each constant moves to the end of its interval."""
    shares = predicted.prediction.shares
    return {
        name: log(1 + shares.get(name, 0.0) * (within - 1))
        for name, (within, _) in list_constants(predicted.card).items()
    }
