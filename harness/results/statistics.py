"""Statistics of repeated measurements.

The time of an epoch is the time of its slowest rank. A launch is summarized by the median of its timed epochs, and also
by the papers' protocol and by the sum of its phases. Several launches are summarized by their median and range, and by
a confidence interval of the median (`harness.results.launch_intervals`). Ratios are never averaged, and outliers are
never dropped.

Runs whose ranks were forked from one process share its imported libraries and their addresses. They count as one
launch, whose time is the median of theirs.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from harness.results.epoch_parts import Frames, split_launch
from harness.results.launch_intervals import (
    LEVEL,
    Interval,
    RatioEstimate,
    compare_blocks,
    compare_launches,
    compute_median_interval,
    correct_level,
    judge_ratio,
)
from harness.results.run_summary import find_slowest
from harness.results.schema import RUNS
from harness.results.table_schema import Columns

if TYPE_CHECKING:
    pass

CONFIGURATION = [
    column.name for column in RUNS.columns if column.part == "spec" and column.name not in ("launch", "spec")
]
"""The columns in which launches of one configuration agree."""
COMPARED = [name for name in CONFIGURATION if name != "seed"]
"""The columns in which launches agree whose times are compared: each launch may have its own seed."""
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
    numbers, slowest = find_slowest(epochs)
    return pd.Series(slowest, pd.Index(numbers, name="epoch"), name="seconds")


BLOCK, PROCESS = "provenance.block", "provenance.process"


def name_launches(runs: pd.DataFrame) -> "pd.Series[Any]":
    """Return for each run the name of its launch, which it shares with runs that were forked from the same process."""
    process = runs[PROCESS].fillna("")
    return process.where(process != "", runs.index.astype(str).to_series(runs.index))


def list_launch_seconds(runs: pd.DataFrame) -> "pd.Series[float]":
    """Return the epoch time of each launch."""
    return runs.epoch_seconds_median.groupby(name_launches(runs), sort=False).median()


def compute_block_ratios(first: pd.DataFrame, second: pd.DataFrame) -> "pd.Series[float]":
    """Return the ratio of the second configuration's time to the first's in each block that both have.

    Blocks whose runs were forked from one process are one block.
    """
    blocks = [runs[BLOCK].fillna("").replace("", pd.NA) for runs in (first, second)]  # groups have no null
    one, two = (
        runs.epoch_seconds_median.groupby(block).median()
        for runs, block in zip((first, second), blocks, strict=True)
    )
    ratios = (two / one).dropna()
    process = first[PROCESS].groupby(blocks[0]).first().reindex(ratios.index).fillna("")
    return ratios.groupby(process.where(process != "", ratios.index.to_series())).median()


class Comparison(NamedTuple):
    """The ratio of two configurations' times, and what it was computed from."""

    estimate: RatioEstimate
    launches: tuple[int, int]
    """The launches of the first and of the second configuration."""
    blocks: int = 0
    """The number of blocks; 0 if launches are compared without pairs."""


def compare_configurations(first: pd.DataFrame, second: pd.DataFrame, level: float = LEVEL) -> Comparison:
    """Compare two configurations by their measured runs: within blocks, if these give an interval, or by launches."""
    one, two = (list_launch_seconds(runs) for runs in (first, second))
    launches = len(one), len(two)
    ratios = compute_block_ratios(first, second)
    if compute_median_interval(ratios, level):
        return Comparison(compare_blocks(ratios, level), launches, len(ratios))
    return Comparison(compare_launches(one, two, level), launches)


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


def summarize_configurations(runs: pd.DataFrame, agree: Sequence[str] = CONFIGURATION) -> pd.DataFrame:
    """Return one row for each configuration and source, in the order of `runs`, which summarizes its launches.

    The launches of a configuration agree in the columns `agree`.
    """
    shown = runs.assign(source=runs.source.where(runs.source != "", "measured"))
    keys = ["source", *agree]
    number = shown.groupby(keys, sort=False, dropna=False).ngroup()
    launches = shown.groupby(number)
    ok = shown.status == "ok"
    failed = shown.status[~ok].groupby(number[~ok]).agg(lambda names: ", ".join(sorted(set(names))))
    done, of = shown[ok].astype(dict.fromkeys((*SUMMARIZED, *TIMES), float)), number[ok]
    each_launch = done.epoch_seconds_median.groupby([of, name_launches(done)])
    seconds = each_launch.median().groupby(level=0)
    intervals = {key: found for key, values in seconds if (found := compute_median_interval(values.dropna()))}
    configuration = shown.loc[~number.duplicated(), keys].reset_index(drop=True)
    summary = {
        "run_ids": launches.run_id.agg(list),
        "launches": launches.size(),
        "processes": seconds.size(),
        "ok": of.value_counts().reindex(configuration.index, fill_value=0),
        "statuses": failed.reindex(configuration.index, fill_value=""),
        "epoch_seconds_median": seconds.median(),
        "low": done.epoch_seconds_median.groupby(of).min(),
        "high": done.epoch_seconds_median.groupby(of).max(),
        "interval_low": pd.Series({key: found.low for key, found in intervals.items()}, dtype=float),
        "interval_high": pd.Series({key: found.high for key, found in intervals.items()}, dtype=float),
        "epoch_seconds_paper": done.epoch_seconds_paper.groupby(of).mean(),
        **done[SUMMARIZED].groupby(of).median(),
    }
    return configuration.assign(**{name: pd.Series(values) for name, values in summary.items()})


