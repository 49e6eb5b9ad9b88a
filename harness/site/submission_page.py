"""The page of a submission: what was verified, and every run with its spec, command and environment."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.formatting import format_count, format_seconds, format_share
from harness.site.contributions import Contribution
from harness.site.page_parts import (
    NUMBER,
    Cell,
    ColumnHeading,
    Page,
    RunPanel,
    Section,
    SiteTable,
    format_versions,
)
from harness.site.ranking import EPOCH
from harness.submission.verification import BROKEN, CHECKS, HOLDS, UNKNOWN
from harness.validation import clip_line

LONGEST_COMMAND = 300
"""The letters of a command that a page shows: a series of runs may name a hundred files."""
SHOWN = (
    *("run_id", "label", "status", "source", EPOCH, "accuracy_test", "marks", "checks", "on_machine", "spec"),
    *(
        f"provenance.{name}"
        for name in ("command", "commit", "started", "host", "versions", "env", "allocator")
    ),
)
"""The columns that the panel of a run shows."""


def make_submission_page(contribution: Contribution, rows: pd.DataFrame) -> Page:
    """Return the page of a submission: what was verified, and every run with its spec, command and environment."""
    runs = rows.sort_values("place")
    answers = [json.loads(text) for text in runs.checks]
    headings = (
        ColumnHeading("check"),
        *(ColumnHeading(verdict, NUMBER) for verdict in (HOLDS, BROKEN, UNKNOWN)),
        ColumnHeading("what holds", is_wide=True),
        ColumnHeading("the first reason", is_wide=True),
    )
    cells = []
    for check, meaning in CHECKS.items():
        found = [answer[check] for answer in answers if check in answer]
        counts = [sum(verdict == each for verdict, _ in found) for each in (HOLDS, BROKEN, UNKNOWN)]
        first = sorted((verdict != BROKEN, reason) for verdict, reason in found if reason)
        cells.append(
            [
                Cell(check),
                *(Cell(str(count), value=count) for count in counts),
                Cell(meaning),
                Cell(first[0][1] if first else ""),
            ]
        )
    text = "Times and losses cannot be verified: only the same runs on the same machine could repeat them."
    sections = [Section("checks", "What was verified", [text], SiteTable(headings, cells))]
    if contribution.unreadable:
        reasons = [[Cell(each.run), Cell(each.reason)] for each in contribution.unreadable]
        table = SiteTable((ColumnHeading("run"), ColumnHeading("why", is_wide=True)), reasons)
        sections.append(Section("unreadable", "Runs that cannot be read", table=table))
    panels = [_make_run_panel(run) for run in runs[list(SHOWN)].to_dict("records")]
    sections.append(Section("runs", "Runs", runs=panels))
    facts = [contribution.file, format_count(len(runs), "run"), f"checksum begins with {contribution.digest}"]
    return Page(
        "submissions", contribution.digest, f"Submission of {contribution.contributor}", facts, sections
    )


def _make_run_panel(run: Mapping[Any, Any]) -> RunPanel:
    broken = [
        f"{check}: {verdict}{f', {reason}' if reason else ''}"
        for check, (verdict, reason) in json.loads(run["checks"]).items()
        if verdict != HOLDS
    ]
    pairs = {
        "status": run["status"],
        "source": run["source"],
        "epoch": "" if pd.isna(run[EPOCH]) else format_seconds(run[EPOCH]),
        "test accuracy": "" if pd.isna(run["accuracy_test"]) else format_share(run["accuracy_test"]),
        "not ranked because": run["marks"],
        "checks that do not hold": "; ".join(broken),
        "command": clip_line(run["provenance.command"], LONGEST_COMMAND),
        "commit": run["provenance.commit"],
        "started": ""
        if pd.isna(run["provenance.started"])
        else f"{run['provenance.started']:%Y-%m-%d %H:%M} UTC",
        "machine": run["on_machine"],
        "host": run["provenance.host"],
        "versions": format_versions(run["provenance.versions"]) if run["provenance.versions"] else "",
        "environment": run["provenance.env"],
        "allocator": run["provenance.allocator"],
    }
    return RunPanel(
        run["run_id"],
        run["label"],
        [(name, text) for name, text in pairs.items() if text and text != "{}"],
        run["spec"],
    )
