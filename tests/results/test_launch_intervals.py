"""Intervals over launches: exact by counting and by scipy, and honest about equal programs by simulation."""

from itertools import combinations
from math import comb
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, mannwhitneyu

from harness.results import launch_intervals, statistics
from harness.results.collect import collect
from harness.results.launch_intervals import (
    LEVEL,
    compare_blocks,
    compare_launches,
    correct_level,
    count_needed_blocks,
    count_needed_launches,
    count_pairs,
    judge_ratio,
)

WITHIN = 0.02
"""The spread of epochs within a launch."""
SPREADS = (0.0, 0.01, 0.02, 0.04)
"""The spread of launches: the standard deviation of the logarithm of their times."""
CHANGED = ("slower", "faster")


@given(st.integers(0, 60))
def test_median_interval_covers_and_no_narrower_one_would(n: int) -> None:
    """scipy counts: the k-th smallest of n lies above the median with probability P(Binomial(n, 1/2) < k)."""
    interval = launch_intervals.compute_median_interval(pd.Series(np.arange(1.0, n + 1)))
    if interval is None:
        assert n < 6
        assert 1 - 2 * binom.cdf(0, n, 0.5) < 0.95
        return
    k = int(interval.low)
    assert interval.high == n + 1 - k
    assert 1 - 2 * binom.cdf(k - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(k, n, 0.5) < 0.95


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (8, 1, 8), (10, 2, 9), (20, 6, 15)])
def test_median_interval_has_the_known_order_statistics(n: int, low: int, high: int) -> None:
    shuffled = pd.Series(np.random.default_rng(n).permutation(np.arange(1.0, n + 1)))
    assert launch_intervals.compute_median_interval(shuffled) == (low, high)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (3, 3), (4, 4), (5, 2)])
def test_rank_sums_agree_with_counting_all_arrangements(n: int, m: int) -> None:
    counted = [0] * (n * m + 1)
    for places in combinations(range(n + m), n):
        others = [place for place in range(n + m) if place not in places]
        counted[sum(one > other for one in places for other in others)] += 1
    assert launch_intervals._count_rank_sums(n, m) == counted


times = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8, unique=True)


@given(times, times, st.sampled_from([1, 3, 10]))
def test_verdict_agrees_with_the_exact_test_of_mann_and_whitney(
    first: list[float], second: list[float], comparisons: int
) -> None:
    """scipy's exact p-value is at most the level's complement if and only if the interval excludes 1."""
    if set(first) & set(second):
        return
    estimate = compare_launches(first, second, correct_level(comparisons))
    p = mannwhitneyu(first, second, method="exact").pvalue
    assert (judge_ratio(estimate.interval) in CHANGED) == (p <= (1 - LEVEL) / comparisons + 1e-12)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12),
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12),
)
def test_ratio_lies_in_its_interval_and_inverts_with_its_sides(
    first: list[float], second: list[float]
) -> None:
    estimate, inverse = compare_launches(first, second), compare_launches(second, first)
    if len(first) * len(second) % 2:
        assert inverse.ratio == pytest.approx(1 / estimate.ratio)
    if estimate.interval is None:
        assert inverse.interval is None
        return
    low, high = estimate.interval
    assert low <= estimate.ratio <= high
    assert inverse.interval == pytest.approx((1 / high, 1 / low))


def test_many_launches_agree_with_the_exact_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = launch_intervals._count_rank_ends(40, 40, LEVEL)
    monkeypatch.setattr(launch_intervals, "MANY_RATIOS", 0)
    launch_intervals._count_rank_ends.cache_clear()
    approximate = launch_intervals._count_rank_ends(40, 40, LEVEL)
    launch_intervals._count_rank_ends.cache_clear()
    assert approximate == pytest.approx(exact, abs=2)


