"""The page of a task: the answer for each machine, charts, and every configuration."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from harness.formatting import (
    format_bytes,
    format_count,
    format_seconds,
    format_share,
    format_si,
    format_three_digits,
)
from harness.site.page_parts import (
    NUMBER,
    Cell,
    ColumnHeading,
    Content,
    Figure,
    Page,
    Section,
    SiteTable,
    link_to,
    make_number,
)
from harness.site.ranking import (
    EPOCH,
    Ranking,
    TargetResult,
    format_ratio,
    name_configurations,
    summarize_targets,
)
from harness.site.site_charts import draw_fronts, draw_scaling
from harness.untrusted import make_file_stem

MOST_DRAWN_MACHINES = 4
"""The most machines of a task whose fronts are drawn: those with the most ranked runs."""
KINDS = {
    "exact": "exact strategies",
    "estimator": "estimators",
    "approximate": "approximate strategies",
    "another model": "strategies that train another model",
    "": "strategies that are not installed here",
}
"""Strategies that promise the same kind of results."""
SOURCES = {
    "external": "Other programs",
    "emulated": "Emulated",
    "predicted": "Predicted",
    "published": "Published",
}
"""The titles of the sections of numbers that were not measured by the harness. They are never ranked."""

MEDIANS = (EPOCH, "bytes_received", "peak_bytes", "accuracy_test")
"""The columns of which a configuration shows the median over its launches."""
RESULT_HEADINGS = (
    ColumnHeading("configuration"),
    ColumnHeading("ranks", NUMBER),
    ColumnHeading("epoch", NUMBER),
    ColumnHeading("over the fastest", NUMBER),
    ColumnHeading("interval", NUMBER),
    ColumnHeading("launches", NUMBER),
    ColumnHeading("received", NUMBER),
    ColumnHeading("memory", NUMBER),
    ColumnHeading("test accuracy", NUMBER),
    ColumnHeading("results"),
    ColumnHeading("not ranked because", is_wide=True),
)


def make_task_page(task: str, content: Content) -> Page:
    """Return the page of a task: the answer for each machine, charts, and every configuration."""
    runs = content.rows[content.rows.task == task]
    measured = runs[runs.source == "measured"]
    first = (measured if len(measured) else runs).iloc[0]
    facts = [
        f"{int(first['graph.vertices']):,} vertices" if pd.notna(first["graph.vertices"]) else "size unknown",
        *([f"{int(first['graph.nonzeros']):,} nonzeros"] if pd.notna(first["graph.nonzeros"]) else []),
        f"{format_count(len(measured), 'measured run')} from {format_count(measured.contributor.nunique(), 'group')}",
        *([f"graph {first['provenance.graph_hash'][:12]}"] if first["provenance.graph_hash"] else []),
    ]
    sections = []
    scaling = draw_scaling(runs[runs.is_ranked | (runs.source != "measured")], content.kept)
    if scaling:
        text = (
            "The fastest grid of each strategy, on the same axis for all machines. Markers are launches; a click "
            "opens the run."
        )
        figures = [Figure(machine, Markup(svg)) for machine, svg in scaling.items()]
        sections.append(Section("scaling", "Epoch time over ranks", [text], figures=figures))
    order = measured.groupby("on_machine").is_ranked.sum().sort_values(ascending=False).index
    for number, machine in enumerate(order):
        sections.append(_make_machine_section(task, str(machine), number, measured, content))
    targets = summarize_targets(measured)
    if targets:
        sections.append(_make_target_section(targets))
    for source, title in SOURCES.items():
        some = runs[runs.source == source]
        if len(some):
            sections.append(Section(source, title, [_describe_source(source)], _tabulate_others(some)))
    return Page("tasks", make_file_stem(task), content.tasks[task], facts, sections)


def _make_machine_section(
    task: str, machine: str, number: int, measured: pd.DataFrame, content: Content
) -> Section:
    runs = measured[measured.on_machine == machine]
    rankings = [each for each in content.rankings if (each.task, each.machine) == (task, machine)]
    sentences = [
        f"On {format_count(each.ranks, 'rank')}, among {KINDS[each.results]}: {each.describe_winner()}."
        for each in sorted(rankings, key=lambda each: (-each.ranks, each.results))
        if len(each.contenders) > 1
    ]
    figures = []
    if number < MOST_DRAWN_MACHINES and (ranked := runs[runs.is_ranked])[EPOCH].notna().any():
        largest = ranked[ranked.ranks == ranked.ranks.max()]
        titles = ("Time and elements", "Time and memory", "Time and accuracy")
        figures = [
            Figure(f"{title}, {format_count(int(largest.ranks.iloc[0]), 'rank')}", Markup(svg))
            for title, svg in zip(titles, draw_fronts(largest, content.kept), strict=False)
        ]
    return Section(
        f"machine-{number}",
        machine,
        sentences or ["No two configurations can be compared here."],
        _tabulate_configurations(rankings, runs),
        figures,
    )


def _tabulate_configurations(rankings: Sequence[Ranking], runs: pd.DataFrame) -> SiteTable:
    """Return every configuration on a machine: rankings in order, from the most ranks, and then what is not ranked."""
    cells, other_cells = [], []
    for ranking in sorted(rankings, key=lambda each: (-each.ranks, list(KINDS).index(each.results))):
        for each in ranking.contenders:
            cells.append(
                _make_result_row(
                    each.runs, each.name, format_three_digits(each.ratio), format_ratio(each.interval)
                )
            )
    ranked = {run for ranking in rankings for each in ranking.contenders for run in each.runs.index}
    others = runs[~runs.index.isin(ranked)]
    for (_, name), launches in others.groupby(["ranks", name_configurations(others)], sort=False):
        other_cells.append(_make_result_row(launches, str(name), "", ""))
    return SiteTable(RESULT_HEADINGS, [*cells, *sorted(other_cells, key=_get_ranks_and_time)])


def _get_ranks_and_time(row: Sequence[Cell]) -> tuple[float, float]:
    """Return a key that sorts by ranks from the most, and by time."""
    return -(row[1].value or 0), row[2].value if row[2].value is not None else float("inf")


def _make_result_row(launches: pd.DataFrame, name: str, ratio: str, interval: str) -> list[Cell]:
    submission, run_id, ranks, results = (
        launches[column].iloc[0] for column in ("submission", "run_id", "ranks", "results")
    )
    seconds, received, memory, accuracy = launches[list(MEDIANS)].median()
    marks = sorted({mark for text in launches.marks for mark in text.split("; ") if mark})
    statuses = sorted({status for status in launches.status if status != "ok"})
    return [
        Cell(name, f"../submissions/{submission}.html#run-{run_id}"),
        make_number(ranks, lambda ranks: str(int(ranks))),
        make_number(seconds, format_seconds),
        Cell(ratio),
        Cell(interval),
        Cell(str(len(launches)), value=len(launches)),
        make_number(received, format_bytes),
        make_number(memory, format_bytes),
        make_number(accuracy, format_share),
        Cell(results or "unknown"),
        Cell("; ".join([*(mark for mark in marks if mark != "not ok"), *statuses])),
    ]


def _make_target_section(targets: Sequence[TargetResult]) -> Section:
    headings = (
        ColumnHeading("configuration"),
        ColumnHeading("machine", is_wide=True),
        ColumnHeading("ranks", NUMBER),
        ColumnHeading("target", NUMBER),
        ColumnHeading("median time", NUMBER),
        ColumnHeading("interval", NUMBER),
        ColumnHeading("seeds that reached it", NUMBER),
        ColumnHeading("does not count because", is_wide=True),
    )
    cells = [
        [
            Cell(each.name),
            Cell(each.machine, link_to("machines", each.machine)),
            Cell(str(each.ranks), value=each.ranks),
            Cell(format_share(each.target), value=each.target),
            Cell(format_seconds(each.seconds), value=each.seconds) if each.seconds else Cell("not reached"),
            Cell(
                f"{format_seconds(each.interval.low)} to {format_seconds(each.interval.high)}"
                if each.interval and each.interval.high < float("inf")
                else ""
            ),
            Cell(f"{each.reached} of {each.seeds}", value=each.reached),
            Cell(each.remark),
        ]
        for each in targets
    ]
    text = (
        "Training time until the test accuracy first reached the target, over all seeds. A seed that did not reach "
        "it counts."
    )
    return Section("targets", "Time to a target", [text], SiteTable(headings, cells))


def _describe_source(source: str) -> str:
    return {
        "external": "Epoch times of other programs, from their logs.",
        "emulated": "Recorded runs, timed again on the links of another machine.",
        "predicted": "Times by a machine card; no machine ran them.",
        "published": "Values that papers print.",
    }[source]


def _tabulate_others(runs: pd.DataFrame) -> SiteTable:
    headings = (
        ColumnHeading("configuration"),
        ColumnHeading("machine", is_wide=True),
        ColumnHeading("ranks", NUMBER),
        ColumnHeading("epoch", NUMBER),
        ColumnHeading("received", NUMBER),
        ColumnHeading("remark"),
    )
    groups: Iterable[tuple[Any, pd.DataFrame]] = runs.groupby(
        ["on_machine", "ranks", name_configurations(runs)], sort=False
    )
    cells = [
        [
            Cell(
                str(name), f"../submissions/{launches.submission.iloc[0]}.html#run-{launches.run_id.iloc[0]}"
            ),
            Cell(str(machine), link_to("machines", str(machine))),
            make_number(ranks, lambda ranks: str(int(ranks))),
            make_number(launches[EPOCH].median(), format_seconds),
            make_number(launches.elements_received.median(), format_si),
            Cell("; ".join(sorted({*launches.marks, *launches.status} - {"", "ok"}))),
        ]
        for (machine, ranks, name), launches in groups
    ]
    return SiteTable(headings, sorted(cells, key=lambda row: (row[3].value is None, row[3].value or 0.0)))