# Competitors: configurations that ran on the same nodes in one allocation, one after the other. Times may change by a
# large factor between allocations, so only ratios within a block show which competitor is faster.

CHOSEN = ("strategy.name", "strategy.params", "grid", "protocol")
"""The columns in which competitors may differ, in addition to the sizes of the axes."""


class CompetitorPair(NamedTuple):
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
    """Covers the median; all intervals of the table do so together with a probability of at least 95 %."""


def compare_competitors(runs: pd.DataFrame) -> list[CompetitorPair]:
    """Compare all pairs of configurations that share a block and differ only in strategy, parameters and grid."""
    done = _select_measured(runs)
    done = done[done[BLOCK].fillna("") != ""]
    differs = [name for name in COMPARED if name in CHOSEN or name.startswith("grid.")]
    alike = [name for name in COMPARED if name not in differs]
    found: list[tuple[tuple[str, str, str], pd.Series[float]]] = []
    for _, case in done.groupby(alike, sort=False, dropna=False):
        about = f"{case['dataset.name'].iloc[0]}, {case.ranks.iloc[0]} ranks"
        groups = [group for _, group in case.groupby(differs, sort=False, dropna=False)]
        for a, b in combinations(groups, 2):
            if len(ratios := compute_block_ratios(a, b)):
                one, two = (f"{each['strategy.name'].iloc[0]} {each['grid'].iloc[0]}" for each in (a, b))
                found.append(((one, two, about), ratios))
    level = correct_level(len(found))
    return [CompetitorPair(*names, list(ratios), *compare_blocks(ratios, level)) for names, ratios in found]


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
    launches: tuple[int, int]
    """The launches of A and of B."""
    runs: tuple[int, int]
    """The runs of A and of B, which are more if several were forked from one process."""
    seconds: tuple[float, float]
    """The medians over launches."""
    ratio: float
    interval: Interval | None
    """Covers the ratio; all intervals of the table do so together with a probability of at least 95 %."""
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
    """Compare all configurations that both sides measured. Launches are not paired by their numbers or seeds.

    Two sides of one configuration each are compared even if the configurations differ.
    """
    first, second = (_select_measured(side.runs).reset_index(drop=True) for side in (a, b))
    both = pd.concat([runs[COMPARED] for runs in (first, second)], ignore_index=True)
    number = both.groupby(COMPARED, sort=False, dropna=False).ngroup().to_numpy()
    one, two = number[: len(first)], number[len(first) :]
    common = [each for each in dict.fromkeys(one) if each in two]
    pairs = [(first[one == each], second[two == each]) for each in common]
    if len(set(one)) == len(set(two)) == 1:
        pairs = [(first, second)]
    level = correct_level(len(pairs))
    return [compute_difference(*pair, a, b, level) for pair in pairs]


def _select_measured(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[(runs.status == "ok") & runs.epoch_seconds_median.notna()]


def compute_difference(
    before: pd.DataFrame, after: pd.DataFrame, a: Side, b: Side, level: float = LEVEL
) -> Difference:
    """Compare two configurations by their measured runs."""
    comparison = compare_configurations(before, after, level)
    first, last = before.iloc[0], after.iloc[0]
    seconds = (float(list_launch_seconds(runs).median()) for runs in (before, after))
    return Difference(
        str(first.label),
        comparison.launches,
        (len(before), len(after)),
        (next(seconds), next(seconds)),
        *comparison.estimate,
        _rank_changes(first, last, a, b),
        (float(first.elements_received), float(last.elements_received)),
        _list_differences(first, last),
    )


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
