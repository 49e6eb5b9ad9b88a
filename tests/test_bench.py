"""`make bench` fails if a ratio to a competitor was certainly lost since the last landing."""

from benchmarks.bench import Ratio
from harness.results.launch_intervals import Interval


def test_speed_is_lost_if_a_ratio_fell_by_a_fifth_and_by_more_than_noise() -> None:
    landed, noisy = Ratio(2.0, Interval(1.9, 2.1)), Ratio(2.0, Interval(1.3, 2.9))
    assert Ratio(1.5, Interval(1.4, 1.6)).is_lost(landed)
    assert not Ratio(1.5, Interval(1.4, 1.6)).is_lost(noisy)
    assert not Ratio(1.7, Interval(1.69, 1.71)).is_lost(landed), "it fell by less than a fifth"
    assert not Ratio(1.5, Interval(1.4, 1.6)).is_lost(None)
    assert Ratio(1.5).is_lost(Ratio(2.0)), "without intervals nothing is known of noise"
