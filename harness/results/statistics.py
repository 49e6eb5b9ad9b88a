"""Statistics of repeated measurements.

The time of an epoch is the slowest rank's. One launch is summed up by the median of its timed epochs; the papers' own
protocol and the sum of mean phases are kept beside it. Launches stay points: they have a median and a range, and an
interval only from six launches on, because fewer have none. Ratios are never averaged, outliers never dropped.
"""

from collections.abc import Collection
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import pandas as pd

from harness.ledger import Op, Phase
from harness.results.epoch_parts import Frames, of_launch
from harness.results.schema import PAPER_EPOCHS, RUNS, WARMUP_DROPPED

CONFIGURATION = [
    column.name for column in RUNS.columns if column.part == "spec" and column.name not in ("launch", "spec")
]
"""The columns in which launches of one configuration agree."""


ON_SHARED_CORES = [f"provenance.{name}" for name in ("env", "ranks_on_host", "threads", "cores")]
"""The columns of provenance that say whether ranks shared cores."""


def oversubscribed(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Whether the ranks of a host had more threads than the cores that they might use.

    A record without the number of ranks on a host is taken for a run on one host, unless Slurm placed its ranks.
    """
    alone = runs.ranks.where(~runs["provenance.env"].fillna("").str.contains("HARNESS_STEP"))
    ranks = runs["provenance.ranks_on_host"].fillna(alone)
    threads = runs["provenance.threads"].fillna(runs["machine.threads_per_rank"])
    return (ranks * threads > runs["provenance.cores"]).fillna(False).astype(bool)


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

    def over(self, other: "Interval") -> "Interval":
        """Covers the ratio of what this interval covers and what the other does."""
        return Interval(self.low / other.high, self.high / other.low)


def verdict(ratio: Interval | None) -> str:
    """Whether a time is slower or faster than another, by the interval of their ratio; unsure if that has 1."""
    if ratio is None:
        return "unsure"
    return "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "unsure"


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


TIMES = ["epoch_seconds_median", "epoch_seconds_paper"]
SUMMED_UP = [
    "phase_seconds_mean",
    "computing_share",
    "communicating_share",
    "vertices_per_second",
    "steps",
    "messages",
    "words_payload",
    "words_received",
    "words_formula",
    "final_loss",
    "accuracy_train",
    "accuracy_valid",
    "accuracy_test",
    "seconds_to_target",
    "evaluation_seconds",
]
"""The columns of which a configuration has the median over its launches."""


def configurations(runs: pd.DataFrame) -> pd.DataFrame:
    """One row for each configuration and source, in the order of `runs`: its launches summed up."""
    shown = runs.assign(source=runs.source.where(runs.source != "", "measured"))
    keys = ["source", *CONFIGURATION]
    number = shown.groupby(keys, sort=False, dropna=False).ngroup()
    launches = shown.groupby(number)
    ok = shown.status == "ok"
    failed = shown.status[~ok].groupby(number[~ok]).agg(lambda names: ", ".join(sorted(set(names))))
    done, of = shown[ok].astype(dict.fromkeys((*SUMMED_UP, *TIMES), float)), number[ok]
    seconds = done.epoch_seconds_median.groupby(of)
    intervals = {key: found for key, values in seconds if (found := median_interval(values.dropna()))}
    configuration = shown.loc[~number.duplicated(), keys].reset_index(drop=True)
    summary = {
        "run_ids": launches.run_id.agg(list),
        "launches": launches.size(),
        "ok": of.value_counts().reindex(configuration.index, fill_value=0),
        "statuses": failed.reindex(configuration.index, fill_value=""),
        "seconds": seconds.median(),
        "low": seconds.min(),
        "high": seconds.max(),
        "interval_low": pd.Series({key: found.low for key, found in intervals.items()}, dtype=float),
        "interval_high": pd.Series({key: found.high for key, found in intervals.items()}, dtype=float),
        "seconds_paper": done.epoch_seconds_paper.groupby(of).mean(),
        **done[SUMMED_UP].groupby(of).median(),
    }
    return configuration.assign(**{name: pd.Series(values) for name, values in summary.items()})


# Competitors: configurations that had the same nodes in one allocation, one after the other. Between allocations a run
# may take several times as long, so that only ratios within a block tell which competitor is faster.

CHOSEN = ("strategy.name", "strategy.params", "grid", "protocol")
"""The columns in which competitors may differ, with the sizes of the axes."""


class Rivals(NamedTuple):
    """Two competitors. A ratio above 1 says that B is slower."""

    a: str
    b: str
    case: str
    """The graph and the ranks of both."""
    ratios: list[float]
    """B over A, one of each block."""
    ratio: float
    """The median."""
    interval: Interval | None
    """Covers the median with at least 95 %; None for fewer than six blocks."""


def rivals(runs: pd.DataFrame) -> list[Rivals]:
    """Every two configurations that met in a block, alike in all but the strategy, its parameters and its grid."""
    done = _measured(runs)
    done = done[done["provenance.block"].fillna("") != ""]
    differs = [name for name in CONFIGURATION if name in CHOSEN or name.startswith("grid.")]
    alike = [name for name in CONFIGURATION if name not in differs]
    found = []
    for _, case in done.groupby(alike, sort=False, dropna=False):
        names = case["strategy.name"] + " " + case["grid"]
        keys = pd.Series([str(tuple(row)) for row in case[differs].itertuples(index=False)], index=case.index)
        table = case.pivot_table(
            "epoch_seconds_median", "provenance.block", keys, aggfunc="first", sort=False
        )
        called = dict(zip(keys, names, strict=True))
        about = f"{case['dataset.name'].iloc[0]}, {case.ranks.iloc[0]} ranks"
        for a, b in combinations(table.columns, 2):
            ratios = (table[b] / table[a]).dropna()
            if len(ratios):
                interval = median_interval(ratios)
                found.append(
                    Rivals(called[a], called[b], about, list(ratios), float(ratios.median()), interval)
                )
    return found


# Two sets of runs: the same configurations before and after a change, or two runs.

TOLD = ("commit", "host", "cpu", "gpu", "cores", "threads", "engine", "versions", "env", "store_manifest")
"""The parts of provenance that a comparison names where they differ."""


class Side(NamedTuple):
    """One side of a comparison: runs, and their tables by run id."""

    runs: pd.DataFrame
    epochs: Frames
    ledgers: Frames


class Difference(NamedTuple):
    """One configuration on both sides. A ratio above 1 says that B is slower."""

    label: str
    pairs: int
    seconds: tuple[float, float]
    ratio: float
    interval: Interval | None
    """Covers the ratio of the medians over epochs of all launches with at least 90 %; None for too few epochs."""
    parts: list[tuple[str, float, float]]
    """The parts of the epoch that changed most: phase and op, seconds of A and of B."""
    words: tuple[float, float]
    differs: dict[str, tuple[str, str]]
    """Settings and origins that are not the same: those of A and of B."""

    @property
    def verdict(self) -> str:
        """Whether B is slower or faster, if the interval leaves a doubt neither."""
        return verdict(self.interval)


def compare(a: Side, b: Side) -> list[Difference]:
    """Every configuration that both sides measured, by launches of the same spec; two single runs are one pair."""
    mine, other = (_measured(side.runs) for side in (a, b))
    if len(mine) == len(other) == 1:
        return [_paired(mine, other, a, b)]
    common = [run for run in mine.run_id if run in set(other.run_id)]
    before, after = (runs.set_index("run_id", drop=False).loc[common] for runs in (mine, other))
    groups = before.groupby(list(CONFIGURATION), sort=False, dropna=False)
    return [_paired(some, after.loc[some.run_id], a, b) for _, some in groups]


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[(runs.status == "ok") & runs.epoch_seconds_median.notna()]


def _paired(before: pd.DataFrame, after: pd.DataFrame, a: Side, b: Side) -> Difference:
    """One configuration; the rows of both tables are pairs, in order."""
    ratios = pd.Series(after.epoch_seconds_median.to_numpy() / before.epoch_seconds_median.to_numpy())
    return difference(before, after, a, b)._replace(ratio=float(ratios.median()))


def difference(before: pd.DataFrame, after: pd.DataFrame, a: Side, b: Side) -> Difference:
    """Two configurations by their launches, which are no pairs: the ratio is that of the medians."""
    one, two = (median_interval(_epochs(runs, side.epochs), 0.95) for runs, side in ((before, a), (after, b)))
    first, last = before.iloc[0], after.iloc[0]
    seconds = tuple(float(runs.epoch_seconds_median.median()) for runs in (before, after))
    return Difference(
        str(first.label),
        min(len(before), len(after)),
        (seconds[0], seconds[1]),
        seconds[1] / seconds[0],
        two.over(one) if one and two else None,
        _changed(first, last, a, b),
        (float(first.words_payload), float(last.words_payload)),
        _differing(first, last),
    )


def _epochs(runs: pd.DataFrame, epochs: Frames) -> "pd.Series[float]":
    """The timed epochs of some launches, each by its slowest rank."""
    known = [slowest_rank(epochs[run]) for run in runs.run_id if run in epochs]
    return pd.concat(known) if known else pd.Series(dtype=float)


def _changed(
    first: "pd.Series[Any]", last: "pd.Series[Any]", a: Side, b: Side
) -> list[tuple[str, float, float]]:
    """Seconds of the median epoch by phase and op on both sides, the largest change first."""
    sides = [
        _parts(side.epochs[run.run_id], side.ledgers[run.run_id])
        for run, side in ((first, a), (last, b))
        if run.run_id in side.epochs and run.run_id in side.ledgers
    ]
    if len(sides) < 2:
        return []
    keys = sorted({*sides[0], *sides[1]})
    rows = [(key, sides[0].get(key, 0.0), sides[1].get(key, 0.0)) for key in keys]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))


def _parts(epochs: pd.DataFrame, ledger: pd.DataFrame) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (phase, op, _), seconds in of_launch(epochs, ledger).items():
        sums[f"{phase} {op}"] = sums.get(f"{phase} {op}", 0.0) + float(seconds)
    return sums


def _differing(first: "pd.Series[Any]", last: "pd.Series[Any]") -> dict[str, tuple[str, str]]:
    names = [*CONFIGURATION, "launch", *(f"provenance.{name}" for name in TOLD)]
    texts = {
        name: tuple("" if pd.isna(run[name]) else str(run[name]) for run in (first, last)) for name in names
    }
    return {name: (one, two) for name, (one, two) in texts.items() if one != two}
