"""The page of a strategy and the page of a machine: their places in all rankings."""

from collections.abc import Sequence

import pandas as pd

from harness.formatting import format_count, format_seconds, format_three_digits
from harness.results.launch_intervals import judge_ratio
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
    format_versions,
    link_to,
    make_winner_row,
)
from harness.site.ranking import VersionTime
from harness.untrusted import make_file_stem


def make_strategy_page(name: str, content: Content) -> Page:
    """Return the page of a strategy: its place in every ranking, and how its times changed between commits."""
    runs = content.rows[content.rows["strategy.name"] == name]
    headings = (
        ColumnHeading("task", is_wide=True),
        ColumnHeading("machine", is_wide=True),
        ColumnHeading("ranks", NUMBER),
        ColumnHeading("configuration"),
        ColumnHeading("epoch", NUMBER),
        ColumnHeading("place", NUMBER),
        ColumnHeading("over the fastest", NUMBER),
        ColumnHeading("than the fastest"),
    )
    cells = []
    for ranking in content.rankings:
        for place, each in enumerate(ranking.contenders, start=1):
            if each.strategy == name:
                cells.append(
                    [
                        Cell(content.tasks[ranking.task], link_to("tasks", ranking.task)),
                        Cell(ranking.machine, link_to("machines", ranking.machine)),
                        Cell(str(ranking.ranks), value=ranking.ranks),
                        Cell(each.name),
                        Cell(format_seconds(each.seconds), value=each.seconds),
                        Cell(f"{place} of {len(ranking.contenders)}", value=place),
                        Cell(format_three_digits(each.ratio), value=each.ratio),
                        Cell("" if place == 1 else judge_ratio(each.interval)),
                    ]
                )
    sections = [Section("rankings", "Rankings", table=SiteTable(headings, cells))]
    if not cells:
        sections = [Section("rankings", "Rankings", ["No run of it is ranked."])]
    history = [each for each in content.versions if each.name.split()[0] == name]
    if history:
        sections.append(_make_history_section(history, content))
    facts = [
        f"results: {runs.results.iloc[0] or 'unknown'}",
        describe_proof(runs),
        format_count(len(runs), "run"),
    ]
    return Page("strategies", make_file_stem(name), name, facts, sections)


def _make_history_section(history: Sequence[VersionTime], content: Content) -> Section:
    headings = (
        ColumnHeading("task", is_wide=True),
        ColumnHeading("configuration"),
        ColumnHeading("machine", is_wide=True),
        ColumnHeading("commit"),
        ColumnHeading("epoch", NUMBER),
        ColumnHeading("over the commit before", NUMBER),
        ColumnHeading("verdict"),
    )
    cells = [
        [
            Cell(content.tasks[each.task], link_to("tasks", each.task)),
            Cell(each.name),
            Cell(each.machine),
            Cell(each.commit[:10]),
            Cell(format_seconds(each.seconds), value=each.seconds),
            Cell(format_three_digits(each.ratio), value=each.ratio) if each.ratio else Cell(""),
            Cell(each.verdict),
        ]
        for each in history
    ]
    text = "Commits ran at different times, so what else the machine did then is part of a ratio."
    return Section("history", "From commit to commit", [text], SiteTable(headings, cells))


def make_machine_page(name: str, content: Content) -> Page:
    """Return the page of a machine: what it is, and who wins on it."""
    runs = content.rows[content.rows.on_machine == name]
    first = runs.iloc[-1]
    facts = [
        f"{int(value):,} {label}" if isinstance(value, int | float) else f"{label} {value}"
        for label, value in (
            ("cores", first["provenance.cores"]),
            ("threads per rank", first["provenance.threads"]),
            ("card", first["machine.name"]),
            ("host", first["provenance.host"]),
            ("network", first["provenance.network"]),
        )
        if pd.notna(value) and value != ""
    ]
    rankings = [each for each in content.rankings if each.machine == name]
    table = SiteTable(WINNER_HEADINGS, [make_winner_row(each, content, "../") for each in rankings])
    versions = sorted({text for text in runs["provenance.versions"] if text})
    sections = [
        Section("winners", "Who wins here", () if rankings else ["No run is ranked here."], table),
        Section("software", "Software", codes=[format_versions(text) for text in versions[:5]]),
    ]
    return Page("machines", make_file_stem(name), name, facts, sections)
