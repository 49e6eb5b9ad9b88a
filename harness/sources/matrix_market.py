"""Matrix Market files (.mtx, .mtx.gz, or in an archive), as SuiteSparse publishes them.

An entry (i, j) is the edge from vertex i to vertex j, whatever its value: a stored zero is an edge too. A symmetric
header stands for the mirror entries too; they count as given.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from harness.errors import UserError
from harness.sources.archive import Place, opened
from harness.sources.refusal import refusing
from harness.sources.remote import Remote
from harness.sources.source import FileSource, Rest, Source
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, Begin, counted, decoded, pairs_of
from harness.validation import clipped

EXPECTED = (
    "a line '%%MatrixMarket matrix coordinate FIELD SYMMETRY', comments with %, a line 'rows columns entries', "
    "and that many lines 'row column [value]' with ids from 1"
)
BANNER = "%%matrixmarket matrix "
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


class MatrixMarket(FileSource):
    """A Matrix Market file, .mtx or .mtx.gz."""

    kind: Literal["mtx"]

    def stream(self, rest: Rest) -> Stream:
        return matrix_stream(Place(rest.folder / self.path))


class _Header(NamedTuple):
    """What a file says of itself, and where its entries begin."""

    rows: int
    entries: int
    is_mirrored: bool
    begin: Begin


def matrix_stream(text: Place) -> Stream:
    """The entries of a matrix as edges, after all were read once and counted."""
    with refusing(text.path, EXPECTED):
        header = _header(text)
        found = counted(_pairs(text, header, AT_ONCE))
    if found.pairs != header.entries:
        raise UserError(
            f"{text} holds {found.pairs:,} entries, and its header says {header.entries:,}. {_wanted()}"
        )
    if not found.within(range(1, header.rows + 1)):
        raise UserError(_fault(text, header))
    pieces = partial(_pieces, text, header)
    return Stream(header.rows, header.entries * (1 + header.is_mirrored), pieces)


def _header(text: Place) -> _Header:
    with opened(text) as file:
        banner = file.readline()
        layout, _, symmetry = _words(text, banner)
        byte, number = len(banner), 1
        for line in file:
            byte, number = byte + len(line), number + 1
            if said := decoded(line).split("%")[0].split():
                break
        else:
            raise UserError(f"{text} has no line of sizes. {_wanted()}")
    if layout != "coordinate":
        raise UserError(f"{text}, line 1: the layout is {layout!r}, which lists every element. {_wanted()}")
    if len(said) != 3 or not all(word.isdecimal() for word in said):
        raise UserError(f"{text}, line {number}: {clipped(' '.join(said), 40)!r} are no sizes. {_wanted()}")
    rows, cols, entries = map(int, said)
    if rows != cols or rows < 1:
        raise UserError(f"{text}: the matrix is {rows} x {cols}, but an adjacency is square. {_wanted()}")
    return _Header(rows, entries, symmetry != "general", Begin(byte, number))


def _words(text: Place, banner: bytes) -> list[str]:
    """Layout, field and symmetry."""
    line = " ".join(decoded(banner).lower().split())
    words = line.removeprefix(BANNER).split()
    if not line.startswith(BANNER) or len(words) != 3 or words[2] not in SYMMETRIES:
        raise UserError(f"{text}, line 1: {line[:60]!r} is no head of a matrix. {_wanted()}")
    return words


def _pairs(text: Place, header: _Header, at_once: int) -> list[Piece]:
    return pairs_of(text, at_once, header.begin, lambda: UserError(_fault(text, header)))


def _pieces(text: Place, header: _Header, at_once: int) -> list[Piece]:
    pairs = _pairs(text, header, max(at_once // (1 + header.is_mirrored), 1))
    return [partial(_expanded, piece, header.is_mirrored) for piece in pairs]


def _expanded(piece: Piece, is_mirrored: bool) -> Iterator[Edges]:
    for row, col in piece():
        source, target = row - 1, col - 1
        off = source != target if is_mirrored else slice(0)
        yield np.concatenate([source, target[off]]), np.concatenate([target, source[off]])


def _fault(text: Place, header: _Header) -> str:
    """The first line that is no entry, of a file that has one. Slow: it reads line by line."""
    rows = header.rows
    with opened(text) as file:
        file.read(header.begin.byte)
        for number, line in enumerate(file, start=header.begin.line + 1):
            words = decoded(line).split("%")[0].split()
            if words and not (
                len(words) > 1 and all(w.isdecimal() and 1 <= int(w) <= rows for w in words[:2])
            ):
                entry = clipped(" ".join(words), 40)
                return f"{text}, line {number}: {entry!r} is no entry of {rows} x {rows}. {_wanted()}"
    return f"{text} cannot be read as text. {_wanted()}"


def _wanted() -> str:
    return f"Expected {EXPECTED}."


# A matrix of the SuiteSparse collection: an archive with one Matrix Market file and perhaps others beside
# it.
#
# Group and name together are the key: names repeat across groups.

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
