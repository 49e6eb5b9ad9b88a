"""Statistics of repeated measurements.

The time of an epoch is the time of its slowest rank. A launch is summarized by the median of its timed epochs, and also
by the papers' protocol and by the sum of its phases. Several launches are summarized by their median and range, and by
a confidence interval of the median, which exists for six or more launches. Ratios are never averaged, and outliers are
never dropped.
"""

from collections.abc import Collection
from itertools import combinations
from math import comb, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from harness.ledger import Op, Phase
from harness.results.epoch_parts import Frames, split_launch
from harness.results.schema import PAPER_EPOCHS, RUNS, WARMUP_DROPPED
from harness.results.table_schema import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIGURATION = [
    column.name for column in RUNS.columns if column.part == "spec" and column.name not in ("launch", "spec")
]
"""The columns in which launches of one configuration agree."""
ON_SHARED_CORES = [f"provenance.{name}" for name in ("env", "ranks_on_host", "threads", "cores")]
"""The columns of provenance that determine whether ranks shared cores."""


def find_oversubscribed(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each run whether the ranks of a host had more threads than available cores.

    A record without the number of ranks on a host counts as a run on one host, unless Slurm placed its ranks.
    """
    is_step = runs["provenance.env"].fillna("").str.contains("HARNESS_STEP")
    ranks = runs["provenance.ranks_on_host"].fillna(runs.ranks.where(~is_step))
    threads = runs["provenance.threads"].fillna(runs["machine.threads_per_rank"])
    return (ranks * threads > runs["provenance.cores"]).fillna(False).astype(bool)


def find_slowest_seconds(epochs: Columns) -> "pd.Series[float]":
    """Return the seconds of the slowest rank for each timed epoch."""
    numbers, slowest = _find_slowest(epochs)
    return pd.Series(slowest, pd.Index(numbers, name="epoch"), name="seconds")


def _find_slowest(epochs: Columns) -> "tuple[NDArray[Any], NDArray[np.float64]]":
    """Return the numbers of the timed epochs, and the seconds of the slowest rank in each."""
    epoch, seconds = np.asarray(epochs["epoch"]), np.asarray(epochs["seconds"], dtype=float)
    numbers, place = np.unique(epoch[epoch >= 0], return_inverse=True)
    slowest = np.full(len(numbers), np.nan)
    np.fmax.at(slowest, place, seconds[epoch >= 0])
    return numbers, slowest


def compute_median_epoch(epochs: Columns) -> float:
    """Return the epoch time of one launch: the median over its timed epochs."""
    _, slowest = _find_slowest(epochs)
    known = slowest[~np.isnan(slowest)]
    return float(np.median(known)) if len(known) else nan


def compute_paper_epoch(epochs: Columns) -> float | None:
    """Return the papers' epoch time: the mean over ten epochs without the first two; None for at most two epochs."""
    numbers, slowest = _find_slowest(epochs)
    counted = slowest[(numbers >= WARMUP_DROPPED) & (numbers < PAPER_EPOCHS)]
    if not len(counted):
        return None
    known = counted[~np.isnan(counted)]
    return float(known.mean()) if len(known) else nan


def compute_phase_sum(ledger: Columns) -> float | None:
    """Return the sum of phases that Plexus reports: named phases, mean over ranks, median over epochs."""
    epoch, rank, seconds = (np.asarray(ledger[name]) for name in ("epoch", "rank_id", "seconds"))
    is_timed = epoch >= 0
    if not is_timed.any():
        return None
    numbers, place = np.unique(epoch[is_timed], return_inverse=True)
    first, _ = number_pairs(place, rank[is_timed])
    ranks = np.bincount(place[first])
    named = np.where(find_texts(ledger["phase"], (Phase.OTHER,)), 0.0, seconds)
    return float(np.median(np.bincount(place, named[is_timed], len(numbers)) / ranks))


def compute_op_share(ledger: Columns, ops: Collection[Op]) -> float | None:
    """Return the share of these ops in the time of all ranks over all timed epochs; None without timed epochs."""
    seconds = np.where(np.asarray(ledger["epoch"]) >= 0, np.asarray(ledger["seconds"]), 0.0)
    total = seconds.sum()
    return float(seconds[find_texts(ledger["op"], ops)].sum() / total) if total else None


def number_pairs(one: "NDArray[Any]", other: "NDArray[Any]") -> "tuple[NDArray[Any], NDArray[Any]]":
    """Return the first row of each different pair of values, and for each row the number of its pair."""
    (_, numbers), (values, others) = (np.unique(column, return_inverse=True) for column in (one, other))
    _, first, place = np.unique(numbers * len(values) + others, return_index=True, return_inverse=True)
    return first, place


def find_texts(column: Collection[Any], texts: Collection[str]) -> "NDArray[np.bool_]":
    """Return for each value of a column whether it is one of the texts."""
    return np.fromiter(map(frozenset(texts).__contains__, column), bool, len(column))


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float

    def divide(self, other: "Interval") -> "Interval":
        """Return an interval that covers the ratio of the values that both intervals cover."""
        return Interval(self.low / other.high, self.high / other.low)


def judge_ratio(ratio: Interval | None) -> str:
    """Return "slower" or "faster" from the interval of a ratio of times, "within noise" if it contains 1.

    Without an interval, return "undecided".
    """
    if ratio is None:
        return "undecided"
    return "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "within noise"


def compute_median_interval(values: "pd.Series[float]", level: float = 0.95) -> Interval | None:
    """Return an interval that covers the median with at least this probability, for any distribution.

    The ends are order statistics: the k-th smallest and the k-th largest value, with the largest k for which
    2 (C(n,0) + ... + C(n,k-1)) / 2^n <= 1 - level. Returns None if the full range does not reach the level.
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
SUMMARIZED = [
    "phase_seconds_mean",
    "computing_share",
    "communicating_share",
    "vertices_per_second",
    "steps",
    "messages",
    "elements_received",
    "bytes_received",
    "elements_payload",
    "elements_payload_formula",
    "final_loss",
    "accuracy_train",
    "accuracy_valid",
    "accuracy_test",
    "seconds_to_target",
    "evaluation_seconds",
]
"""The columns that are summarized by their median over the launches of a configuration."""


def summarize_configurations(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each configuration and source, in the order of `runs`, which summarizes its launches."""
    shown = runs.assign(source=runs.source.where(runs.source != "", "measured"))
    keys = ["source", *CONFIGURATION]
    number = shown.groupby(keys, sort=False, dropna=False).ngroup()
    launches = shown.groupby(number)
    ok = shown.status == "ok"
    failed = shown.status[~ok].groupby(number[~ok]).agg(lambda names: ", ".join(sorted(set(names))))
    done, of = shown[ok].astype(dict.fromkeys((*SUMMARIZED, *TIMES), float)), number[ok]
    seconds = done.epoch_seconds_median.groupby(of)
    intervals = {key: found for key, values in seconds if (found := compute_median_interval(values.dropna()))}
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
        **done[SUMMARIZED].groupby(of).median(),
    }
    return configuration.assign(**{name: pd.Series(values) for name, values in summary.items()})


