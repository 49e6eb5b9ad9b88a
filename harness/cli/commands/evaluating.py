"""harness collect, figures and report: makes tables, figures and a report of recorded runs, or of packs."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import format_bytes, format_count
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import MOST_ROWS, Block, Command, Headline, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, File, Folder, Folders, Names, OptionStyle, Request
from harness.cli.commands.run_facts import RECORD_AGAIN
from harness.cli.commands.verb import Reporter, verb
from harness.results.record import describe_refused

if TYPE_CHECKING:
    import pandas as pd

    from harness.report.packs_page import PacksReport
    from harness.results.collect import Collection


@dataclass(frozen=True, config=CONFIG)
class CollectRequest(Request):
    """The runs to collect."""

    _: KW_ONLY
    runs: Folders = ()
    """Folders of run folders, if runs were made in several places (default: results/runs)."""
    plan: File = None
    """Collect only the runs of this plan."""
    extra: Folders = ()
    """Folders of records that are not in the plan, as `harness claims --records`, `harness predict --out` and
    `harness runs emulate --out` write them."""
    out: Folder = None
    """The folder for the tables (default: results)."""
    verify: bool = False
    """Exit with 1 if a run is missing, did not succeed, or received fewer elements than its lower bound."""

    @property
    def places(self) -> Sequence[Path]:
        """The folders of run folders."""
        return self.runs or [self.default_runs]


PROBLEM_COLUMNS = (
    TableColumn("label", "run"),
    TableColumn("status", "status"),
    TableColumn("cause", "cause", may_wrap=True),
)
CONTRADICTION_COLUMNS = (
    TableColumn("label", "run"),
    TableColumn("contradiction", "what contradicts its tables", may_wrap=True),
)


@plain_dataclass(frozen=True)
class CollectAnswer(Answer):
    """The collected tables, and the runs with problems."""

    collection: "Collection"
    request: CollectRequest

    @property
    def exit_code(self) -> int:
        return 1 if self.request.verify and not self.collection.is_complete else 0

    def to_document(self) -> Any:
        return self.collection.as_dict()

    def to_frame(self) -> "pd.DataFrame":
        return self.collection.runs

    def lay_out(self, view: View) -> Iterator[Block]:
        from harness.results.run_row import describe_cause

        collection = self.collection
        statuses = collection.runs.status.value_counts()
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
        runs = format_count(len(collection.runs), "run")
        yield Headline(
            f"{runs} collected: {counts}; {collection.out / 'runs.parquet'} and the tables beside it"
        )
        problems = [
            {"label": run.label, "status": run.status, "cause": describe_cause(run.to_dict())}
            for _, run in collection.label_failures().iterrows()
        ]
        yield Table(PROBLEM_COLUMNS, problems, most_rows=MOST_ROWS)
        yield from self._lay_out_way_out()
        if len(contradictory := collection.contradictory):
            rows = [
                {"label": run.label, "contradiction": run.contradiction}
                for _, run in contradictory.iterrows()
            ]
            yield Table(
                CONTRADICTION_COLUMNS, rows, "Records that contradict themselves", most_rows=MOST_ROWS
            )
            yield "Repeat these runs with --fresh."
        if collection.refused:
            yield describe_refused(collection.refused)

    def _lay_out_way_out(self) -> Iterator[Block]:
        """Yield the commands that repeat failed runs, one for each folder of runs."""
        from harness.results.schema import MISSING, SETTLED

        runs, request = self.collection.runs, self.request
        if any(runs.status == MISSING):
            yield "Missing runs were planned and never recorded: the workflow runs them."
        failed = runs[~runs.status.isin([*SETTLED, MISSING]) & (runs.source == "measured")]
        commands = []
        for place in request.places:
            specs = [place / run_id / "spec.json" for run_id in failed.run_id]
            if found := [str(spec) for spec in specs if spec.is_file()]:
                out = [] if place == request.default_runs else ["--out", str(place)]
                commands.append(shlex.join(["harness", "run", "--spec", *found, *out]))
        if commands:
            yield "To repeat the failed runs:"
            yield from map(Command, commands)
        is_external = runs.source == "external"
        if any(~runs.status.isin(["ok", MISSING]) & is_external):
            yield RECORD_AGAIN
        if any(runs.status.isin(SETTLED) & (runs.status != "ok") & ~is_external):
            yield "A run that ended as oom, timeout or diverged is a result: only --fresh repeats it."


@verb(CollectRequest)
def collect(request: CollectRequest, reporter: Reporter) -> CollectAnswer:
    """Join the records of all runs into tables.

    Every run has a row in runs.parquet. The other tables hold the epochs, ledgers, memory and tapes of all runs.
    """
    from harness.results.collect import collect as collect_records

    results = request.results
    out = request.out or results
    collection = collect_records(request.places, out, request.plan, request.extra, reporter.step)
    return CollectAnswer(collection, request)


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class TablesRequest(Request):
    """The tables from which something is made."""

    tables: Folder = None
    """The folder of collected tables (default: results)."""

    @property
    def folder(self) -> Path:
        """The folder of collected tables."""
        return self.tables or self.results


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class DrawRequest(TablesRequest):
    """The tables from which figures are drawn, and their formats."""

    pictures: Literal["all", "svg"] = "all"
    """Write each figure and each of its graphs alone, as PDF, PNG and SVG; or each figure as SVG, which takes less
    time."""

    @property
    def formats(self) -> Sequence[str]:
        """The formats of figures."""
        from harness.report.figures.drawing import FORMATS

        return FORMATS if self.pictures == "all" else (self.pictures,)


@dataclass(frozen=True, config=CONFIG)
class FiguresRequest(DrawRequest):
    """The figures to draw."""

    _: KW_ONLY
    out: Folder = None
    """The folder for the figures (default: figures)."""
    highlight: Annotated[Names, OptionStyle(metavar="NAME[,NAME...]", completes="strategies")] = ()
    """Strategies that always have a colour. Where more than eight share axes, only the best ones have, and the others
    are grey."""


class DrawnFigure(NamedTuple):
    """The files of a figure, by their endings, and their sizes together."""

    figure: str
    files: str
    bytes: int


@plain_dataclass(frozen=True)
class FiguresAnswer(Answer):
    """The figures that were drawn."""

    headline: Headline
    folder: Path
    figures: Sequence[DrawnFigure]


@verb(FiguresRequest)
def figures(request: FiguresRequest, reporter: Reporter) -> FiguresAnswer:
    """Draw the figures of the collected tables."""
    from harness.report.figures import FramedTables, draw_all

    out = request.out or request.home / "figures"
    framed = FramedTables(request.folder)
    return _list_figures(out, draw_all(framed, out, reporter.step, request.highlight, request.formats))


def _list_figures(folder: Path, files: Sequence[Path]) -> FiguresAnswer:
    """Return the answer about the files of figures: a row for each figure."""
    by_name: dict[str, list[Path]] = {}
    for path in files:
        by_name.setdefault(path.stem, []).append(path)
    rows = [
        DrawnFigure(
            name,
            ", ".join(path.suffix.removeprefix(".") for path in paths),
            sum(path.stat().st_size for path in paths),
        )
        for name, paths in by_name.items()
    ]
    return FiguresAnswer(Headline(f"{format_count(len(rows), 'figure')} drawn in {folder}"), folder, rows)


@dataclass(frozen=True, config=CONFIG)
class ReportRequest(DrawRequest):
    """The report to write."""

    packs: Annotated[tuple[Path, ...], OptionStyle(metavar="PACK", takes="several", is_positional=True)] = ()
    """Instead of collected tables, show these packs of several groups, or all packs in these folders."""
    _: KW_ONLY
    out: File = None
    """The file to write (default: results/report.html). With packs, the folder for index.html and the tables (default:
    results/packs)."""
    figures: Folder = None
    """Also draw the figures of the tables into this folder, which takes less time than `harness figures` alone."""


@plain_dataclass(frozen=True)
class ReportAnswer(Answer):
    """The report that was written, and the figures if they were drawn."""

    headline: Headline
    report: Path
    figures: FiguresAnswer | None = None


REFUSED_COLUMNS = (TableColumn("file", "pack"), TableColumn("refusal", "why it is refused", may_wrap=True))
MARK_COLUMNS = (TableColumn("mark", "mark"), TableColumn("runs", "runs", "whole"))


@plain_dataclass(frozen=True)
class PacksAnswer(Answer):
    """The report of several packs."""

    report: "PacksReport"

    @property
    def exit_code(self) -> int:
        return 1 if self._refused else 0

    @property
    def _refused(self) -> list[dict[str, str]]:
        return [{"file": each.file, "refusal": each.refusal} for each in self.report.packs if each.refusal]

    def to_document(self) -> Any:
        from harness.report.comparison import count_marks

        rows = self.report.rows
        return {
            "report": str(self.report.page),
            "runs": len(rows),
            "ranked": int(rows.is_ranked.sum()),
            "marks": count_marks(rows),
            "refused": self._refused,
        }

    def to_frame(self) -> "pd.DataFrame":
        return self.report.rows

    def lay_out(self, view: View) -> Iterator[Block]:
        found = self.to_document()
        yield Headline(f"Wrote {self.report.page}, {format_bytes(self.report.page.stat().st_size)}")
        yield f"{found['ranked']:,} of {format_count(found['runs'], 'run')} can be ranked."
        marks = [{"mark": mark, "runs": count} for mark, count in found["marks"].items()]
        yield Table(MARK_COLUMNS, marks, "Why others are not")
        yield Table(REFUSED_COLUMNS, found["refused"], "Refused packs")


@verb(ReportRequest)
def report(request: ReportRequest, reporter: Reporter) -> ReportAnswer | PacksAnswer:
    """Write the report of collected tables, or of the packs of several groups, as one HTML page.

    With packs of several groups, verify each of them, and show who wins on each task and machine, by how much, and how
    sure that is. The runs that may be compared are ranked, and the others are marked. The exit code is 1 if a pack was
    refused.
    """
    from harness.report.page import write_report

    results = request.results
    if request.packs:
        if request.tables or request.figures:
            raise UserError(
                "A report of packs takes no --tables and no --figures: it is made of the packed runs. "
                "`harness figures --tables results/packs` draws figures of the tables in that folder."
            )
        from harness.report.packs_page import write_packs_report

        out = request.out or results / "packs"
        return PacksAnswer(write_packs_report(request.packs, out, request.home, reporter.step))
    from harness.report.figures import FramedTables, draw_all

    framed = FramedTables(request.folder)
    page = write_report(framed, request.out or results / "report.html", results / "plans", reporter.step)
    headline = Headline(f"Wrote {page}, {format_bytes(page.stat().st_size)}")
    if request.figures is None:
        return ReportAnswer(headline, page)
    drawn = draw_all(framed, request.figures, reporter.step, formats=request.formats)
    return ReportAnswer(headline, page, _list_figures(request.figures, drawn))
