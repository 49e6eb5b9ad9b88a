"""Intervals over launches, for any distribution of their times: order statistics, exact for every number of launches.

The unit is the launch, whose time is its median epoch. Epochs of one launch share its processes, cores and addresses,
so they are not independent of each other, and one launch gives no interval.

A table of several comparisons is corrected for their number (Bonferroni): the chance that any two equal programs are
called different is at most 1 - `LEVEL` for the whole table, also for the comparisons with a winner that the same
launches chose.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import comb, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

LEVEL = 0.95
"""The probability with which an interval contains the true value, or all intervals of a table contain theirs."""
LEAST_LAUNCHES = 2
"""The fewest launches of each side that are compared, whatever the other side has."""
MANY_RATIOS = 10_000
"""The number of ratios from which the distribution of ranks is approximated by the normal distribution."""


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float

    def divide(self, other: "Interval") -> "Interval":
        """Return an interval that covers the ratio of the values that both intervals cover."""
        return Interval(self.low / other.high, self.high / other.low)


class RatioEstimate(NamedTuple):
    """The ratio of two times, and the interval of the same estimator, which contains the ratio."""

    ratio: float
    interval: Interval | None
    """None for too few launches or blocks."""


def judge_ratio(ratio: Interval | None) -> str:
    """Return "slower" or "faster" from the interval of a ratio of times, "within noise" if it contains 1.

    Without an interval, return "undecided".
    """
    if ratio is None:
        return "undecided"
    return "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "within noise"


def correct_level(comparisons: int) -> float:
    """Return the level of each interval in a table of this many comparisons."""
    return 1 - (1 - LEVEL) / max(1, comparisons)


def count_pairs(configurations: int) -> int:
    """Return the number of comparisons in a table that ranks this many configurations: all pairs.

    The winner is chosen by the same launches, so any pair might be the one that is shown.
    """
    return comb(configurations, 2)


def compute_median_interval(
    values: "Sequence[float] | pd.Series[float]", level: float = LEVEL
) -> Interval | None:
    """Return an interval that covers the median with at least this probability, for any distribution.

    The ends are order statistics: the k-th smallest and the k-th largest value, with the largest k for which
    2 (C(n,0) + ... + C(n,k-1)) / 2^n <= 1 - level. Returns None if the full range does not reach the level.
    """
    n = len(values)
    return _select_ends(values, _count_ends(lambda k: comb(n, k), 2**n, level))


def compare_blocks(ratios: "Sequence[float] | pd.Series[float]", level: float = LEVEL) -> RatioEstimate:
    """Return the median of the ratios within blocks, and its interval, which takes six blocks or more."""
    return RatioEstimate(float(np.median(ratios)), compute_median_interval(ratios, level))


def compare_launches(
    first: "Sequence[float] | pd.Series[float]",
    second: "Sequence[float] | pd.Series[float]",
    level: float = LEVEL,
) -> RatioEstimate:
    """Return the ratio of the second program's time to the first's, from the times of their launches.

    The ratio is the median of the ratios of every launch of the second to every launch of the first (Hodges and
    Lehmann, on a logarithmic scale). The ends of the interval are the k-th smallest and the k-th largest of these
    ratios, with the largest k that reaches the level by the distribution of Mann and Whitney's statistic. It takes four
    launches of each program at the level of one comparison.
    """
    ratios = np.divide.outer(np.asarray(second, dtype=float), np.asarray(first, dtype=float)).ravel()
    fewest = min(len(first), len(second))
    ends = _count_rank_ends(len(first), len(second), level) if fewest >= LEAST_LAUNCHES else 0
    return RatioEstimate(float(np.median(ratios)), _select_ends(ratios, ends))


def count_needed_launches(level: float = LEVEL) -> int:
    """Return the fewest launches of each side that give an interval."""
    return _count_needed(lambda n: comb(2 * n, n), level)


def count_needed_blocks(level: float = LEVEL) -> int:
    """Return the fewest blocks, or launches of one configuration, that give an interval."""
    return _count_needed(lambda n: 2**n, level)


def _count_needed(count_arrangements: "Callable[[int], int]", level: float) -> int:
    n = LEAST_LAUNCHES
    while (1 - level) * count_arrangements(n) < 2:
        n += 1
    return n


def _select_ends(values: "Sequence[float] | pd.Series[float] | np.ndarray", k: int) -> Interval | None:
    """Return the k-th smallest and the k-th largest value; None for k = 0."""
    if k == 0:
        return None
    ordered = np.sort(np.asarray(values, dtype=float))
    return Interval(float(ordered[k - 1]), float(ordered[-k]))


def _count_ends(count: "Callable[[int], int]", total: int, level: float) -> int:
    """Return the largest k for which 2 (count(0) + ... + count(k-1)) / total <= 1 - level."""
    k, outside = 0, 2 * count(0)
    while outside <= (1 - level) * total:
        k += 1
        outside += 2 * count(k)
    return k


@lru_cache
def _count_rank_ends(n: int, m: int, level: float) -> int:
    """Return the number k of `compare_launches`, for n and m launches."""
    if n * m > MANY_RATIOS:
        deviation = sqrt(n * m * (n + m + 1) / 12)
        return int(n * m / 2 - NormalDist().inv_cdf((1 + level) / 2) * deviation)
    counts = _count_rank_sums(n, m)
    return _count_ends(counts.__getitem__, comb(n + m, n), level)


def _count_rank_sums(n: int, m: int) -> list[int]:
    """Return for each number u in how many arrangements of n and m values u pairs are in reverse order.

    These are the coefficients of the Gaussian binomial, the product of (1 - q^(n+i)) / (1 - q^i) for i = 1 to m.
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, m + 1):
        for u in range(n * m, n + i - 1, -1):
            counts[u] -= counts[u - n - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts
