"""What pages of the site are made of: sections with sentences, charts and tables, and the content that they show."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from harness.registry import is_built_in
from harness.site.contributions import Contribution
from harness.site.ranking import Ranking, VersionTime
from harness.submission.verification import HOLDS
from harness.untrusted import make_file_stem

NUMBER = True
"""The second value of the heading of a column of numbers."""


class Cell(NamedTuple):
    """A cell of a table: its text, the page that it links to, and the number that it is sorted by."""

    text: str
    link: str = ""
    value: float | None = None


class ColumnHeading(NamedTuple):
    """The heading of a column."""

    text: str
    is_number: bool = False
    is_wide: bool = False


class SiteTable(NamedTuple):
    """A table of a page."""

    headings: Sequence[ColumnHeading]
    rows: Sequence[Sequence[Cell]]


class Figure(NamedTuple):
    """A chart with its title."""

    title: str
    svg: Markup


class RunPanel(NamedTuple):
    """What the page of a submission shows of one run."""

    run_id: str
    label: str
    pairs: Sequence[tuple[str, str]]
    spec: str


@dataclass(frozen=True)
class Section:
    """A section of a page."""

    name: str
    title: str
    paragraphs: Sequence[str] = ()
    table: SiteTable | None = None
    figures: Sequence[Figure] = ()
    runs: Sequence[RunPanel] = ()
    codes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A page: its place on the site and its sections."""

    folder: str
    """The folder of the site; empty for the pages at its top."""
    name: str
    title: str
    facts: Sequence[str] = ()
    sections: Sequence[Section] = ()
    has_search: bool = False

    @property
    def path(self) -> Path:
        """The file, relative to the site."""
        return Path(self.folder) / f"{self.name}.html"

    @property
    def up(self) -> str:
        """The way to the top of the site."""
        return "../" if self.folder else ""


@dataclass(frozen=True)
class Content:
    """What all pages are made of."""

    rows: pd.DataFrame
    rankings: Sequence[Ranking]
    versions: Sequence[VersionTime]
    contributions: Sequence[Contribution]
    kept: Path
    """The folder of charts that were drawn before."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """The description of each task."""


def link_to(folder: str, name: str, start: str = "../") -> str:
    """Return the link to a page of a folder of the site."""
    return f"{start}{folder}/{make_file_stem(name)}.html"


def make_number(value: Any, describe: Callable[[float], str]) -> Cell:
    """Return the cell of a number; an empty one without a number."""
    return Cell("") if pd.isna(value) else Cell(describe(float(value)), value=float(value))


def format_versions(text: str) -> str:
    """Format the versions of software, which a row has as JSON."""
    return ", ".join(f"{name} {version}" for name, version in json.loads(text).items())


# Parts that several pages share.

WINNER_HEADINGS = (
    ColumnHeading("task", is_wide=True),
    ColumnHeading("machine", is_wide=True),
    ColumnHeading("ranks", NUMBER),
    ColumnHeading("results"),
    ColumnHeading("who wins, by how much", is_wide=True),
    ColumnHeading("sure"),
)


def make_winner_row(ranking: Ranking, content: Content, up: str) -> list[Cell]:
    """Return the row of a ranking in the table of winners."""
    has_competitors = len(ranking.contenders) > 1
    return [
        Cell(content.tasks[ranking.task], link_to("tasks", ranking.task, up)),
        Cell(ranking.machine, link_to("machines", ranking.machine, up)),
        Cell(str(ranking.ranks), value=ranking.ranks),
        Cell(ranking.results or "unknown"),
        Cell(ranking.describe_winner()),
        Cell(("yes" if ranking.is_decided else "no") if has_competitors else ""),
    ]


def describe_proof(runs: pd.DataFrame) -> str:
    """Describe how many measured runs trained with code that was checked in full, and why others did not count."""
    measured = runs[runs.source == "measured"]
    if measured.empty:
        return "not measured"
    answers = [json.loads(text).get("proof", ["", ""]) for text in measured.checks]
    proven = sum(verdict == HOLDS for verdict, _ in answers)
    if proven == len(answers):
        return (
            "built in"
            if is_built_in(str(runs["strategy.name"].iloc[0]))
            else "checked in full, as the same code"
        )
    reasons = sorted({reason for verdict, reason in answers if verdict != HOLDS and reason})
    told = f": {reasons[0]}" if reasons else ""
    return f"{'unproven' if not proven else f'{len(answers) - proven} of {len(answers)} runs unproven'}{told}"
