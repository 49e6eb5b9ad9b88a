"""Ranks the configurations of a task on a machine, and says how sure the order is.

Competitors that ran in the same blocks are compared by the ratios within the blocks, others by their launches. The
intervals of a ranking are corrected for all pairs of its configurations, because the launches that are compared also
chose the winner. With too few blocks or launches, the interval is unknown and the order undecided.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from harness.formatting import format_count, format_seconds, format_three_digits
from harness.results.contributed_rows import qualify_blocks
from harness.results.launch_intervals import (
    Interval,
    compare_launches,
    compute_median_interval,
    correct_level,
    count_needed_launches,
    count_pairs,
    judge_ratio,
)
from harness.results.statistics import compare_configurations, list_launch_seconds
from harness.site.rules import COMPARED, EARLIER, OPEN

EPOCH = "epoch_seconds_median"
MIN_SEEDS = 5
"""The fewest seeds for which a time to a target counts."""


@dataclass(frozen=True)
class Contender:
    """One configuration among those that are compared."""

    name: str
    """The strategy, with what else distinguishes it."""
    strategy: str
    runs: pd.DataFrame
    seconds: float
    """The median over launches."""
    ratio: float = 1.0
    """Its time over the fastest one's."""
    interval: Interval | None = None
    """Covers the ratio; None without enough launches or blocks."""


@dataclass(frozen=True)
class Ranking:
    """The configurations of a task on one machine and one number of ranks, the fastest first."""

    task: str
    machine: str
    ranks: int
    results: str
    contenders: Sequence[Contender]

    @property
    def is_decided(self) -> bool:
        """True if every other configuration is slower than the first one."""
        return all(judge_ratio(each.interval) == "slower" for each in self.contenders[1:])

    def describe_winner(self) -> str:
        """Return who wins, by how much, and how sure that is, in one sentence."""
        first, *others = self.contenders
        if not others:
            return f"{first.name}: {format_seconds(first.seconds)} an epoch; nothing to compare with"
        second = others[0]
        margin = f"{format_three_digits(second.ratio)} times as fast as {second.name}"
        if second.interval:
            margin += f" ({format_ratio(second.interval)})"
        told = f"{first.name}: {format_seconds(first.seconds)} an epoch, {margin}"
        verdicts = [judge_ratio(each.interval) for each in others]
        close, undecided = verdicts.count("within noise"), verdicts.count("undecided")
        if close:
            told += f"; {format_count(close, 'other is', 'others are')} too close to call"
        if undecided:
            needed = count_needed_launches(find_level(self.contenders))
            told += f"; {undecided} undecided (an interval needs {needed} launches of each)"
        return told


def format_ratio(interval: Interval | None) -> str:
    """Format the interval of a ratio; an empty text without one."""
    return f"{format_three_digits(interval.low)} to {format_three_digits(interval.high)}" if interval else ""


def rank_runs(rows: pd.DataFrame) -> list[Ranking]:
    """Return the rankings of all ranked runs, by task, machine, number of ranks, and promised results."""
    ranked = qualify_blocks(rows[rows.is_ranked & rows[EPOCH].notna()])
    rankings = []
    groups: Iterable[tuple[Any, pd.DataFrame]] = ranked.groupby(list(COMPARED), sort=True, dropna=False)
    for (task, machine, ranks, results), runs in groups:
        rankings.append(Ranking(str(task), str(machine), int(ranks), str(results), rank_configurations(runs)))
    return rankings


def rank_configurations(runs: pd.DataFrame) -> list[Contender]:
    """Return the configurations of runs that may be compared, the fastest first, each compared with the fastest.

    Blocks may say that another one is faster than the one with the lowest median; it then takes its place.
    """
    names = name_configurations(runs)
    contenders = [
        Contender(str(name), str(group["strategy.name"].iloc[0]), group, float(group[EPOCH].median()))
        for name, group in runs.groupby(names, sort=False)
    ]
    first = min(contenders, key=lambda each: (each.seconds, each.name))
    level = find_level(contenders)
    compared = _compare_others(first, contenders, level)
    for _ in contenders:  # ends even if blocks say that each of three is faster than another one
        fastest = min(compared, key=lambda each: each.ratio, default=first)
        if fastest.ratio >= 1:
            break
        first = next(each for each in contenders if each.name == fastest.name)
        compared = _compare_others(first, contenders, level)
    return [first, *sorted(compared, key=lambda each: (each.ratio, each.name))]


def find_level(contenders: Sequence[Contender]) -> float:
    """Return the level of each interval of a ranking."""
    return correct_level(count_pairs(len(contenders)))


def _compare_others(first: Contender, contenders: Sequence[Contender], level: float) -> list[Contender]:
    return [compare_contenders(first, each, level) for each in contenders if each is not first]


def compare_contenders(first: Contender, other: Contender, level: float) -> Contender:
    """Return the other configuration with the ratio of its time to the time of the first."""
    ratio, interval = compare_configurations(first.runs, other.runs, level).estimate
    return replace(other, ratio=ratio, interval=interval)


