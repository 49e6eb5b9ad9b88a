"""The history of `harness report --history`: what changed over several results, and since which commit."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.commands.answer import Answer
from harness.commands.comparing import UNDECIDED, format_ratio_interval
from harness.commands.output import Block, Headline, Table, TableColumn, View
from harness.errors import UserError
from harness.formatting import format_bytes, format_count, format_seconds, format_si
from harness.progress import OnStep, ignore_step, report_steps

if TYPE_CHECKING:
    from harness.results.history import History, Series


MILLIONTH = 1e-6


def format_chance(chance: float) -> str:
    """Format the chance of a false alarm: 1 in 2,400; none for counts."""
    if chance == 0:
        return "none"
    return f"1 in {1 / chance:,.0f}" if chance > MILLIONTH else "below 1 in a million"


CHANGE_COLUMNS = (
    TableColumn("label", "configuration"),
    TableColumn("quantity", "quantity"),
    TableColumn("verdict", "is"),
    TableColumn("step", "by", "{:.3g}x".format, is_number=True),
    TableColumn("interval", "interval", format_ratio_interval, is_number=True),
    TableColumn("since", "since"),
    TableColumn("subject", "commit", may_wrap=True, may_drop=True),
    TableColumn("chance", "false alarm", format_chance, is_number=True, may_drop=True),
    TableColumn("first", "first", is_number=True, may_drop=True),
    TableColumn("last", "last", is_number=True, may_drop=True),
    TableColumn("ratio", "last/first", "{:.3g}".format, is_number=True),
)
BROKEN_COLUMNS = (
    TableColumn("label", "configuration"),
    TableColumn("status", "is"),
    TableColumn("since", "since"),
    TableColumn("subject", "commit", may_wrap=True, may_drop=True),
)
SAME_COLUMNS = tuple(
    column
    for column in CHANGE_COLUMNS
    if column.key in ("label", "quantity", "verdict", "first", "last", "ratio")
)
FORMATS = {"epoch_seconds_median": format_seconds, "elements_received": format_si, "peak_bytes": format_bytes}
CHANGES, BROKEN = "What changed", "What no longer runs"


@dataclass(frozen=True)
class HistoryAnswer(Answer):
    """What changed over several results. A ratio above 1 means that the newer results are slower, or larger."""

    history: "History"
    subjects: Mapping[str, str] = field(default_factory=dict)
    """The subjects of commits, if a checkout has them."""
    path: Path | None = None
    """The page that was written."""

    @property
    def changed(self) -> "list[Series]":
        """The series that have a step, the largest last step first."""
        changed = [each for each in self.history.series if each.steps]
        return sorted(changed, key=lambda each: -max(each.steps[-1].ratio, 1 / (each.steps[-1].ratio or 1)))

    def to_document(self) -> Any:
        return {
            "commits": [commit._asdict() for commit in self.history.commits],
            "series": [self._make_row(each) for each in [*self.changed, *self._unchanged]],
            "broken": self._list_broken(),
            "page": str(self.path) if self.path else None,
        }

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(self.to_document()["series"]).drop(columns=["interval", "steps", "points"])

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Headline(self.headline)
        yield from self.list_tables()
        if view.all:
            yield Table(SAME_COLUMNS, list(map(self._make_row, self._unchanged)), "What did not change")
        elif self._unchanged:
            yield f"... {format_count(len(self._unchanged), 'other series', 'other series')} (--all)"
        yield from self.notes
        if self.path:
            yield f"Wrote {self.path}, {format_bytes(self.path.stat().st_size)}"

    @property
    def headline(self) -> str:
        """How many series changed, and in which direction."""
        history = self.history
        counts = Counter((each.quantity.title, each.verdict) for each in self.changed)
        parts = [f"{quantity} {verdict} in {count}" for (quantity, verdict), count in counts.items()]
        parts += [f"{len(history.broken)} no longer run"] if history.broken else []
        series = format_count(len(history.series), "series", "series")
        over = format_count(len(history.commits), "commit")
        return f"{series} over {over}: {', '.join(parts) or 'nothing changed'}"

    @property
    def notes(self) -> list[str]:
        """What limits the conclusions."""
        from harness.results.history import MANY_COMMITS

        history, notes = self.history, []
        undecided = sum(each.verdict == UNDECIDED for each in history.series)
        if undecided:
            notes.append(
                f"{format_count(undecided, 'series is', 'series are')} undecided: a step needs two launches before "
                "it and two after it."
            )
        if len(history.commits) < MANY_COMMITS and any(not each.quantity.is_count for each in self.changed):
            notes.append(
                f"With fewer than {MANY_COMMITS} commits a slow day looks like a slow commit. Measure the old commit "
                "again and add its results: then differences between days count as noise."
            )
        if history.single:
            some = format_count(history.single, "configuration was", "configurations were")
            notes.append(f"{some} measured at one commit only.")
        return notes

    def list_tables(self) -> list[Table]:
        """Return the tables of what changed and of what no longer runs."""
        return [
            Table(CHANGE_COLUMNS, list(map(self._make_row, self.changed)), CHANGES),
            Table(BROKEN_COLUMNS, self._list_broken(), BROKEN),
        ]

    @property
    def _unchanged(self) -> "list[Series]":
        return [each for each in self.history.series if not each.steps]

    def _list_broken(self) -> list[dict[str, Any]]:
        return [
            {"label": each.label, "status": each.status, **self._name_commit(each.since)}
            for each in self.history.broken
        ]

    def _name_commit(self, at: int) -> dict[str, str | None]:
        commit = self.history.commits[at]
        return {"since": commit.name, "subject": self.subjects.get(commit.commit)}

    def _make_row(self, series: "Series") -> dict[str, Any]:
        """Return the row of a table, and what else JSON has of a series."""
        form = FORMATS[series.quantity.column]
        step = series.steps[-1] if series.steps else None
        row = {
            "label": series.label,
            "quantity": series.quantity.title,
            "verdict": series.verdict,
            "ratio": _drop_infinity(series.ratio),
            "first": form(series.points[0].median),
            "last": form(series.points[-1].median),
            "points": [point._asdict() for point in series.points],
            "steps": [{**found._asdict(), "ratio": _drop_infinity(found.ratio)} for found in series.steps],
        }
        if step is None or series.since is None:
            return row
        found = {"step": _drop_infinity(step.ratio), "interval": step.interval, "chance": step.chance}
        return {**row, **found, **self._name_commit(series.since)}


def _drop_infinity(ratio: float) -> float | None:
    """Return None for a ratio over 0, which JSON cannot express."""
    return ratio if math.isfinite(ratio) else None


def track(
    folders: Sequence[Path], root: Path, out: Path | None = None, on_step: OnStep = ignore_step
) -> HistoryAnswer:
    """Return the history of several folders of collected tables, and write its page if `out` is given."""
    from harness.results.history import Results, make_history
    from harness.results.parquet import RunTable, read_collected
    from harness.runtime.provenance import sort_commits

    results = [
        Results(
            str(folder),
            read_collected(folder, "runs"),
            RunTable(read_collected(folder, "memory")),
        )
        for folder in report_steps(folders, lambda folder: f"reading {folder}", on_step)
    ]
    commits = {str(commit) for each in results for commit in each.runs["provenance.commit"] if commit}
    subjects = sort_commits(root, commits)
    history = make_history(results, list(subjects) if subjects is not None else None)
    if len(history.commits) < 2:
        raise UserError(
            f"{', '.join(map(str, folders))} {'hold' if len(folders) > 1 else 'holds'} measured runs of "
            f"{format_count(len(history.commits), 'commit')}, and a history needs two. Name the folders of tables "
            "that `harness collect` made at several commits."
        )
    answer = HistoryAnswer(history, subjects or {}, out)
    if out:
        from harness.report.history_page import PageTable, write_history

        tables = [
            PageTable(
                table.title,
                [column.title for column in table.list_shown_columns()],
                list(zip(*table.format_columns().values(), strict=True)),
            )
            for table in answer.list_tables()
            if table.rows
        ]
        write_history(history, answer.headline, tables, answer.notes, out)
    return answer
