"""The first page of the site: who wins where, and the lists of all pages."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from harness.formatting import format_count
from harness.site.contributions import Contribution
from harness.site.page_parts import (
    NUMBER,
    WINNER_HEADINGS,
    Cell,
    ColumnHeading,
    Content,
    Page,
    Section,
    SiteTable,
    describe_proof,
    link_to,
    make_winner_row,
)
from harness.site.ranking import Ranking
from harness.submission.verification import BROKEN


def make_index(content: Content) -> Page:
    """Return the first page: who wins where, and the lists of all pages."""
    rows, accepted = content.rows, [each for each in content.contributions if not each.refusal]
    refused = [each for each in content.contributions if each.refusal]
    groups = len({each.contributor for each in accepted})
    strategies = format_count(rows["strategy.name"].nunique(), "strategy", "strategies")
    title = f"{format_count(len(rows), 'run')} by {strategies} from {format_count(groups, 'group')}"
    facts = [
        f"{format_count(len(accepted), 'submission')} verified",
        *([f"{len(refused)} refused"] if refused else []),
        f"{int(rows.is_ranked.sum()):,} runs ranked",
        f"{format_count(len(content.tasks), 'task')}",
    ]
    sections = [
        Section(
            "winners",
            "Who wins",
            [
                "For each task and machine, the largest number of ranks on which several configurations were ranked. "
                "An answer is sure if every interval of a ratio excludes 1."
            ],
            SiteTable(
                WINNER_HEADINGS,
                [make_winner_row(each, content, "") for each in choose_rankings(content.rankings)],
            ),
        ),
        Section("tasks", "Tasks", table=tabulate_tasks(content)),
        Section("strategies", "Strategies", table=tabulate_strategies(content)),
        Section("machines", "Machines", table=tabulate_machines(content)),
        Section("submissions", "Submissions", table=tabulate_submissions(accepted)),
    ]
    if refused:
        cells = [[Cell(each.file), Cell(each.refusal)] for each in refused]
        table = SiteTable((ColumnHeading("archive"), ColumnHeading("why", is_wide=True)), cells)
        sections.append(Section("refused", "Refused archives", ["Nothing of them is on this site."], table))
    sections.append(
        Section(
            "rows",
            "All rows",
            ["rows.parquet and rows.json have one row for each run. In Python:"],
            codes=['import harness\nrows = harness.load("site/rows.parquet").runs\nrows[rows.is_ranked]'],
        )
    )
    return Page("", "index", title, facts, sections, has_search=True)


def choose_rankings(rankings: Iterable[Ranking]) -> list[Ranking]:
    """Return one ranking for each task, machine and kind of results: the largest number of ranks with competitors."""
    chosen: dict[tuple[str, str, str], Ranking] = {}
    for each in rankings:
        key = (each.task, each.machine, each.results)
        if len(each.contenders) > 1 and (key not in chosen or each.ranks > chosen[key].ranks):
            chosen[key] = each
    return sorted(chosen.values(), key=lambda each: not each.is_decided)


def tabulate_tasks(content: Content) -> SiteTable:
    """Return the table of tasks, those with the most runs first."""
    headings = (
        ColumnHeading("task", is_wide=True),
        ColumnHeading("runs", NUMBER),
        ColumnHeading("ranked", NUMBER),
        ColumnHeading("groups", NUMBER),
        ColumnHeading("strategies", NUMBER),
        ColumnHeading("ranks"),
        ColumnHeading("not measured here", is_wide=True),
    )
    cells = []
    for task, runs in content.rows.groupby("task"):
        others = runs.source[runs.source != "measured"].value_counts()
        told = ", ".join(f"{count} {source}" for source, count in others.items())
        counts = (
            len(runs),
            int(runs.is_ranked.sum()),
            runs.contributor.nunique(),
            runs["strategy.name"].nunique(),
        )
        cells.append(
            [
                Cell(content.tasks[str(task)], link_to("tasks", str(task), "")),
                *(Cell(f"{count:,}", value=count) for count in counts),
                Cell(_format_range(runs.ranks)),
                Cell(told),
            ]
        )
    return SiteTable(headings, sorted(cells, key=lambda row: -(row[1].value or 0)))


def tabulate_strategies(content: Content) -> SiteTable:
    """Return the table of strategies, by name."""
    headings = (
        ColumnHeading("strategy"),
        ColumnHeading("results"),
        ColumnHeading("runs", NUMBER),
        ColumnHeading("ranked", NUMBER),
        ColumnHeading("groups", NUMBER),
        ColumnHeading("first", NUMBER),
        ColumnHeading("proof", is_wide=True),
    )
    won: dict[str, int] = {}
    for ranking in content.rankings:
        if len(ranking.contenders) > 1:
            won[ranking.contenders[0].strategy] = won.get(ranking.contenders[0].strategy, 0) + 1
    cells = []
    for name, runs in content.rows.groupby("strategy.name"):
        counts = (
            len(runs),
            int(runs.is_ranked.sum()),
            runs.contributor.nunique(),
            won.get(str(name), 0),
        )
        cells.append(
            [
                Cell(str(name), link_to("strategies", str(name), "")),
                Cell(runs.results.iloc[0] or "unknown"),
                *(Cell(f"{count:,}", value=count) for count in counts),
                Cell(describe_proof(runs)),
            ]
        )
    return SiteTable(headings, cells)


def tabulate_machines(content: Content) -> SiteTable:
    """Return the table of machines, by contributor."""
    headings = (
        ColumnHeading("machine"),
        ColumnHeading("card"),
        ColumnHeading("runs", NUMBER),
        ColumnHeading("ranked", NUMBER),
        ColumnHeading("tasks", NUMBER),
        ColumnHeading("ranks"),
    )
    cells = []
    for name, runs in content.rows.groupby("on_machine"):
        counts = (len(runs), int(runs.is_ranked.sum()), runs.task.nunique())
        cells.append(
            [
                Cell(str(name), link_to("machines", str(name), "")),
                Cell(runs["machine.name"].iloc[0]),
                *(Cell(f"{count:,}", value=count) for count in counts),
                Cell(_format_range(runs.ranks)),
            ]
        )
    return SiteTable(headings, cells)


def tabulate_submissions(accepted: Sequence[Contribution]) -> SiteTable:
    """Return the table of submissions."""
    headings = (
        ColumnHeading("submission"),
        ColumnHeading("group"),
        ColumnHeading("archive"),
        ColumnHeading("runs", NUMBER),
        ColumnHeading("broken", NUMBER),
    )
    cells = []
    for each in accepted:
        assert each.rows is not None
        is_broken = [f'"{BROKEN}"' in checks for checks in each.rows["checks"].to_pylist()]
        broken = sum(is_broken) + len({run.run for run in each.unreadable})
        cells.append(
            [
                Cell(each.digest, link_to("submissions", each.digest, "")),
                Cell(each.contributor),
                Cell(each.file),
                Cell(f"{len(each.rows):,}", value=len(each.rows)),
                Cell(f"{broken:,}", value=broken),
            ]
        )
    return SiteTable(headings, cells)


def _format_range(ranks: "pd.Series[Any]") -> str:
    known = sorted({int(each) for each in ranks.dropna()})
    return ", ".join(map(str, known)) if len(known) <= 6 else f"{known[0]} to {known[-1]}"
