"""A matrix of the SuiteSparse collection: an archive with one Matrix Market file and perhaps others beside it.

Group and name together are the key: names repeat across groups.
"""

from typing import Literal

from pydantic import Field

from harness.sources.archive import Place
from harness.sources.matrix_market import matrix_stream
from harness.sources.remote import Remote
from harness.sources.source import Rest, Source
from harness.sources.stream import Stream

WORD = r"^[A-Za-z0-9][\w.+-]*$"


class SuiteSparse(Source):
    """GROUP/NAME of https://sparse.tamu.edu."""

    kind: Literal["suitesparse"]
    group: str = Field(pattern=WORD)
    name: str = Field(pattern=WORD)
    sha256: str | None = None
    """Of the archive; none is published."""

    def remotes(self) -> list[Remote]:
        where = f"{self.group}/{self.name}.tar.gz"
        url = f"https://sparse.tamu.edu/MM/{where}"
        return [Remote(url=url, file=f"raw/suitesparse/{where}", sha256=self.sha256)]

    def stream(self, rest: Rest) -> Stream:
        (archive,) = self.remotes()
        return matrix_stream(Place(rest.folder / archive.file, f"{self.name}/{self.name}.mtx"))
