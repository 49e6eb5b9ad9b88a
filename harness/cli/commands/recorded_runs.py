"""harness runs: lists the recorded runs, shows one, and removes some."""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.files import list_complete_folders
from harness.base.formatting import format_bytes, format_count
from harness.base.untrusted import escape_line
from harness.base.validation import clip_line
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, Command, FactList, Headline, Raw, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, Folder, Names, OptionStyle, Request, split_commas
from harness.cli.commands.run_facts import (
    BEYOND_TITLE,
    ID_LENGTH,
    RECORD_AGAIN,
    describe_result,
    format_grid_of,
    format_time,
    get_name,
    list_chosen_settings,
    tabulate_phases,
)
from harness.cli.commands.verb import Reporter, verb
from harness.results.record import (
    Record,
    describe_refused,
    find_active_runs,
    find_run,
    read_record,
    read_records,
    remove_run,
)
from harness.results.run_row import describe_cause
from harness.results.schema import SETTLED, STATUSES

if TYPE_CHECKING:
    import pandas as pd

Statuses = Annotated[
    tuple[str, ...], BeforeValidator(split_commas), OptionStyle(metavar="STATUS[,STATUS...]")
]
LATEST = 20
"""The number of runs that are listed unless all are requested."""


def parse_utc(value: Any) -> Any:
    """Parse a date, or a date with a time. Without a time zone it is in UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise UserError(
                f"--before {clip_line(value, 40)} is not accepted: a date such as 2026-11-24, or a time such as "
                "2026-11-24T18:30, in UTC."
            ) from None
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class RunsRequest(Request):
    """The folder of runs."""

    runs: Folder = None
    """The folder of run folders (default: results/runs)."""

    @property
    def folder(self) -> Path:
        """The folder of run folders."""
        return self.runs or self.default_runs


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class RunFilter(RunsRequest):
    """Runs that match all given names."""

    strategy: Names = ()
    """Runs of this strategy, or of several separated by commas."""
    dataset: Names = ()
    """Runs on this graph, or on several separated by commas."""
    status: Statuses = ()
    """Runs with this status, or with several separated by commas: ok, oom, timeout, diverged, failed, refused."""

    def select(self, reporter: Reporter) -> list[Record]:
        """Return the runs that match, in the order in which they ended. Unreadable folders are reported."""
        for status in self.status:
            if status not in STATUSES:
                raise UserError(
                    f"--status {status} is not accepted: a status is one of {', '.join(STATUSES)}."
                )
        if self.runs and not self.folder.is_dir():
            raise UserError(
                f"The folder of runs {self.folder} does not exist. `harness run` makes it, or name another one with "
                "--runs."
            )
        records, refused = read_records(list_complete_folders(self.folder))
        if refused:
            reporter.warn(escape_line(describe_refused(refused)))
        chosen = [
            record
            for record in records
            if (not self.status or record.record["status"] in self.status)
            and (not self.strategy or get_name(record, "strategy") in self.strategy)
            and (not self.dataset or get_name(record, "dataset") in self.dataset)
        ]
        return sorted(chosen, key=lambda record: (record.ended, record.folder.name))


@plain_dataclass(frozen=True)
class ListedRun:
    """A recorded run."""

    record: Record
    size: int
    """The size of its folder in bytes."""

    def to_document(self) -> dict[str, Any]:
        """Return the run as JSON data."""
        record, summary = self.record, self.record.record["summary"]
        return {
            "run_id": record.record["run_id"],
            "label": record.record["label"],
            "status": record.record["status"],
            "source": record.record["source"],
            "epoch_seconds_median": record.epoch_seconds,
            "elements_received": summary.get("elements_received"),
            "elements_payload": summary.get("elements_payload"),
            "ended": record.ended,
            "bytes": self.size,
            "folder": str(record.folder),
        }

    def to_row(self, id_length: int) -> dict[str, Any]:
        """Return the row of a table."""
        record = self.record
        return {
            **self.to_document(),
            "run_id": record.record["run_id"][:id_length],
            "strategy": get_name(record, "strategy"),
            "dataset": get_name(record, "dataset"),
            "ranks": record.spec.get("ranks"),
            "grid": format_grid_of(record),
            "source": None if record.record["source"] == "measured" else record.record["source"],
        }


def list_runs_found(records: Sequence[Record]) -> list[ListedRun]:
    """Return runs with the sizes of their folders."""
    return [ListedRun(record, record.bytes) for record in records]


def find_id_length(runs: Sequence[ListedRun]) -> int:
    """Return the number of characters that distinguish the ids of runs."""
    ids = {run.record.record["run_id"] for run in runs}
    length = ID_LENGTH
    while length < 64 and len({run_id[:length] for run_id in ids}) < len(ids):
        length += 1
    return length


RUN_COLUMNS_LISTED = (
    TableColumn("run_id", "run"),
    TableColumn("strategy", "strategy"),
    TableColumn("dataset", "graph"),
    TableColumn("ranks", "ranks", "whole"),
    TableColumn("status", "status"),
    TableColumn("source", "source"),
    TableColumn("epoch_seconds_median", "epoch", "s"),
    TableColumn("elements_received", "received", "count", may_drop=True),
    TableColumn("ended", "ended (UTC)", format=format_time, may_drop=True),
    TableColumn("bytes", "size", "B", may_drop=True),
    TableColumn("grid", "--grid", may_drop=True),
)


def tabulate_runs(runs: Sequence[ListedRun]) -> Table:
    """Return a table of runs. Ids are cut to the length that distinguishes them."""
    length = find_id_length(runs)
    return Table(RUN_COLUMNS_LISTED, [run.to_row(length) for run in runs])


def describe_total(runs: Sequence[ListedRun], folder: Path) -> str:
    """Return the number of runs, their size and their folder."""
    return f"{format_count(len(runs), 'run')}, {format_bytes(sum(run.size for run in runs))}, in {folder}"


@plain_dataclass(frozen=True)
class RunListAnswer(Answer):
    """The recorded runs, the latest last."""

    runs: Sequence[ListedRun]
    folder: Path

    def to_document(self) -> Any:
        return [run.to_document() for run in self.runs]

    def lay_out(self, view: View) -> Iterator[Block]:
        if not self.runs:
            yield Headline(f"No matching run in {self.folder}")
            return
        yield Headline(describe_total(self.runs, self.folder))
        shown = self.runs if view.all else self.runs[-LATEST:]
        if earlier := len(self.runs) - len(shown):
            yield f"... {earlier} earlier (--all)"
        yield tabulate_runs(shown)


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class RunListRequest(RunFilter):
    """The runs to list."""


@verb(RunListRequest)
def list_runs(request: RunListRequest, reporter: Reporter) -> RunListAnswer:
    """List the recorded runs, the latest last.

    A row has the start of the id, the median time of an epoch (for another program, what its log has), the elements
    that the busiest rank receives in an epoch, the end of the run, and the size of its folder.
    """
    return RunListAnswer(list_runs_found(request.select(reporter)), request.folder)


# Showing a run.

LAST_LINES = 12
"""The number of lines of a trace that are shown."""


@dataclass(frozen=True, config=CONFIG)
class RunShowRequest(RunsRequest):
    """The run to show."""

    run: Annotated[str, OptionStyle(metavar="RUN", is_positional=True)]
    """A run folder, or the start of a run id."""


@plain_dataclass(frozen=True)
class RunShowAnswer(Answer):
    """A recorded run."""

    record: Record
    row: "pd.Series[Any]"
    """Its row in the table of runs."""

    @property
    def repeat(self) -> str:
        """The command that repeats a measured run from its spec; empty for other records."""
        if self.record.record["source"] != "measured":
            return ""
        folder = self.record.folder
        words = [
            "harness",
            "run",
            "--spec",
            str(folder / "spec.json"),
            "--out",
            str(folder.parent),
            "--fresh",
        ]
        return shlex.join(words)

    def to_document(self) -> Any:
        record = self.record.record
        return {
            "folder": str(self.record.folder),
            "repeat": self.repeat,
            "beside_defaults": list_chosen_settings(self.record),
            **record,
            "summary": record["summary"],
        }

    def to_frame(self) -> "pd.DataFrame":
        return self.row.to_frame().T

    def lay_out(self, view: View) -> Iterator[Block]:
        from harness.report.run_panels import collect_tensors, list_facts, list_largest_tensors, list_origin

        record = self.record
        yield Headline(describe_result(record))
        yield FactList(
            [
                ("id", record.record["run_id"]),
                ("label", record.record["label"]),
                ("source", f"{record.record['source']}, launch {self.row.launch}"),
                ("ended", f"{format_time(record.ended)} UTC"),
                ("folder", f"{record.folder}, {format_bytes(record.bytes)}"),
            ]
        )
        yield from self._lay_out_failure()
        settings = list_chosen_settings(record)
        yield FactList([(key, str(value)) for key, value in settings.items()], "Settings")
        if external := record.record.get("external"):
            if external["unknown"]:
                yield FactList([("unknown", ", ".join(external["unknown"]))])
            yield FactList(list(external["beyond"].items()), BEYOND_TITLE)
        yield FactList(list_facts(self.row), "Result")
        tensors = collect_tensors(record.table("memory").assign(run_id=""))
        memory = list_largest_tensors(tensors.get("", []))
        yield FactList([(name, format_bytes(size)) for name, size in memory], "Maximum memory over the ranks")
        if view.verbose:
            yield tabulate_phases(record)
            yield FactList(list_origin(self.row), "Origin")
            if typed := record.record["provenance"].get("command"):
                yield "The command of the run:"
                yield Command(typed)
        if self.repeat:
            yield "To repeat it:"
            yield Command(self.repeat)
        elif record.record["source"] == "external":
            yield RECORD_AGAIN

    def _lay_out_failure(self) -> Iterator[Block]:
        failure = self.record.table_rows.failure
        if failure is None:
            return
        place = f"error.trace in {self.record.folder / 'record.json'}"
        trace = ((self.record.record["error"] or {}).get("trace") or "").rstrip().splitlines()
        facts = {
            "cause": describe_cause(failure),
            "began in": failure["began_in"],
            "whole trace": place if trace else "",
        }
        yield FactList([(name, value) for name, value in facts.items() if value], "Failure")
        if trace:
            # Indented, so that no line of a record looks like one of ours.
            yield Raw(textwrap.indent("\n".join(trace[-LAST_LINES:]), "  "))


@verb(RunShowRequest)
def show_run(request: RunShowRequest, _: Reporter) -> RunShowAnswer:
    """Show the record of a run: its settings, result, memory and failure, and how to repeat it."""
    from harness.results.collect import load_side_of_runs

    folder = find_run(request.folder, request.run)
    return RunShowAnswer(read_record(folder), load_side_of_runs([folder]).runs.iloc[0])


# Removing runs.


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class RunPruneRequest(RunFilter):
    """The runs to remove."""

    _: KW_ONLY
    failed: bool = False
    """Runs without a result, which would be tried again: any status except ok, oom, timeout, diverged."""
    before: Annotated[datetime | None, BeforeValidator(parse_utc), OptionStyle(metavar="DATE")] = None
    """Runs that ended before a date such as 2026-11-24, in UTC."""
    yes: bool = False
    """Remove the folders."""


@plain_dataclass(frozen=True)
class PrunedRun:
    """A run that matches, whether it was removed, and the reason if it is kept."""

    run: ListedRun
    is_removed: bool = False
    why: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return the run as JSON data."""
        return {**self.run.to_document(), "removed": self.is_removed, "why": self.why}


