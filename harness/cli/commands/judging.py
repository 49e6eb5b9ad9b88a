"""harness claims: compares the claims of papers with our own values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic.dataclasses import dataclass

from harness.base.formatting import format_count
from harness.cli.commands.answer import Answer
from harness.cli.commands.evaluating import TablesRequest
from harness.cli.commands.output import MOST_ROWS, Block, Headline, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, File, Folder, OptionStyle
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.claims import Verdict
    from harness.claims.scoreboard import Rows


@dataclass(frozen=True, config=CONFIG)
class ClaimsRequest(TablesRequest):
    """The claims to judge."""

    _: KW_ONLY
    paper: Annotated[str | None, OptionStyle(metavar="NAME")] = None
    """The claims of one paper (default: all)."""
    figure: Annotated[tuple[str, ...], OptionStyle(metavar="ID", takes="several")] = ()
    """The claims in these figures or tables."""
    held_out: bool = False
    """Only the results that were held out from all fits of constants."""
    twins: bool = False
    """Build twins of graphs for predictions that depend on the edges, which takes minutes."""
    quick: bool = False
    """Make no predictions, which take most of the time; only those in --predictions count."""
    score: bool = False
    """Print only the scoreboard."""
    predictions: Folder = None
    """Use the predictions saved in this folder, such as workflows/predictions with the papers' runs."""
    save: Folder = None
    """Then predict all runs behind the figures of the papers, and save all predictions in this folder."""
    records: Folder = None
    """Instead of judging, record what papers print about single runs, and the predictions of the runs of the same
    figures, in a folder for each experiment, for `harness collect --extra DIR/EXPERIMENT`."""
    out: File = None
    """Also write the table of claims, for figures and the report."""


CLAIM_COLUMNS = (
    TableColumn("id", "claim"),
    TableColumn("place", "place"),
    TableColumn("printed", "printed"),
    TableColumn("ours", "ours", may_wrap=True),
    TableColumn("ratio", "ours/printed", "number"),
    TableColumn("source", "source"),
    TableColumn("words", "verdict"),
    TableColumn("uncounted", "not counted"),
    TableColumn("what", "of what", may_wrap=True, may_drop=True),
)
WHAT_PAPERS_RAN = ("id", "place", "printed", "ours", "words", "what")
"""The columns of the table of settings and facts."""
UNDER_HEADINGS = ("id", "printed", "ours", "words")
"""The columns of the tables of what does not hold, before the reason."""


@plain_dataclass(frozen=True)
class ClaimsAnswer(Answer):
    """The verdicts by paper; or the folders of the recorded runs."""

    request: ClaimsRequest
    verdicts: "Mapping[str, list[Verdict]]" = field(default_factory=dict)
    recorded: Sequence[Path] = ()

    def list_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table of claims."""
        return [verdict.as_row(paper) for paper, some in self.verdicts.items() for verdict in some]

    def to_document(self) -> Any:
        return [str(folder) for folder in self.recorded] if self.request.records else self.list_rows()

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(self.list_rows())

    def lay_out(self, view: View) -> Iterator[Block]:
        if self.request.records:
            yield Headline(f"{format_count(len(self.recorded), 'record')} in {self.request.records}")
            return
        from harness.claims import scoreboard

        everything = [verdict for some in self.verdicts.values() for verdict in some]
        counted = scoreboard.select_counted(everything)
        found = f": {scoreboard.describe_results(counted)}" if counted else ""
        yield Headline(
            f"{format_count(len(counted), 'result')} of {format_count(len(everything), 'claim')}{found}"
        )
        if counted:
            yield _make_table(scoreboard.make_scoreboard(everything))
        yield _make_table(scoreboard.make_error_table(everything))
        yield from scoreboard.describe_uncounted(everything)
        yield from scoreboard.describe_untested(everything)
        yield from scoreboard.describe_held_out(everything)
        if not self.request.score:
            yield from self._lay_out_headings(view)
            yield from self._lay_out_papers(view)
        yield from scoreboard.describe_other_claims(everything)

    def _lay_out_headings(self, view: View) -> Iterator[Block]:
        from harness.claims import scoreboard

        every = [verdict for some in self.verdicts.values() for verdict in some]
        shown = [each for each in every if view.all or not each.uncounted]
        columns = [column for column in CLAIM_COLUMNS if column.key in UNDER_HEADINGS]
        columns.append(TableColumn("reason", "reason", may_wrap=True))
        for heading, verdicts in scoreboard.group_by_heading(shown).items():
            if verdicts:
                yield Table(
                    columns, [each.as_row("") for each in verdicts], str(heading), most_rows=MOST_ROWS
                )

    def _lay_out_papers(self, view: View) -> Iterator[Block]:
        reason = [TableColumn("reason", "reason", may_wrap=True)] if view.why else []
        others = [column for column in CLAIM_COLUMNS if column.key in WHAT_PAPERS_RAN]
        for paper, some in self.verdicts.items():
            rows = [
                {**row, "uncounted": row["uncounted"] or None}
                for row in (each.as_row(paper) for each in some)
            ]
            results = [row for row in rows if row["role"] == "result"]
            yield Table([*CLAIM_COLUMNS, *reason], results, paper, most_rows=MOST_ROWS)
            if view.all or not results:
                ran = [row for row in rows if row["role"] != "result"]
                title = f"{paper}: what the paper ran, and facts"
                yield Table([*others, *reason], ran, title, most_rows=MOST_ROWS)


def _make_table(rows: "Rows") -> Table:
    """Make a table of rows of text, of which the first has the headings and the first column is not a number."""
    heads = rows[0] if rows else ()
    columns = [TableColumn(head, head, "whole" if number > 0 else None) for number, head in enumerate(heads)]
    return Table(columns, [dict(zip(heads, row, strict=True)) for row in rows[1:]])


@verb(ClaimsRequest)
def claims(request: ClaimsRequest, reporter: Reporter) -> ClaimsAnswer:
    """Compare the claims of papers with our own values, with a verdict for each.

    The scoreboard counts results. Settings and facts of the papers are listed by --all. Our value for every claim in
    workflows/claims/PAPER.csv comes from cards, experiments, replays, and the collected records of the papers' own
    runs, or from predictions where there is no record. Only a value that was counted, computed or measured can
    contradict a paper: a prediction is within its tolerance, or off by a factor. Claims whose unit or setting is not
    printed are not comparable. All claims together take minutes.
    """
    from harness.claims import ClaimFilter, Evidence, judge_all
    from harness.claims.figure_runs import record_figure_runs, save_figure_predictions
    from harness.claims.printed_marks import format_marks
    from harness.results.parquet import write_claims

    root, tables = request.home, request.folder
    evidence = Evidence(
        root,
        tables,
        predictions=request.predictions,
        quick=request.quick,
        twins=request.twins,
        log=reporter.log,
    )
    chosen = ClaimFilter(request.paper, request.figure, request.held_out)
    if request.records:
        return ClaimsAnswer(request, recorded=record_figure_runs(evidence, chosen, request.records))
    verdicts = judge_all(root, evidence, chosen, on_step=reporter.step)
    answer = ClaimsAnswer(request, verdicts)
    if request.save:
        save_figure_predictions(evidence, request.save, reporter.step)
    if request.out:
        every = [verdict.claim for some in verdicts.values() for verdict in some]
        shown = [{"read": claim.read, "marks": format_marks(claim, evidence)} for claim in every]
        rows = [row | marks for row, marks in zip(answer.list_rows(), shown, strict=True)]
        write_claims(request.out, rows, tables)
    return answer
