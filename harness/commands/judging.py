"""harness claims: compares the claims of papers with our own values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic.dataclasses import dataclass

from harness.commands.answer import Answer
from harness.commands.evaluating import TablesRequest
from harness.commands.output import MOST_ROWS, Block, Headline, Table, TableColumn, View
from harness.commands.request import CONFIG, File, Folder, OptionStyle
from harness.commands.verb import Reporter, verb
from harness.formatting import format_count

if TYPE_CHECKING:
    from harness.claims import Verdict


@dataclass(frozen=True, config=CONFIG)
class ClaimsRequest(TablesRequest):
    """The claims to judge."""

    _: KW_ONLY
    paper: Annotated[str | None, OptionStyle(metavar="NAME")] = None
    """The claims of one paper (default: all)."""
    figure: Annotated[tuple[str, ...], OptionStyle(metavar="ID", takes="several")] = ()
    """The claims in these figures or tables."""
    held_out: bool = False
    """Only the claims that were held out from all fits of constants."""
    twins: bool = False
    """Build twins of graphs for predictions that depend on the edges, which takes minutes."""
    quick: bool = False
    """Skip predictions, which take most of the time."""
    score: bool = False
    """Print only the counts of verdicts."""
    predictions: Folder = None
    """Use the records of `harness predict --out DIR` instead of predicting again."""
    records: Folder = None
    """Instead of judging, record each run for which a claim has a value, for `harness collect --beside DIR`."""
    out: File = None
    """Also write the table of claims, for figures and the report."""


CLAIM_COLUMNS = (
    TableColumn("id", "claim"),
    TableColumn("place", "place"),
    TableColumn("printed", "printed"),
    TableColumn("ours", "ours", may_wrap=True),
    TableColumn("ratio", "ours/printed", "{:.3g}".format, is_number=True),
    TableColumn("verdict", "verdict"),
    TableColumn("what", "of what", may_wrap=True, may_drop=True),
)


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
        from harness.claims.verdicts import describe_held_out, describe_untested, make_scoreboard

        everything = [verdict for some in self.verdicts.values() for verdict in some]
        yield Headline(f"{format_count(len(everything), 'claim')}: {count_results(everything)}")
        heads, *rows = make_scoreboard(self.verdicts)
        columns = [TableColumn(head, head, is_number=head != "paper") for head in heads]
        yield Table(columns, [dict(zip(heads, row, strict=True)) for row in rows])
        yield from describe_untested(everything)
        yield from describe_held_out(everything)
        if not self.request.score:
            yield from self._lay_out_papers(view)

    def _lay_out_papers(self, view: View) -> Iterator[Block]:
        columns = [*CLAIM_COLUMNS, *([TableColumn("reason", "reason", may_wrap=True)] if view.why else [])]
        for paper, some in self.verdicts.items():
            yield Table(columns, [verdict.as_row(paper) for verdict in some], paper, most_rows=MOST_ROWS)


def count_results(verdicts: "Sequence[Verdict]") -> str:
    """Return the number of claims with each result."""
    from harness.claims import Result

    counts = {result: sum(verdict.result is result for verdict in verdicts) for result in Result}
    words = {Result.HOLDS: "hold"}
    return ", ".join(
        f"{count} {words.get(result, result) if count > 1 else result}"
        for result, count in counts.items()
        if count
    )


@verb(ClaimsRequest)
def claims(request: ClaimsRequest, reporter: Reporter) -> ClaimsAnswer:
    """Compare the claims of papers with our own values, with a verdict for each.

    Computes our value for every claim in workflows/claims/PAPER.csv from cards, experiments, replays, and the collected
    records of the papers' own runs, or from predictions where there is no record. All claims together take minutes.
    """
    from harness.claims import ClaimFilter, Evidence, judge_all
    from harness.claims.printed_runs import record_printed
    from harness.results.parquet import write_claims

    root, tables = request.home, request.folder
    evidence = Evidence(root, tables, predictions=request.predictions, twins=request.twins, log=reporter.log)
    chosen = ClaimFilter(request.paper, request.figure, request.held_out)
    if request.records:
        wanted = [claim for of_paper in chosen.read(root).values() for claim in of_paper]
        return ClaimsAnswer(request, recorded=record_printed(request.records, wanted, evidence))
    verdicts = judge_all(root, evidence, chosen, quick=request.quick, on_step=reporter.step)
    answer = ClaimsAnswer(request, verdicts)
    if request.out:
        write_claims(request.out, answer.list_rows(), tables)
    return answer