@plain_dataclass(frozen=True)
class RunPruneAnswer(Answer):
    """The runs that match, and what became of them."""

    runs: Sequence[PrunedRun]
    folder: Path
    is_done: bool
    """Whether folders were removed."""

    def to_document(self) -> Any:
        return [run.to_document() for run in self.runs]

    def lay_out(self, view: View) -> Iterator[Block]:
        removable = [pruned.run for pruned in self.runs if not pruned.why]
        if not removable:
            yield Headline(f"Nothing to remove in {self.folder}")
        else:
            yield Headline(
                f"{'Removed' if self.is_done else 'Would remove'} {describe_total(removable, self.folder)}"
            )
            yield tabulate_runs(removable)
        for pruned in self.runs:
            if pruned.why:
                record = pruned.run.record.record
                yield f"Kept {record['run_id']} ({record['label']}): {pruned.why}."
        if removable:
            yield (
                "`harness collect` updates the tables."
                if self.is_done
                else "Nothing was removed; --yes removes these runs."
            )


@verb(RunPruneRequest)
def prune_runs(request: RunPruneRequest, reporter: Reporter) -> RunPruneAnswer:
    """Remove the run folders that match all given options.

    Without --yes it only prints what it would remove. It never removes a folder without a readable record, or a
    run that is in progress.
    """
    criteria = ("failed", "before", "strategy", "dataset", "status")
    if not any(getattr(request, name) for name in criteria):
        named = ", ".join(f"--{name}" for name in criteria)
        raise UserError(
            f"`harness runs prune` needs at least one of {named}: it never removes all runs at once."
        )
    active = find_active_runs(request.folder)
    chosen = [
        record
        for record in request.select(reporter)
        if not (request.failed and record.record["status"] in SETTLED)
        and not (request.before and record.ended >= request.before.timestamp())
    ]
    pruned = []
    for run in list_runs_found(chosen):
        is_removed, why = False, ""
        if run.record.record["run_id"] in active:
            why = "the run is in progress"
        elif request.yes:
            is_removed = remove_run(run.record)
            why = "" if is_removed else "the folder is a link, not named by its run, or changed"
        pruned.append(PrunedRun(run, is_removed, why))
    return RunPruneAnswer(pruned, request.folder, request.yes)