# Competitors: configurations that ran on the same nodes in one allocation, one after the other. Times may change by a
# large factor between allocations, so only ratios within a block show which competitor is faster.

CHOSEN = ("strategy.name", "strategy.params", "grid", "protocol")
"""The columns in which competitors may differ, in addition to the sizes of the axes."""


class Rivals(NamedTuple):
    """A comparison of two competitors. A ratio above 1 means that B is slower."""

    a: str
    b: str
    case: str
    """The graph and the ranks of both."""
    ratios: list[float]
    """B over A in each block."""
    ratio: float
    """The median of the ratios."""
    interval: Interval | None
    """Covers the median with a probability of at least 95 %; None for fewer than six blocks."""


def compare_rivals(runs: pd.DataFrame) -> list[Rivals]:
    """Compare all pairs of configurations that share a block and differ only in strategy, parameters and grid."""
    done = _select_measured(runs)
    done = done[done["provenance.block"].fillna("") != ""]
    differs = [name for name in CONFIGURATION if name in CHOSEN or name.startswith("grid.")]
    alike = [name for name in CONFIGURATION if name not in differs]
    found = []
    for _, case in done.groupby(alike, sort=False, dropna=False):
        names = case["strategy.name"] + " " + case["grid"]
        keys = pd.Series([str(tuple(row)) for row in case[differs].itertuples(index=False)], index=case.index)
        seconds = case.pivot_table(
            "epoch_seconds_median", "provenance.block", keys, aggfunc="first", sort=False
        )
        name_of = dict(zip(keys, names, strict=True))
        about = f"{case['dataset.name'].iloc[0]}, {case.ranks.iloc[0]} ranks"
        for a, b in combinations(seconds.columns, 2):
            ratios = (seconds[b] / seconds[a]).dropna()
            if len(ratios):
                median, interval = float(ratios.median()), compute_median_interval(ratios)
                found.append(Rivals(name_of[a], name_of[b], about, list(ratios), median, interval))
    return found


# Comparisons of two sets of runs: the same configurations before and after a change, or two single runs.

COMPARED_PROVENANCE = (
    "commit",
    "host",
    "cpu",
    "gpu",
    "cores",
    "threads",
    "engine",
    "versions",
    "env",
    "store_manifest",
)
"""The parts of provenance that a comparison reports if they differ."""


class Side(NamedTuple):
    """One side of a comparison: runs, and their tables by run id."""

    runs: pd.DataFrame
    epochs: Frames
    ledgers: Frames


