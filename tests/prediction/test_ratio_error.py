"""The error of a ratio of predictions: independent for two strategies, shared by runs of one."""

from math import exp, log, sqrt

import pytest

from harness.claims.estimates import EpochTime, divide_epochs
from harness.prediction.epoch import RESIDUAL, PredictedSeconds, Prediction
from harness.prediction.pricing import list_constants
from harness.prediction.ratio_error import PredictedTime, compute_ratio_error
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root

CARD = load_machine_card(find_root(), "perlmutter")


def predicted(strategy: str, share: float = 0.0, noise: float = 0.0) -> PredictedTime:
    """An epoch of one second, of which a share is proportional to one constant."""
    shares = dict.fromkeys(list_constants(CARD), 0.0) | {"links.node_gbs": share}
    seconds = PredictedSeconds(1.0, 1.0, 1.0)
    return PredictedTime(strategy, CARD, Prediction(0, seconds, {}, 0.0, 0.0, 0, shares, noise))


def test_errors_of_two_strategies_are_independent() -> None:
    two = compute_ratio_error(predicted("rdm"), predicted("plexus")).deviation
    assert exp(two) == pytest.approx(RESIDUAL ** sqrt(2)) == pytest.approx(1.37, abs=0.005)
    one = compute_ratio_error(predicted("rdm"), predicted("rdm")).deviation
    assert exp(one) == pytest.approx(RESIDUAL)


def test_measured_time_adds_no_error() -> None:
    assert exp(compute_ratio_error(predicted("rdm")).deviation) == pytest.approx(RESIDUAL)
    assert compute_ratio_error().deviation == 0


def test_noise_of_both_runs_counts() -> None:
    found = compute_ratio_error(predicted("rdm", noise=0.1), predicted("plexus", noise=0.2)).deviation
    assert found == pytest.approx(sqrt(2 * log(RESIDUAL) ** 2 + 0.1**2 + 0.2**2))


def test_shared_constants_cancel() -> None:
    alike = compute_ratio_error(predicted("rdm", 0.5), predicted("plexus", 0.5))
    assert set(alike.by_constant.values()) == {0.0}
    apart = compute_ratio_error(predicted("rdm", 1.0), predicted("plexus", 0.0))
    within = list_constants(CARD)["links.node_gbs"][0]
    assert apart.by_constant["links.node_gbs"] == pytest.approx(log(within))
    assert apart.deviation == pytest.approx(sqrt(alike.deviation**2 + log(within) ** 2))


def test_ratios_in_claims_have_the_same_error_as_ties() -> None:
    pair = predicted("rdm", 1.0, 0.1), predicted("plexus", 0.2, 0.1)
    ratio = divide_epochs(*(EpochTime(1.0, CARD, each.prediction, each.strategy) for each in pair))
    assert log(ratio.high) == pytest.approx(compute_ratio_error(*pair).deviation)
