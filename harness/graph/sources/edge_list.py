"""Text files with one edge per line (.txt, .tsv, .csv, .triples, also .gz), as SNAP, OGB and HipMCL publish them.

A line 'u v' is the edge from u to v, by integer ids. A card with weights reads the third column; further columns are
ignored. A comma or white space separates the columns; # or % starts a comment. Vertices may have names instead of ids
(`harness.graph.sources.named_edges`).
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from harness.base.errors import UserError
from harness.base.validation import VERTICES, clip_line
from harness.graph.sources.archive import FileRef
from harness.graph.sources.named_edges import NAMES_EXPECTED, NamedEdgeText, VerticesHaveNames
from harness.graph.sources.read_errors import CARD_HINTS, convert_read_errors
from harness.graph.sources.source import FileSource, ReadOptions
from harness.graph.sources.stream import CHUNK_EDGES, Edges, EdgeStream, Piece, count_edges
from harness.graph.sources.text import (
    START,
    LinePosition,
    cut_into_pairs,
    is_number,
    read_numbered_lines,
    strip_comment,
)

EXPECTED = "one edge per line: two integer ids, separated by a comma or by white space"


class EdgeList(FileSource):
    """A text file with one edge per line, plain or gzipped."""

    kind: Literal["edges"]
    reads_weights: ClassVar[bool] = True
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. By default it follows from the largest id, so isolated vertices at the end are lost."""
    base: Literal[0, 1] = 0
    """The id of the first vertex."""
    header: bool = False
    """True if the first line that is not a comment names the columns."""
    names: VerticesHaveNames = False
    """True if vertices have names; they are numbered from 0 by the byte order of their names."""

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        text = FileRef(options.folder / self.path)
        if self.names:
            with convert_read_errors(text.path, NAMES_EXPECTED):
                start = self._find_first_edge(text)
                named = NamedEdgeText(text, start, options.weights)
                if not self.header:
                    named.check_first_line()
                return named.open_stream()
        with convert_read_errors(text.path, EXPECTED):
            start = self._find_first_edge(text)
            pieces = partial(self._cut_pieces, text, start, options.weights is not None)
            counts = count_edges(pieces(CHUNK_EDGES), text.path, options.weights)
        n = counts.resolve_vertex_count(text.path, self.n)
        if not counts.are_within(range(n)):
            raise self._make_line_error(text, start, n)
        return EdgeStream(n, counts.edges, pieces)

    def _find_first_edge(self, text: FileRef) -> LinePosition:
        """Return the position after the line that names the columns, if the file has one."""
        data = (after for line, after in read_numbered_lines(text) if strip_comment(line))
        return next(data, START) if self.header else START

    def _cut_pieces(self, text: FileRef, start: LinePosition, weighted: bool, at_once: int) -> list[Piece]:
        make_error = partial(self._make_line_error, text, start, self.n or 1 << 62, weighted)
        pairs = cut_into_pairs(text, at_once, start, make_error, weighted=weighted)
        return [partial(_subtract_base, piece, self.base) for piece in pairs]

    def _make_line_error(
        self, text: FileRef, start: LinePosition, n: int, weighted: bool = False
    ) -> UserError:
        """Return the error for the first line that is not an edge. Slow: reads line by line."""
        ids = range(self.base, self.base + n)
        for line, (_, number) in read_numbered_lines(text, start):
            columns = strip_comment(line).replace(",", " ").split()
            words, weight = columns[:2], columns[2:3]
            wrong = [word for word in words if not _is_id(word)]
            if words and (wrong or len(words) < 2):
                columns_named, vertices_named = CARD_HINTS["header"], CARD_HINTS["names"]
                hint = f"; if it names the columns, {columns_named}; if vertices have names, {vertices_named}"
                edge = clip_line(strip_comment(line), 40)
                return UserError(
                    f"{text}, line {number}: {edge!r} is not an edge. Expected {EXPECTED}{hint if number == 1 else ''}."
                )
            if outside := [word for word in words if int(word) not in ids]:
                return UserError(
                    f"{text}, line {number}: the id {outside[0]} is not in {ids.start} .. {ids.stop - 1}: "
                    f"{CARD_HINTS['n']}, the number of vertices, or {CARD_HINTS['base']}, the first id."
                )
            if words and weighted and not (weight and is_number(weight[0])):
                edge = clip_line(strip_comment(line), 40)
                return UserError(
                    f"{text}, line {number}: {edge!r} has no weight. Expected a number as its third column."
                )
        return UserError(f"{text} cannot be read as text. Expected {EXPECTED}.")


def _is_id(text: str) -> bool:
    """Return True for the text of a 64-bit integer."""
    return len(text) < 30 and text.lstrip("+-").isdecimal() and -(1 << 63) <= int(text) < 1 << 63


def _subtract_base(piece: Piece, base: int) -> Iterator[Edges]:
    for source, target, *weight in piece():
        yield (source - base, target - base, *weight)  # type: ignore[misc]
