"""`make bench` keeps the ratios of each commit, and ends with what changed since which commit."""

from pathlib import Path

import numpy as np

from benchmarks.bench import Ratio
from benchmarks.bench_history import keep_ratios, report_changes
from benchmarks.registry import Table
from harness.results.launch_intervals import Interval

CPU = "a processor"


def keep(file: Path, commits: int, ratio_from: dict[int, float]) -> None:
    """Keep the ratios of several commits: about 2, or another ratio from a commit on."""
    rng, ratio = np.random.default_rng(5), 2.0
    for number in range(commits):
        ratio = ratio_from.get(number, ratio)
        measured = {("A H", "scipy"): ratio * rng.lognormal(0, 0.02), ("A H", "C"): rng.lognormal(0, 0.02)}
        keep_ratios(file, {"commit": f"{number:040x}", "dirty": False, "cpu": CPU}, measured)


def test_a_lost_ratio_is_a_slower_call_since_its_commit(tmp_path: Path) -> None:
    keep(tmp_path / "bench.csv", 12, {7: 1.5})
    head, row, *rest = report_changes(tmp_path / "bench.csv", tmp_path, CPU)
    assert isinstance(head, Table) and isinstance(row, tuple) and not rest
    assert row[:3] == ("A H", "scipy", "slower") and 1.25 < float(str(row[3])) < 1.42
    assert row[5] == f"{7:040x}"[:10]


def test_equal_ratios_and_other_processors_are_no_change(tmp_path: Path) -> None:
    file = tmp_path / "bench.csv"
    keep(file, 12, {})
    assert list(report_changes(file, tmp_path, CPU)) == ["Over the 12 commits in bench.csv: nothing changed."]
    keep_ratios(file, {"commit": "f" * 40, "dirty": True, "cpu": "another"}, {("A H", "scipy"): 9.0})
    (text,) = report_changes(file, tmp_path, "another")
    assert "too few to find changes" in str(text)


def test_speed_is_lost_if_a_ratio_fell_by_a_fifth_and_by_more_than_noise() -> None:
    landed, noisy = Ratio(2.0, Interval(1.9, 2.1)), Ratio(2.0, Interval(1.3, 2.9))
    assert Ratio(1.5, Interval(1.4, 1.6)).is_lost(landed)
    assert not Ratio(1.5, Interval(1.4, 1.6)).is_lost(noisy)
    assert not Ratio(1.7, Interval(1.69, 1.71)).is_lost(landed), "it fell by less than a fifth"
    assert not Ratio(1.5, Interval(1.4, 1.6)).is_lost(None)
    assert Ratio(1.5).is_lost(Ratio(2.0)), "without intervals nothing is known of noise"