def name_configurations(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return the name of each run's configuration: its strategy, and the open settings that distinguish it."""
    names = runs["strategy.name"].astype(object) + " " + runs["grid"].astype(object)
    for setting in (each for each in OPEN if each not in ("strategy.name", "grid")):
        if runs[setting].nunique(dropna=False) < 2:
            continue
        texts = (
            runs[setting]
            .astype(object)
            .map(lambda value, setting=setting: _format_setting(setting, str(value)))
        )
        is_needed = texts.groupby(names).transform("nunique") > 1
        names = names.where(~is_needed, names + " " + texts)
    return names


def _format_setting(setting: str, text: str) -> str:
    name = setting.rpartition(".")[2]
    return (
        "defaults"
        if text in ("{}", "")
        else text
        if name in ("params", "partition", "order")
        else f"{name}={text}"
    )


@dataclass(frozen=True)
class TargetResult:
    """The times in which the seeds of a configuration reached an accuracy."""

    name: str
    machine: str
    ranks: int
    target: float
    seeds: int
    reached: int
    seconds: float | None
    """The median over all seeds; None if half of them or more did not reach the target."""
    interval: Interval | None
    remark: str
    """Why it does not count; empty if it does."""


def summarize_targets(rows: pd.DataFrame) -> list[TargetResult]:
    """Return the time to target of each configuration over all its seeds. A seed that did not reach it counts."""
    is_sound = ~rows.marks.str.contains(f"broken|copied|{EARLIER}")
    wanted = rows[is_sound & (rows["training.target"] > 0) & (rows.source == "measured")]
    wanted = wanted.astype({"seconds_to_target": float})
    found = []
    groups: Iterable[tuple[Any, pd.DataFrame]] = wanted.groupby(["on_machine", "ranks", "training.target"])
    for (machine, ranks, target), runs in groups:
        for name, group in runs.groupby(name_configurations(runs), sort=False):
            found.append(_summarize_target(str(name), str(machine), int(ranks), float(target), group))
    return sorted(found, key=lambda each: (bool(each.remark), each.seconds is None, each.seconds or 0.0))


def _summarize_target(name: str, machine: str, ranks: int, target: float, runs: pd.DataFrame) -> TargetResult:
    by_seed = runs.groupby("seed").seconds_to_target.median().fillna(float("inf"))
    seeds = sorted(int(seed) for seed in by_seed.index)
    remark = ""
    if len(seeds) < MIN_SEEDS:
        remark = f"fewer than {MIN_SEEDS} seeds"
    elif seeds != list(range(len(seeds))):
        remark = "the seeds are not 0, 1, 2 and so on: others may have been left out"
    median = float(by_seed.median())
    reached = int((by_seed < float("inf")).sum())
    interval = compute_median_interval(by_seed)
    return TargetResult(
        name,
        machine,
        ranks,
        target,
        len(seeds),
        reached,
        median if median < float("inf") else None,
        interval,
        remark,
    )


@dataclass(frozen=True)
class VersionTime:
    """The time of a configuration at one commit."""

    task: str
    machine: str
    ranks: int
    name: str
    commit: str
    seconds: float
    ratio: float | None
    """The time over the time at the commit before; None for the first commit."""
    verdict: str


def list_versions(rows: pd.DataFrame) -> list[VersionTime]:
    """Return the times of configurations that ran at several commits on one machine, the earliest commit first."""
    timed = rows[(rows.is_ranked | (rows.marks == EARLIER)) & rows[EPOCH].notna()]
    found: list[VersionTime] = []
    keys = ["task", "on_machine", "ranks"]
    changed = timed.groupby(keys)["provenance.commit"].transform("nunique") > 1
    groups: Iterable[tuple[Any, pd.DataFrame]] = timed[changed].groupby(keys)
    for (task, machine, ranks), runs in groups:
        for name, group in runs.groupby(name_configurations(runs), sort=False):
            started = group.groupby("provenance.commit")["provenance.started"].min().sort_values()
            launches = [
                list_launch_seconds(group[group["provenance.commit"] == commit]) for commit in started.index
            ]
            if len(launches) < 2:
                continue
            level = correct_level(len(launches) - 1)
            for commit, seconds, before in zip(started.index, launches, [None, *launches], strict=False):
                ratio, verdict = _compare_versions(before, seconds, level)
                found.append(
                    VersionTime(
                        str(task),
                        str(machine),
                        int(ranks),
                        str(name),
                        str(commit),
                        float(seconds.median()),
                        ratio,
                        verdict,
                    )
                )
    return found


def _compare_versions(
    before: "pd.Series[float] | None", after: "pd.Series[float]", level: float
) -> tuple[float | None, str]:
    """Return the ratio of a version's time to the time of the version before, and its verdict."""
    if before is None:
        return None, ""
    ratio, interval = compare_launches(before, after, level)
    return ratio, judge_ratio(interval)
