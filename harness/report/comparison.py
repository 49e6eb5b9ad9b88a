"""What the page of several packs says in addition: who wins on each task and machine, and what was verified."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import pandas as pd

from harness.base.formatting import (
    TimeUnit,
    choose_time_unit,
    format_count,
    format_seconds,
    format_share,
    format_three_digits,
)
from harness.report.pack.verification import BROKEN, UNKNOWN, Verification
from harness.report.result_tables import Heading, ResultTable
from harness.results.launch_intervals import Interval
from harness.results.ranking import (
    EPOCH,
    NOT_OK,
    RULES,
    UNCHECKED,
    Ranking,
    describe_tasks,
    format_ratio,
    name_configurations,
    rank_runs,
    summarize_targets,
)

DATASET = "dataset.name"
KINDS = {
    "exact": "exact strategies",
    "estimator": "estimators",
    "approximate": "approximate strategies",
    "another model": "strategies that train another model",
    "": "strategies that are not installed here",
}
"""Strategies that promise the same kind of results."""
MEANINGS = {
    **{rule.mark: rule.meaning for rule in RULES},
    UNCHECKED: "it was predicted or emulated by a machine card that was never compared with a run",
}
"""Why a run with a mark is not ranked."""


class ReadPack(NamedTuple):
    """A pack that was read and verified, or refused."""

    file: str
    """The name of the archive."""
    found: Verification | None = None
    """None if it was refused."""
    refusal: str = ""
    folder: str = ""
    """The folder of its group in a repository of packs; empty if the pack itself was named."""


class TaskComparison(NamedTuple):
    """The runs of one task on all machines."""

    title: str
    answers: list[tuple[str, str]]
    """Who wins: the machine, and a sentence."""
    tables: list[ResultTable]


class PackComparison(NamedTuple):
    """What the page says about several packs."""

    facts: list[str]
    tasks: list[TaskComparison]
    tables: list[ResultTable]
    """The packs, those that were refused, and the marks of runs that are not ranked."""


def compare_packs(rows: pd.DataFrame, packs: Sequence[ReadPack]) -> PackComparison:
    """Compare the runs of packs, which the rules have marked. The tasks with the most machines come first."""
    measured = rows[rows.source == "measured"]
    rankings, titles = rank_runs(rows), describe_tasks(rows)
    tasks = sorted(
        (-runs.on_machine.nunique(), -int(runs.is_ranked.sum()), titles[str(task)], str(task))
        for task, runs in measured.groupby("task")
    )
    compared = [
        _compare_task(
            title, measured[measured.task == task], [each for each in rankings if each.task == task]
        )
        for *_, title, task in tasks
    ]
    facts = [
        f"from {format_count(rows.contributor.nunique(), 'group')}",
        f"{int(rows.is_ranked.sum()):,} of {format_count(len(measured), 'measured run')} ranked",
    ]
    tables = (_tabulate_packs(rows, packs), _tabulate_refused(packs), _tabulate_marks(rows))
    return PackComparison(facts, compared, [table for table in tables if table])


def _compare_task(title: str, runs: pd.DataFrame, rankings: Sequence[Ranking]) -> TaskComparison:
    answers = [
        (
            f"{ranking.machine}, {format_count(ranking.ranks, 'rank')}, {KINDS[ranking.results]}",
            ranking.describe_winner(),
        )
        for ranking in _choose_largest(rankings)
    ]
    return TaskComparison(
        title, answers, [_tabulate_configurations(runs, rankings), *_tabulate_targets(runs)]
    )


def _choose_largest(rankings: Sequence[Ranking]) -> list[Ranking]:
    """Return one ranking for each machine and kind of results: the most ranks on which there are competitors."""
    chosen: dict[tuple[str, str], Ranking] = {}
    for each in sorted(rankings, key=lambda each: each.ranks):
        if len(each.contenders) > 1:
            chosen[each.machine, each.results] = each
    return sorted(chosen.values(), key=lambda each: (each.machine, list(KINDS).index(each.results)))


def _tabulate_configurations(runs: pd.DataFrame, rankings: Sequence[Ranking]) -> ResultTable:
    """Tabulate all configurations, the most ranks first. Each machine is a column, next to those of other groups."""
    machines = sorted(set(runs.on_machine[runs[EPOCH].notna()]))
    unit = choose_time_unit(runs[EPOCH].max() if machines else 1.0)
    standings = _describe_standings(rankings)
    names, has_sources = name_configurations(runs), (runs.sources != "").any()
    groups = [launches for _, launches in runs.groupby(["ranks", names])]
    groups.sort(key=lambda launches: (-launches.ranks.iloc[0], launches[EPOCH].fillna(inf).min()))
    headings = [
        Heading("strategy", number=False, brief="name"),
        Heading("configuration", number=False, brief="name"),
        Heading("ranks", number=True, brief="name"),
        Heading("results", number=False),
        *(Heading(f"{machine} ({unit.name})", number=True, brief="time") for machine in machines),
        *([Heading("launches from", number=False)] if has_sources else []),
        Heading("not ranked because", number=False),
    ]
    rows = [
        [
            *_name_configuration(launches, names[launches.index[0]]),
            *(
                _format_time(launches[launches.on_machine == machine], standings, unit)
                for machine in machines
            ),
            *(["; ".join(sorted({*launches.sources} - {""}))] if has_sources else []),
            _list_marks(launches),
        ]
        for launches in groups
    ]
    caption = f"Epoch times, {runs[DATASET].iloc[0]}"
    return ResultTable(caption, headings, rows, [list(launches.run_id) for launches in groups])


def _name_configuration(launches: pd.DataFrame, name: str) -> list[str]:
    first = launches.iloc[0]
    strategy = str(first["strategy.name"])
    return [strategy, name.removeprefix(strategy).strip(), str(first.ranks), first.results or "unknown"]


def _describe_standings(rankings: Sequence[Ranking]) -> dict[Any, str]:
    """Return for each ranked run how its configuration compares with the fastest one; empty without competitors."""
    standings: dict[Any, str] = {}
    for ranking in rankings:
        first, *others = ranking.contenders
        standings |= dict.fromkeys(first.runs.index, "fastest" if others else "")
        for each in others:
            interval = format_ratio(each.interval) or "undecided"
            text = f"{format_three_digits(each.ratio)}× ({interval})"
            standings |= dict.fromkeys(each.runs.index, text)
    return standings


def _format_time(launches: pd.DataFrame, standings: Mapping[Any, str], unit: TimeUnit) -> str:
    """Format the median time of a configuration on a machine, and how it compares with the fastest one there."""
    ranked = launches[launches.index.isin(list(standings))]
    seconds = (ranked if len(ranked) else launches)[EPOCH].dropna()
    if seconds.empty:
        return ""
    standing = standings[ranked.index[0]] if len(ranked) else "not ranked"
    return ", ".join(filter(None, [format_three_digits(seconds.median() * unit.per_second), standing]))


def _list_marks(launches: pd.DataFrame) -> str:
    """List why runs of a configuration are not ranked, with the status of runs that did not end well."""
    marks = {mark for text in launches.marks for mark in text.split("; ")} - {"", NOT_OK}
    return "; ".join([*sorted(marks), *sorted({*launches.status} - {"ok"})])


def _tabulate_targets(runs: pd.DataFrame) -> list[ResultTable]:
    """Tabulate the times in which configurations reached an accuracy, if any run has a target."""
    headings = [
        Heading("strategy", number=False),
        Heading("machine", number=False),
        *(Heading(text, number=True) for text in ("ranks", "target", "median time", "interval")),
        Heading("seeds that reached it", number=True),
        Heading("does not count because", number=False),
    ]
    rows = [
        [
            each.name,
            each.machine,
            str(each.ranks),
            format_share(each.target),
            format_seconds(each.seconds) if each.seconds else "not reached",
            _format_times(each.interval),
            f"{each.reached} of {each.seeds}",
            each.remark,
        ]
        for each in summarize_targets(runs)
    ]
    caption = f"Training time to a test accuracy, {runs[DATASET].iloc[0]}"
    return [ResultTable(caption, headings, rows)] if rows else []


def _format_times(interval: Interval | None) -> str:
    if interval is None or interval.high == inf:
        return ""
    return f"{format_seconds(interval.low)} to {format_seconds(interval.high)}"


def _tabulate_packs(rows: pd.DataFrame, packs: Sequence[ReadPack]) -> ResultTable:
    headings = [
        Heading("pack", number=False),
        Heading("group", number=False),
        Heading("runs", number=True),
        Heading("ranked", number=True),
        Heading("what is broken, or cannot be verified here", number=False),
    ]
    cells = [
        [
            pack.file,
            pack.found.pack.contributor,
            f"{len(pack.found.runs):,}",
            f"{int(rows.is_ranked[rows.pack_number == number].sum()):,}",
            "; ".join(_list_remarks(pack.found, int((rows.pack_number == number).sum()))),
        ]
        for number, pack in enumerate(packs, start=1)
        if pack.found
    ]
    return ResultTable("Packs", headings, cells)


def _list_remarks(found: Verification, shown: int) -> list[str]:
    """List the first reason of each check that does not hold for all measured runs, and the runs of an earlier pack."""
    checked = [run for run in found.runs if run.record is None or run.record.record["source"] == "measured"]
    remarks = [
        f"{row['check']}: {', '.join(f'{row[verdict]} {verdict}' for verdict in (BROKEN, UNKNOWN) if row[verdict])}"
        f" ({row['reason']})"
        for row in replace(found, runs=checked).tabulate()
        if row["reason"]
    ]
    repeated = sum(run.record is not None for run in found.runs) - shown
    if repeated:
        remarks.append(f"{format_count(repeated, 'run is', 'runs are')} in an earlier pack of the group too")
    return remarks


def _tabulate_refused(packs: Sequence[ReadPack]) -> ResultTable | None:
    refused = [[each.file, each.refusal] for each in packs if not each.found]
    headings = [Heading("pack", number=False), Heading("why", number=False)]
    return ResultTable("Refused packs, of which nothing is shown", headings, refused) if refused else None


def _tabulate_marks(rows: pd.DataFrame) -> ResultTable | None:
    headings = [
        Heading("mark", number=False),
        Heading("runs", number=True),
        Heading("a run has it if", number=False),
    ]
    cells = [[mark, f"{count:,}", MEANINGS[mark]] for mark, count in count_marks(rows).items()]
    return ResultTable("Runs that are not ranked", headings, cells) if cells else None


def count_marks(rows: pd.DataFrame) -> dict[str, int]:
    """Return how many runs have each mark."""
    marks = rows.marks[rows.marks != ""].str.split("; ").explode()
    return {str(mark): int(count) for mark, count in marks.value_counts().items()}