def test_fewer_launches_than_needed_are_undecided() -> None:
    """The extreme of C(2n, n) arrangements on either side, or of 2^n signs, must be as rare as the level demands."""
    for comparisons in (1, 3, 10, 45, 190):
        level = correct_level(comparisons)
        launches, blocks = count_needed_launches(level), count_needed_blocks(level)
        assert (
            2 / comb(2 * launches, launches) <= 0.05 / comparisons < 2 / comb(2 * launches - 2, launches - 1)
        )
        assert 2 / 2**blocks <= 0.05 / comparisons < 2 / 2 ** (blocks - 1)
        for n in (launches - 1, launches):
            estimate = compare_launches(np.linspace(1, 1.1, n), np.linspace(2, 2.1, n), level)
            assert judge_ratio(estimate.interval) == ("slower" if n == launches else "undecided")
        for n in (blocks - 1, blocks):
            assert (compare_blocks([2.0] * n, level).interval is None) == (n < blocks)


def test_one_launch_is_undecided_however_many_the_other_side_has() -> None:
    assert compare_launches([1.0], np.linspace(2, 3, 100)).interval is None
    assert compare_launches([1.0, 1.1], np.linspace(2, 3, 100)).interval is not None


# Simulations. The seed is fixed, and limits are those of the docs.


def draw_launches(
    random: np.random.Generator, shape: tuple[int, int], spread: float, factor: float = 1.0
) -> "np.ndarray":
    """Return the seconds of epochs, by launch."""
    launches = factor * np.exp(random.normal(0, spread, shape[0]))
    return launches[:, None] * np.exp(random.normal(0, WITHIN, shape))


def measure_rate(
    launches: int, epochs: int, spread: float, factor: float = 1.0, repeats: int = 2000
) -> float:
    """Return in which part of repeated comparisons two programs are called different."""
    random, shape = np.random.default_rng(launches), (launches, epochs)
    estimates = [
        compare_launches(
            np.median(draw_launches(random, shape, spread), axis=1),
            np.median(draw_launches(random, shape, spread, factor), axis=1),
        )
        for _ in range(repeats)
    ]
    return float(np.mean([judge_ratio(estimate.interval) in CHANGED for estimate in estimates]))


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("launches", "epochs"), [(1, 20), (1, 50), (4, 10), (5, 10), (10, 10)])
def test_equal_programs_are_rarely_called_different(launches: int, epochs: int, spread: float) -> None:
    """The level allows 5 %. One launch is undecided, whatever the number of epochs."""
    rate = measure_rate(launches, epochs, spread)
    assert rate <= (0.065 if launches > 1 else 0)


def test_a_difference_of_ten_percent_is_found_with_ten_launches() -> None:
    for spread in SPREADS:
        assert measure_rate(10, 10, spread, 1.1, repeats=500) >= 0.95
    assert measure_rate(10, 10, 0.04, 1.02, repeats=500) < 0.5  # 2 % is not found at a spread of 4 %


def test_winner_among_equal_programs_is_rarely_called_faster() -> None:
    """Ten equal programs, of which the fastest is compared with the slowest: uncorrected, most tables name a winner."""
    random, programs, repeats = np.random.default_rng(0), 10, 500
    named = dict.fromkeys((LEVEL, correct_level(count_pairs(programs))), 0)
    for _ in range(repeats):
        seconds = np.exp(random.normal(0, 0.04, (programs, 10)))
        order = np.argsort(np.median(seconds, axis=1))
        for level in named:
            estimate = compare_launches(seconds[order[0]], seconds[order[-1]], level)
            named[level] += judge_ratio(estimate.interval) in CHANGED
    uncorrected, corrected = (count / repeats for count in named.values())
    assert corrected <= 0.05
    assert uncorrected > 0.3


class Tables:
    """Synthetic tables of one configuration, with as many launches as are wanted."""

    def __init__(self, synthetic: SimpleNamespace, folder: Path, launches: int) -> None:
        for launch in range(launches):
            spec = synthetic.make_spec("serial", "tiny", {"p": 1}, launch=launch)
            synthetic.write_ok(folder / "runs", spec, 1.0)
        self.runs = collect(folder / "runs", folder).runs

    def make_side(self, seconds: "np.ndarray") -> statistics.Side:
        """Return the tables with the seconds of epochs, by launch."""
        frames = {
            run: pd.DataFrame({"epoch": np.arange(len(epochs)), "rank_id": 0, "seconds": epochs, "loss": 1.0})
            for run, epochs in zip(self.runs.run_id, seconds, strict=True)
        }
        return statistics.Side(self.runs.assign(epoch_seconds_median=np.median(seconds, axis=1)), frames, {})


