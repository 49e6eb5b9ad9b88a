"""Matrix Market files (.mtx, .mtx.gz, or in an archive), as SuiteSparse publishes them.

An entry (i, j) is the edge from vertex i to vertex j, whatever its value: a stored zero is an edge too. A symmetric
matrix lists half of its entries; mirrored entries are edges too. If the card has weights, the value is the weight of
the edge; mirrored entries of a skew-symmetric matrix have the negative value.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from harness.base.errors import UserError
from harness.base.validation import clip_line
from harness.graph.model import Weighting
from harness.graph.sources.archive import FileRef
from harness.graph.sources.read_errors import convert_read_errors
from harness.graph.sources.remote import RemoteFile
from harness.graph.sources.source import FileSource, ReadOptions, Source
from harness.graph.sources.stream import (
    CHUNK_EDGES,
    Edges,
    EdgeStream,
    Piece,
    count_edges,
    make_missing_weights_error,
)
from harness.graph.sources.text import START, LinePosition, cut_into_pairs, is_number, read_numbered_lines

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

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        return open_matrix_stream(FileRef(options.folder / self.path), options.weights)


WORD = r"^[A-Za-z0-9][\w.+-]*$"


class SuiteSparse(Source):
    """GROUP/NAME of https://sparse.tamu.edu: an archive with a Matrix Market file and possibly other files.

    Names are unique only within a group.
    """

    kind: Literal["suitesparse"]
    reads_weights: ClassVar[bool] = True
    group: str = Field(pattern=WORD)
    name: str = Field(pattern=WORD)
    sha256: str | None = None
    """The checksum of the archive, if known; none is published."""

    def list_remote_files(self) -> list[RemoteFile]:
        path = f"{self.group}/{self.name}.tar.gz"
        url = f"https://sparse.tamu.edu/MM/{path}"
        return [RemoteFile(url=url, file=f"raw/suitesparse/{path}", sha256=self.sha256)]

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        (archive,) = self.list_files()
        return open_matrix_stream(
            FileRef(options.folder / archive, f"{self.name}/{self.name}.mtx"), options.weights
        )


class _MatrixHeader(NamedTuple):
    """The size of a matrix, and the position of its first entry."""

    rows: int
    entries: int
    is_mirrored: bool
    start: LinePosition
    sign: int = 1
    """-1 if mirrored entries have the negative value."""
    weights: Weighting | None = None
    """Not None if values are read."""


def open_matrix_stream(text: FileRef, weights: Weighting | None = None) -> EdgeStream:
    """Return the entries of a matrix as a stream of edges. All are read once and counted."""
    with convert_read_errors(text.path, EXPECTED):
        header = _read_header(text, weights)
        counts = count_edges(_cut_pairs(text, header, CHUNK_EDGES), text.path, weights)
    if counts.edges != header.entries:
        raise _make_format_error(
            f"{text} has {counts.edges:,} entries, but its header says {header.entries:,}."
        )
    if not counts.are_within(range(1, header.rows + 1)):
        raise _make_line_error(text, header)
    pieces = partial(_cut_pieces, text, header)
    return EdgeStream(header.rows, header.entries * (1 + header.is_mirrored), pieces)


def _read_header(text: FileRef, weights: Weighting | None) -> _MatrixHeader:
    lines = read_numbered_lines(text)
    layout, field, symmetry = _parse_banner(text, next(lines, ("", START))[0])
    if weights and field not in ("real", "double", "integer"):
        raise make_missing_weights_error(text.path, f"its values are of the field {clip_line(field, 20)}")
    data = ((line.split("%")[0].split(), after) for line, after in lines)
    sizes, start = next(((words, after) for words, after in data if words), ([], START))
    if not sizes:
        raise _make_format_error(f"{text} has no size line.")
    if layout != "coordinate":
        raise _make_format_error(f"{text}, line 1: the layout is {layout!r}, which is dense.")
    if len(sizes) != 3 or not all(word.isdecimal() for word in sizes):
        raise _make_format_error(
            f"{text}, line {start.line}: {clip_line(' '.join(sizes), 40)!r} is not a size line."
        )
    rows, cols, entries = map(int, sizes)
    if rows != cols or rows < 1:
        raise _make_format_error(f"{text}: the matrix is {rows} x {cols}, but an adjacency is square.")
    sign = -1 if symmetry == "skew-symmetric" else 1
    return _MatrixHeader(rows, entries, symmetry != "general", start, sign, weights)


def _parse_banner(text: FileRef, line: str) -> list[str]:
    """Parse layout, field and symmetry."""
    banner = " ".join(line.lower().split())
    words = banner.removeprefix(BANNER).split()
    if not banner.startswith(BANNER) or len(words) != 3 or words[2] not in SYMMETRIES:
        raise _make_format_error(f"{text}, line 1: {banner[:60]!r} is not the header of a matrix.")
    return words


def _cut_pairs(text: FileRef, header: _MatrixHeader, at_once: int) -> list[Piece]:
    weighted = header.weights is not None
    return cut_into_pairs(
        text, at_once, header.start, partial(_make_line_error, text, header), weighted=weighted
    )


def _cut_pieces(text: FileRef, header: _MatrixHeader, at_once: int) -> list[Piece]:
    pairs = _cut_pairs(text, header, max(at_once // (1 + header.is_mirrored), 1))
    return [partial(_mirror_entries, piece, header) for piece in pairs]


def _mirror_entries(piece: Piece, header: _MatrixHeader) -> Iterator[Edges]:
    for row, col, *values in piece():
        source, target = row - 1, col - 1
        off_diagonal = source != target if header.is_mirrored else slice(0)
        weight = [np.concatenate([value, header.sign * value[off_diagonal]]) for value in values]
        ends = np.concatenate([source, target[off_diagonal]]), np.concatenate([target, source[off_diagonal]])
        yield (*ends, *weight)  # type: ignore[misc]


def _make_line_error(text: FileRef, header: _MatrixHeader) -> UserError:
    """Return the error for the first line that is not an entry. Slow: reads line by line."""
    rows = header.rows
    for line, (_, number) in read_numbered_lines(text, header.start):
        words = line.split("%")[0].split()
        ids = [word for word in words[:2] if word.isdecimal() and 1 <= int(word) <= rows]
        if words and len(ids) < 2:
            entry = clip_line(" ".join(words), 40)
            return _make_format_error(
                f"{text}, line {number}: {entry!r} is not an entry of a {rows} x {rows} matrix."
            )
        if words and header.weights and not (words[2:] and is_number(words[2])):
            return _make_format_error(
                f"{text}, line {number}: {clip_line(' '.join(words), 40)!r} has no value."
            )
    return _make_format_error(f"{text} cannot be read as text.")


def _make_format_error(reason: str) -> UserError:
    return UserError(f"{reason} Expected {EXPECTED}.")