class Difference(NamedTuple):
    """The difference of one configuration between both sides. A ratio above 1 means that B is slower."""

    label: str
    pairs: int
    seconds: tuple[float, float]
    ratio: float
    interval: Interval | None
    """Covers the ratio of the medians over all epochs with a probability of at least 90 %; None for too few epochs."""
    parts: list[tuple[str, float, float]]
    """Phase and op, with the seconds of A and of B; the largest change first."""
    elements_received: tuple[float, float]
    """Elements received per epoch, on the rank with the most."""
    differs: dict[str, tuple[str, str]]
    """The settings and the provenance that differ, with the values of A and of B."""

    @property
    def verdict(self) -> str:
        """Whether B is slower or faster, within noise, or undecided for lack of an interval."""
        return judge_ratio(self.interval)


def compare_sides(a: Side, b: Side) -> list[Difference]:
    """Compare all configurations that both sides measured, by launches with equal specs.

    Two single runs are compared even if their specs differ.
    """
    first, second = (_select_measured(side.runs) for side in (a, b))
    if len(first) == len(second) == 1:
        return [_compare_pairs(first, second, a, b)]
    common = [run for run in first.run_id if run in set(second.run_id)]
    before, after = (runs.set_index("run_id", drop=False).loc[common] for runs in (first, second))
    groups = before.groupby(list(CONFIGURATION), sort=False, dropna=False)
    return [_compare_pairs(some, after.loc[some.run_id], a, b) for _, some in groups]


def _select_measured(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[(runs.status == "ok") & runs.epoch_seconds_median.notna()]


def _compare_pairs(before: pd.DataFrame, after: pd.DataFrame, a: Side, b: Side) -> Difference:
    """Compare one configuration, whose rows in both tables are pairs in order."""
    ratios = pd.Series(after.epoch_seconds_median.to_numpy() / before.epoch_seconds_median.to_numpy())
    return compute_difference(before, after, a, b)._replace(ratio=float(ratios.median()))


def compute_difference(before: pd.DataFrame, after: pd.DataFrame, a: Side, b: Side) -> Difference:
    """Compare two configurations whose launches are not paired: the ratio is that of the medians."""
    epochs = (_collect_epochs(runs, side.epochs) for runs, side in ((before, a), (after, b)))
    one, two = (compute_median_interval(seconds, 0.95) for seconds in epochs)
    first, last = before.iloc[0], after.iloc[0]
    seconds = tuple(float(runs.epoch_seconds_median.median()) for runs in (before, after))
    return Difference(
        str(first.label),
        min(len(before), len(after)),
        (seconds[0], seconds[1]),
        seconds[1] / seconds[0],
        two.divide(one) if one and two else None,
        _rank_changes(first, last, a, b),
        (float(first.elements_received), float(last.elements_received)),
        _list_differences(first, last),
    )


def _collect_epochs(runs: pd.DataFrame, epochs: Frames) -> "pd.Series[float]":
    """Return the timed epochs of several launches, each with the seconds of its slowest rank.

    Where epochs are unknown, as in the rows of a site, return the epoch time of each launch.
    """
    known = [find_slowest_seconds(epochs[run]) for run in runs.run_id if run in epochs]
    return pd.concat(known) if known else runs.epoch_seconds_median


def _rank_changes(
    first: "pd.Series[Any]", last: "pd.Series[Any]", a: Side, b: Side
) -> list[tuple[str, float, float]]:
    """Return the seconds of the median epoch by phase and op on both sides, the largest change first."""
    sides = [
        _sum_parts(side.epochs[run.run_id], side.ledgers[run.run_id])
        for run, side in ((first, a), (last, b))
        if run.run_id in side.epochs and run.run_id in side.ledgers
    ]
    if len(sides) < 2:
        return []
    keys = sorted({*sides[0], *sides[1]})
    rows = [(key, sides[0].get(key, 0.0), sides[1].get(key, 0.0)) for key in keys]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))


def _sum_parts(epochs: pd.DataFrame, ledger: pd.DataFrame) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (phase, op, _), seconds in split_launch(epochs, ledger).items():
        sums[f"{phase} {op}"] = sums.get(f"{phase} {op}", 0.0) + float(seconds)
    return sums


def _list_differences(first: "pd.Series[Any]", last: "pd.Series[Any]") -> dict[str, tuple[str, str]]:
    names = [*CONFIGURATION, "launch", *(f"provenance.{name}" for name in COMPARED_PROVENANCE)]
    texts = {
        name: tuple("" if pd.isna(run[name]) else str(run[name]) for run in (first, last)) for name in names
    }
    return {name: (one, two) for name, (one, two) in texts.items() if one != two}


def find_persistent_bytes(memory: pd.DataFrame) -> "pd.Series[float]":
    """Return for each run in the table `memory` the persistent bytes of the rank that has the most."""
    of_ranks = memory.groupby(["run_id", "rank_id"]).persistent_bytes.sum()
    return of_ranks.groupby("run_id").max().astype(float)