@pytest.mark.parametrize(("launches", "epochs"), [(1, 50), (5, 10), (10, 10)])
def test_sides_are_compared_by_the_medians_of_their_launches(
    launches: int, epochs: int, synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    random, tables = np.random.default_rng(3), Tables(synthetic, tmp_path, launches)
    for spread in SPREADS:
        seconds = [draw_launches(random, (launches, epochs), spread, factor) for factor in (1.0, 1.1)]
        (difference,) = statistics.compare_sides(*map(tables.make_side, seconds))
        expected = compare_launches(*(np.median(each, axis=1) for each in seconds))
        assert difference.ratio == pytest.approx(expected.ratio)
        assert difference.interval == (pytest.approx(expected.interval) if expected.interval else None)
        assert (difference.verdict == "undecided") == (launches == 1)


@pytest.mark.long
@pytest.mark.parametrize("launches", [5, 10])
def test_compared_tables_of_equal_programs_rarely_differ(
    launches: int, synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    """The rates of `measure_rate`, from tables, as `harness compare` reads them, for the largest spread."""
    random, tables, repeats = np.random.default_rng(5), Tables(synthetic, tmp_path, launches), 40

    def list_verdicts(factor: float) -> list[str]:
        pairs = [
            [tables.make_side(draw_launches(random, (launches, 10), 0.04, each)) for each in (1.0, factor)]
            for _ in range(repeats)
        ]
        return [difference.verdict for pair in pairs for difference in statistics.compare_sides(*pair)]

    assert sum(verdict in CHANGED for verdict in list_verdicts(1.0)) <= repeats / 10
    if launches == 10:
        assert list_verdicts(1.1).count("slower") >= 0.8 * repeats


# What counts as a launch.


def make_runs(seconds: list[float], process: list[str], block: str | list[str] = "") -> pd.DataFrame:
    return pd.DataFrame(
        {"epoch_seconds_median": seconds, statistics.PROCESS: process, statistics.BLOCK: block}
    )


def test_runs_forked_from_one_process_are_one_launch() -> None:
    forked = make_runs([1.0, 3.0, 2.0, 5.0, 7.0], ["a", "a", "a", "", ""])
    assert sorted(statistics.list_launch_seconds(forked)) == [2.0, 5.0, 7.0]
    many = make_runs(list(np.linspace(1, 1.1, 10)), ["a"] * 10)
    found = statistics.compare_configurations(many, make_runs(list(np.linspace(2, 2.1, 10)), ["b"] * 10))
    assert (found.launches, found.estimate.interval) == ((1, 1), None)


def test_launches_are_pairs_only_within_blocks() -> None:
    """The nodes of each block differ by a factor, which cancels within blocks and not between launches."""
    factors = [1.0, 3.0, 9.0, 2.0, 5.0, 7.0]
    names = [f"night {number}" for number in range(6)]
    first, second = (make_runs([each * ratio for each in factors], [""] * 6, names) for ratio in (1.0, 1.1))
    paired = statistics.compare_configurations(first, second)
    assert paired.blocks == 6 and judge_ratio(paired.estimate.interval) == "slower"
    assert paired.estimate.ratio == pytest.approx(1.1)
    unpaired = statistics.compare_configurations(first, second.assign(**{statistics.BLOCK: ""}))
    assert unpaired.blocks == 0 and judge_ratio(unpaired.estimate.interval) == "within noise"


def test_blocks_forked_from_one_process_are_one_block() -> None:
    names = [f"night {number}" for number in range(6)]
    first = make_runs([1.0] * 6, ["a", "a", "b", "c", "d", "e"], names)
    second = make_runs([1.0, 3.0, 2.0, 2.0, 2.0, 2.0], ["a", "a", "b", "c", "d", "e"], names)
    assert statistics.compute_block_ratios(first, second).tolist() == [2.0] * 5
