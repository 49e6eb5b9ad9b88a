"""Statistics of repeated measurements.

The time of an epoch is the slowest rank's. One launch is summed up by the median of its timed epochs; the papers' own
protocol and the sum of mean phases are kept beside it. Launches stay points: they have a median and a range, and an
interval only from six launches on, because fewer have none. Ratios are never averaged, outliers never dropped.
"""

from collections.abc import Collection
from math import comb
from typing import NamedTuple

import pandas as pd

from harness.ledger import Op, Phase
from harness.results.schema import PAPER_EPOCHS, RUNS, WARMUP_DROPPED

CONFIGURATION = [
    column.name for column in RUNS.columns if column.part == "spec" and column.name not in ("launch", "spec")
]
"""The columns in which launches of one configuration agree."""


def slowest_rank(epochs: pd.DataFrame) -> "pd.Series[float]":
    """The slowest rank's seconds of each timed epoch."""
    timed = epochs[epochs.epoch >= 0]
    return timed.groupby("epoch").seconds.max()


def median_epoch(epochs: pd.DataFrame) -> float:
    """The epoch time of one launch: the median over its timed epochs."""
    return float(slowest_rank(epochs).median())


def paper_epoch(epochs: pd.DataFrame) -> float | None:
    """The papers' epoch time: the mean of ten epochs without the first two. None for a launch of at most two epochs."""
    seconds = slowest_rank(epochs)
    counted = seconds[(seconds.index >= WARMUP_DROPPED) & (seconds.index < PAPER_EPOCHS)]
    return None if counted.empty else float(counted.mean())


def phase_sum(ledger: pd.DataFrame) -> float | None:
    """The sum of mean phases that Plexus reports: named phases, mean over ranks, median over epochs."""
    timed = ledger[ledger.epoch >= 0]
    if timed.empty:
        return None
    ranks = timed.groupby("epoch")["rank"].nunique()
    named = timed[timed.phase != Phase.OTHER].groupby("epoch").seconds.sum()
    return float((named.reindex(ranks.index, fill_value=0.0) / ranks).median())


def share(ledger: pd.DataFrame, ops: Collection[Op]) -> float | None:
    """The share of these ops in all ranks' time, over timed epochs."""
    timed = ledger[ledger.epoch >= 0]
    whole = timed.seconds.sum()
    return float(timed.seconds[timed.op.isin(ops)].sum() / whole) if whole else None


class Interval(NamedTuple):
    low: float
    high: float


def median_interval(values: "pd.Series[float]", level: float = 0.95) -> Interval | None:
    """An interval that covers the median with at least this probability, whatever the distribution.

    Its ends are order statistics: the k-th smallest and the k-th largest value, with the largest k for which
    2 (C(n,0) + ... + C(n,k-1)) / 2^n <= 1 - level. None if not even the full range covers enough.
    """
    n = len(values)
    outside, k = 2 * comb(n, 0) / 2**n, 0
    while outside <= 1 - level:
        k += 1
        outside += 2 * comb(n, k) / 2**n
    if k == 0:
        return None
    ordered = values.sort_values()
    return Interval(float(ordered.iloc[k - 1]), float(ordered.iloc[n - k]))


def configurations(runs: pd.DataFrame) -> pd.DataFrame:
    """One row for each configuration and source, in the order of `runs`: its launches summed up."""
    shown = runs.assign(source=runs.source.where(runs.source != "", "measured"))
    groups = shown.groupby(["source", *CONFIGURATION], sort=False, dropna=False)
    rows = [{**dict(zip(groups.keys, key, strict=True)), **_summed_up(launches)} for key, launches in groups]
    return pd.DataFrame(rows)


def _summed_up(launches: pd.DataFrame) -> dict[str, object]:
    done = launches[launches.status == "ok"]
    seconds = done.epoch_seconds_median.dropna()
    interval = median_interval(seconds)
    middle = (
        "phase_seconds_mean computing_share communicating_share vertices_per_second "
        "steps messages words_payload words_received words_formula final_loss "
        "accuracy_train accuracy_valid accuracy_test seconds_to_target evaluation_seconds"
    )
    return {
        "run_ids": list(launches.run_id),
        "launches": len(launches),
        "ok": len(done),
        "statuses": ", ".join(sorted(set(launches.status) - {"ok"})),
        "seconds": float(seconds.median()),
        "low": float(seconds.min()),
        "high": float(seconds.max()),
        "interval_low": interval.low if interval else float("nan"),
        "interval_high": interval.high if interval else float("nan"),
        "seconds_paper": float(done.epoch_seconds_paper.mean()),
        **{column: float(done[column].astype(float).median()) for column in middle.split()},
    }
