"""harness pack and verify: packs recorded runs for others, and verifies what others packed."""

from collections.abc import Iterator
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import format_bytes, format_count
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, Headline, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, File, Files, Folder, Folders, OptionStyle, Request
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.report.pack.packing import PackedResults
    from harness.report.pack.verification import Verification


@dataclass(frozen=True, config=CONFIG)
class PackRequest(Request):
    """The runs to pack."""

    contributor: Annotated[str, OptionStyle("--by", metavar="NAME")]
    """The name of your group, as reports show it."""
    _: KW_ONLY
    runs: Folders = ()
    """Folders of run folders (default: results/runs)."""
    tables: Folder = None
    """The folder of collected tables, whose claims are packed (default: results)."""
    figures: Folder = None
    """The folder of figures that were drawn of these tables (default: figures)."""
    certificate: Files = ()
    """Certificates of `harness check NAME --full --certificate FILE`, for strategies that others may not have."""
    out: File = None
    """The file to write (default: results/pack.tar.gz)."""


@plain_dataclass(frozen=True)
class PackAnswer(Answer):
    """The pack that was written."""

    packed: "PackedResults"

    def to_document(self) -> Any:
        return {**self.packed._asdict(), "path": str(self.packed.path)}

    def lay_out(self, view: View) -> Iterator[Block]:
        packed = self.packed
        counts = {
            "run": packed.runs,
            "certificate": packed.certificates,
            "figure": packed.figures,
            "claim": packed.claims,
        }
        contents = ", ".join(format_count(count, noun) for noun, count in counts.items() if count)
        yield Headline(f"Wrote {packed.path}, {format_bytes(packed.path.stat().st_size)}: {contents}")
        yield from (f"Not packed: {reason}" for reason in packed.skipped)
        if packed.left_out:
            yield f"Figures and claims are left out: {packed.left_out}. `harness collect` joins all runs."


@verb(PackRequest)
def pack(request: PackRequest, reporter: Reporter) -> PackAnswer:
    """Pack recorded runs into one archive, which others can verify and compare with theirs.

    The archive has the spec, the record and the tables of each run, the tables of all runs, a description of their
    environments, and certificates of their strategies; and figures and claims, if these were made of the same runs.
    Names of home folders are replaced by ~. Look at the host names and commands in it before you publish it: `harness
    runs show` prints them. The same runs give the same bytes.
    """
    from harness.report.pack.packing import pack_results

    packed = pack_results(
        request.runs or [request.default_runs],
        request.contributor,
        request.out or request.results / "pack.tar.gz",
        tables=request.tables or request.results,
        figures=request.figures or request.home / "figures",
        certificates=request.certificate,
        on_step=reporter.step,
    )
    return PackAnswer(packed)


@dataclass(frozen=True, config=CONFIG)
class VerifyRequest(Request):
    """The pack to verify."""

    file: Annotated[Path, OptionStyle(metavar="FILE", is_positional=True)]
    """An archive of `harness pack`."""


COLUMNS = (
    TableColumn("check", "check"),
    TableColumn("holds", "holds", "whole"),
    TableColumn("broken", "broken", "whole"),
    TableColumn("cannot be verified", "cannot be verified", "whole"),
    TableColumn("meaning", "what holds", may_wrap=True),
)
REASONS = (TableColumn("check", "check"), TableColumn("reason", "the first reason", may_wrap=True))


@plain_dataclass(frozen=True)
class VerifyAnswer(Answer):
    """What was found about a pack."""

    file: Path
    found: "Verification"

    @property
    def exit_code(self) -> int:
        return 0 if self.found.holds else 1

    def to_document(self) -> Any:
        pack = self.found.pack
        return {
            "file": str(self.file),
            "contributor": pack.contributor,
            "runs": list(pack.runs),
            "holds": self.found.holds,
            "certificates": [certificate.to_document() for certificate in pack.certificates.values()],
            "results": [result._asdict() for result in self.found.results],
            "not_verified": list(pack.others),
        }

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame([result._asdict() for result in self.found.results])

    def lay_out(self, view: View) -> Iterator[Block]:
        pack, verdict = self.found.pack, "nothing contradicts their specs, tables and formulas"
        if broken := self.found.broken_runs:
            verdict = f"{len(broken)} do not hold what they say"
        yield Headline(f"{format_count(len(pack.runs), 'run')} contributed by {pack.contributor}: {verdict}")
        rows = self.found.tabulate()
        yield Table(COLUMNS, rows)
        if told := [row for row in rows if row["reason"]]:
            yield Table(REASONS, told, "What does not hold, or cannot be verified here")
        yield "Times and losses cannot be verified: only the same runs on the same machine could repeat them."
        if pack.others:
            yield (
                f"Its {format_count(len(pack.others), 'other file')}, such as tables and figures, are not verified: "
                "`harness report` makes tables and charts of the runs."
            )


@verb(VerifyRequest)
def verify(request: VerifyRequest, reporter: Reporter) -> VerifyAnswer:
    """Verify a pack of others without repeating its runs.

    Compares files with their checksums, runs with the hashes of their specs, summaries with their tables, and the
    elements that ranks sent with the formulas of their strategies, for graphs that are built here. Compares the graphs
    with the cards of their names, and the code of strategies with the code here or with a certificate of a full check.
    Runs no code of the pack. The exit code is 1 if something is broken.
    """
    root = request.home
    if not request.file.is_file():
        raise UserError(f"{request.file} does not exist. Name an archive of `harness pack`.")
    from harness.report.pack.reading import read_pack

    pack = read_pack(request.file)
    from harness.report.pack.verification import verify_pack  # loads torch, which a refusal does not need

    return VerifyAnswer(request.file, verify_pack(pack, root, reporter.step))
