"""harness site: makes static pages of many submissions, which any static host can serve."""

from collections.abc import Iterator
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic.dataclasses import dataclass

from harness.commands.answer import Answer
from harness.commands.output import Block, Headline, Table, TableColumn, View
from harness.commands.request import CONFIG, Folder, OptionStyle, Request
from harness.commands.verb import Reporter, verb
from harness.formatting import format_count

if TYPE_CHECKING:
    from harness.site.writing import WrittenSite


@dataclass(frozen=True, config=CONFIG)
class SiteRequest(Request):
    """The submissions of the site."""

    places: Annotated[tuple[Path, ...], OptionStyle(metavar="FOLDER", takes="several", is_positional=True)]
    """Archives of `harness submission pack`, or folders with such archives."""
    _: KW_ONLY
    out: Folder = None
    """The folder of the site (default: site). A site in it is built again: archives that it has are not verified
    again."""


REFUSED_COLUMNS = (TableColumn("file", "archive"), TableColumn("refusal", "why it is refused", may_wrap=True))
MARK_COLUMNS = (TableColumn("mark", "mark"), TableColumn("runs", "runs", is_number=True))


@plain_dataclass(frozen=True)
class SiteAnswer(Answer):
    """The site that was written."""

    site: "WrittenSite"

    @property
    def exit_code(self) -> int:
        return 1 if self.site.refused else 0

    def to_document(self) -> Any:
        return {
            "site": str(self.site.folder),
            "pages": self.site.pages,
            "written": self.site.written,
            "runs": len(self.site.rows),
            "ranked": int(self.site.rows.is_ranked.sum()),
            "marks": self._count_marks(),
            "refused": [{"file": each.file, "refusal": each.refusal} for each in self.site.refused],
        }

    def to_frame(self) -> Any:
        return self.site.rows

    def _count_marks(self) -> dict[str, int]:
        """Return how many runs have each mark."""
        marks = self.site.rows.marks[self.site.rows.marks != ""].str.split("; ").explode()
        return {str(mark): int(count) for mark, count in marks.value_counts().items()}

    def lay_out(self, view: View) -> Iterator[Block]:
        document = self.to_document()
        pages = format_count(document["pages"], "page")
        files = format_count(document["written"], "file was", "files were")
        yield Headline(f"Wrote {self.site.folder / 'index.html'}: {pages}, of which {files} new or changed")
        yield f"{document['ranked']:,} of {format_count(document['runs'], 'run')} can be ranked."
        if document["marks"]:
            rows = [{"mark": mark, "runs": count} for mark, count in document["marks"].items()]
            yield Table(MARK_COLUMNS, rows, "Why others are not (rules.html)")
        if document["refused"]:
            yield Table(REFUSED_COLUMNS, document["refused"], "Refused archives")


@verb(SiteRequest)
def site(request: SiteRequest, reporter: Reporter) -> SiteAnswer:
    """Make a static site of many submissions: who wins where, by how much, and how sure that is.

    Verifies each archive once, ranks the runs that may be compared, and marks the others. The pages work from the disk
    and from any static host; rows.parquet and rows.json have all rows. The exit code is 1 if an archive was refused.
    """
    from harness.site.writing import write_site

    out = request.out or Path("site")
    return SiteAnswer(write_site(request.places, out, request.home, reporter.step))
