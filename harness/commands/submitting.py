"""harness submission: packs recorded runs for others, and verifies what others packed."""

from collections.abc import Iterator
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic.dataclasses import dataclass

from harness.commands.answer import Answer
from harness.commands.evaluating import FileAnswer
from harness.commands.output import Block, Headline, Table, TableColumn, View
from harness.commands.request import CONFIG, File, Files, Folders, OptionStyle, Request
from harness.commands.verb import Reporter, verb
from harness.formatting import format_count

if TYPE_CHECKING:
    from harness.submission.verification import Verification


@dataclass(frozen=True, config=CONFIG)
class PackRequest(Request):
    """The submission to pack."""

    contributor: Annotated[str, OptionStyle("--by", metavar="NAME")]
    """The name of your group, as pages of results show it."""
    _: KW_ONLY
    runs: Folders = ()
    """Folders of run folders (default: results/runs)."""
    proof: Files = ()
    """Proofs of `harness check NAME --full --proof FILE`, for strategies of packages that others may not have."""
    out: File = None
    """The file to write (default: results/submission.tar.gz)."""


@verb(PackRequest)
def pack(request: PackRequest, reporter: Reporter) -> FileAnswer:
    """Pack recorded runs into one archive, which others can verify and compare with theirs.

    The archive has the spec, the record and the tables of each run, and proofs of their strategies. Names of home
    folders are replaced by ~. Look at the host names and commands in it before you publish it: `harness runs show`
    prints them. The same runs give the same bytes.
    """
    from harness.submission.packing import pack_submission

    out = request.out or request.results / "submission.tar.gz"
    runs = request.runs or [request.default_runs]
    packed = pack_submission(runs, request.contributor, out, reporter.step, proofs=request.proof)
    return FileAnswer("submission", packed)


@dataclass(frozen=True, config=CONFIG)
class VerifyRequest(Request):
    """The submission to verify."""

    file: Annotated[Path, OptionStyle(metavar="FILE", is_positional=True)]
    """An archive of `harness submission pack`."""


COLUMNS = (
    TableColumn("check", "check"),
    TableColumn("holds", "holds", is_number=True),
    TableColumn("broken", "broken", is_number=True),
    TableColumn("cannot be verified", "cannot be verified", is_number=True),
    TableColumn("meaning", "what holds", may_wrap=True),
)
REASONS = (TableColumn("check", "check"), TableColumn("reason", "the first reason", may_wrap=True))


@plain_dataclass(frozen=True)
class VerifyAnswer(Answer):
    """What was found about a submission."""

    file: Path
    found: "Verification"

    @property
    def exit_code(self) -> int:
        return 0 if self.found.holds else 1

    def to_document(self) -> Any:
        return {
            "file": str(self.file),
            "contributor": self.found.contributor,
            "runs": list(self.found.runs),
            "holds": self.found.holds,
            "proofs": [proof.to_document() for proof in self.found.proofs],
            "results": [result._asdict() for result in self.found.results],
        }

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame([result._asdict() for result in self.found.results])

    def lay_out(self, view: View) -> Iterator[Block]:
        verdict = "nothing contradicts their specs, tables and formulas"
        if broken := self.found.broken_runs:
            verdict = f"{len(broken)} do not hold what they say"
        yield Headline(
            f"{format_count(len(self.found.runs), 'run')} contributed by {self.found.contributor}: {verdict}"
        )
        rows = self.found.tabulate()
        yield Table(COLUMNS, rows)
        if told := [row for row in rows if row["reason"]]:
            yield Table(REASONS, told, "What does not hold, or cannot be verified here")
        yield "Times and losses cannot be verified: only the same runs on the same machine could repeat them."


@verb(VerifyRequest)
def verify(request: VerifyRequest, reporter: Reporter) -> VerifyAnswer:
    """Verify a submission of others without repeating its runs.

    Compares files with their checksums, runs with the hashes of their specs, summaries with their tables, and the
    elements that ranks sent with the formulas of their strategies, for graphs that are built here. Compares the graphs
    with the cards of their names, and the code of strategies with the code here or with a proof of a full check. Runs
    no code of the submission. The exit code is 1 if something is broken.
    """
    from harness.submission.verification import verify_submission

    return VerifyAnswer(request.file, verify_submission(request.file, request.home, reporter.step))
