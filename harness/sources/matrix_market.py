"""Matrix Market files (.mtx, .mtx.gz, or in an archive), as SuiteSparse publishes them.

An entry (i, j) is the edge from vertex i to vertex j, whatever its value: a stored zero is an edge too. A symmetric
matrix lists half of its entries; the mirrored entries are edges too. The value is the edge's weight, if the card has
weights; the mirrored entry of a skew-symmetric matrix has the negative one.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from harness.errors import UserError
from harness.graph.model import Weighting
from harness.sources.archive import FileIn
from harness.sources.refusal import refusing
from harness.sources.remote import RemoteFile
from harness.sources.source import FileSource, Rest, Source
from harness.sources.stream import AT_ONCE, Edges, Piece, Stream, counted, no_weights
from harness.sources.text import START, Begin, is_number, numbered_lines, pairs_of
from harness.validation import clip_line

EXPECTED = (
    "a line '%%MatrixMarket matrix coordinate FIELD SYMMETRY', comments with %, a line 'rows columns entries', "
    "and that many lines 'row column [value]' with ids from 1"
)
BANNER = "%%matrixmarket matrix "
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


class MatrixMarket(FileSource):
    """A Matrix Market file, .mtx or .mtx.gz."""

    kind: Literal["mtx"]
    reads_weights: ClassVar[bool] = True

    def stream(self, rest: Rest) -> Stream:
        return matrix_stream(FileIn(rest.folder / self.path), rest.weights)


WORD = r"^[A-Za-z0-9][\w.+-]*$"


class SuiteSparse(Source):
    """GROUP/NAME of https://sparse.tamu.edu: an archive with one Matrix Market file, and perhaps other files.

    Both are needed, because names repeat across groups.
    """

    kind: Literal["suitesparse"]
    reads_weights: ClassVar[bool] = True
    group: str = Field(pattern=WORD)
    name: str = Field(pattern=WORD)
    sha256: str | None = None
    """The checksum of the archive; none is published."""

    def remotes(self) -> list[RemoteFile]:
        path = f"{self.group}/{self.name}.tar.gz"
        url = f"https://sparse.tamu.edu/MM/{path}"
        return [RemoteFile(url=url, file=f"raw/suitesparse/{path}", sha256=self.sha256)]

    def stream(self, rest: Rest) -> Stream:
        (archive,) = self.files()
        return matrix_stream(FileIn(rest.folder / archive, f"{self.name}/{self.name}.mtx"), rest.weights)


class _MatrixHeader(NamedTuple):
    """The size of a matrix, and the place of its first entry."""

    rows: int
    entries: int
    is_mirrored: bool
    begin: Begin
    sign: int = 1
    """-1 if a mirrored entry has the negative value."""
    weights: Weighting | None = None
    """Set if the values are to be read."""


def matrix_stream(text: FileIn, weights: Weighting | None = None) -> Stream:
    """The entries of a matrix as edges; all are read once and counted."""
    with refusing(text.path, EXPECTED):
        header = _header(text, weights)
        counts = counted(_pairs(text, header, AT_ONCE), text.path, weights)
    if counts.edges != header.entries:
        raise _wrong(f"{text} holds {counts.edges:,} entries, and its header says {header.entries:,}.")
    if not counts.within(range(1, header.rows + 1)):
        raise _fault(text, header)
    pieces = partial(_pieces, text, header)
    return Stream(header.rows, header.entries * (1 + header.is_mirrored), pieces)


def _header(text: FileIn, weights: Weighting | None) -> _MatrixHeader:
    lines = numbered_lines(text)
    layout, field, symmetry = _banner(text, next(lines, ("", START))[0])
    if weights and field not in ("real", "double", "integer"):
        raise no_weights(text.path, f"its values are of the kind {clip_line(field, 20)}")
    data = ((line.split("%")[0].split(), after) for line, after in lines)
    sizes, begin = next(((words, after) for words, after in data if words), ([], START))
    if not sizes:
        raise _wrong(f"{text} has no line of sizes.")
    if layout != "coordinate":
        raise _wrong(f"{text}, line 1: the layout is {layout!r}, which lists every element.")
    if len(sizes) != 3 or not all(word.isdecimal() for word in sizes):
        raise _wrong(f"{text}, line {begin.line}: {clip_line(' '.join(sizes), 40)!r} are no sizes.")
    rows, cols, entries = map(int, sizes)
    if rows != cols or rows < 1:
        raise _wrong(f"{text}: the matrix is {rows} x {cols}, but an adjacency is square.")
    sign = -1 if symmetry == "skew-symmetric" else 1
    return _MatrixHeader(rows, entries, symmetry != "general", begin, sign, weights)


def _banner(text: FileIn, line: str) -> list[str]:
    """Layout, field and symmetry."""
    banner = " ".join(line.lower().split())
    words = banner.removeprefix(BANNER).split()
    if not banner.startswith(BANNER) or len(words) != 3 or words[2] not in SYMMETRIES:
        raise _wrong(f"{text}, line 1: {banner[:60]!r} is no head of a matrix.")
    return words


def _pairs(text: FileIn, header: _MatrixHeader, at_once: int) -> list[Piece]:
    weighted = header.weights is not None
    return pairs_of(text, at_once, header.begin, partial(_fault, text, header), weighted=weighted)


def _pieces(text: FileIn, header: _MatrixHeader, at_once: int) -> list[Piece]:
    pairs = _pairs(text, header, max(at_once // (1 + header.is_mirrored), 1))
    return [partial(_expanded, piece, header) for piece in pairs]


def _expanded(piece: Piece, header: _MatrixHeader) -> Iterator[Edges]:
    for row, col, *values in piece():
        source, target = row - 1, col - 1
        off = source != target if header.is_mirrored else slice(0)
        weight = [np.concatenate([value, header.sign * value[off]]) for value in values]
        ends = np.concatenate([source, target[off]]), np.concatenate([target, source[off]])
        yield (*ends, *weight)  # type: ignore[misc]


def _fault(text: FileIn, header: _MatrixHeader) -> UserError:
    """The error for the first line that is no entry. Slow: reads line by line."""
    rows = header.rows
    for line, (_, number) in numbered_lines(text, header.begin):
        words = line.split("%")[0].split()
        ids = [word for word in words[:2] if word.isdecimal() and 1 <= int(word) <= rows]
        if words and len(ids) < 2:
            entry = clip_line(" ".join(words), 40)
            return _wrong(f"{text}, line {number}: {entry!r} is no entry of {rows} x {rows}.")
        if words and header.weights and not (words[2:] and is_number(words[2])):
            return _wrong(f"{text}, line {number}: {clip_line(' '.join(words), 40)!r} has no value.")
    return _wrong(f"{text} cannot be read as text.")


def _wrong(fault: str) -> UserError:
    return UserError(f"{fault} Expected {EXPECTED}.")
