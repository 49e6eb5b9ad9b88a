"""Graphs as METIS reads them (.graph, also .gz): a line per vertex with its neighbours, numbered from 1.

Every edge is listed from both ends. The first line that is not a comment is 'vertices edges [fmt [ncon]]'; fmt has one
digit each for vertex sizes, vertex weights (ncon per vertex) and edge weights. Vertex weights are ignored.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.validation import clip_line
from harness.graph.model import Weighting
from harness.graph.sources.archive import FileRef
from harness.graph.sources.read_errors import convert_read_errors
from harness.graph.sources.source import FileSource, ReadOptions
from harness.graph.sources.stream import (
    CHUNK_EDGES,
    Edges,
    EdgeStream,
    Piece,
    check_weights,
    make_missing_weights_error,
)
from harness.graph.sources.text import (
    START,
    LinePosition,
    ReadLines,
    cut_into_lines,
    read_numbered_lines,
)

EXPECTED = "a line 'vertices edges [fmt [ncon]]', then a line per vertex with its neighbours, numbered from 1"


class Metis(FileSource):
    """A METIS graph file."""

    kind: Literal["metis"]
    reads_weights: ClassVar[bool] = True

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        text = FileRef(options.folder / self.path)
        with convert_read_errors(text.path, EXPECTED):
            header = _read_header(text)._replace(weights=options.weights)
            if options.weights and header.step == 1:
                raise make_missing_weights_error(text.path, "its first line does not declare them (fmt 001)")
            _check_lines(text, header)
        return EdgeStream(header.n, 2 * header.edges, partial(_cut_pieces, text, header))


class _MetisHeader(NamedTuple):
    """The size of a graph, and the layout of its lines: `skip` numbers, then a neighbour every `step` numbers."""

    n: int
    edges: int
    skip: int
    step: int
    start: LinePosition
    weights: Weighting | None = None
    """Not None if edge weights are read."""


def _read_header(text: FileRef) -> _MetisHeader:
    data = ((line, after) for line, after in read_numbered_lines(text) if not line.startswith("%"))
    line, start = next(data, ("", START))
    if not line:
        raise _make_format_error(f"{text} has no size line.")
    words = line.split()
    if not 2 <= len(words) <= 4 or not all(word.isdecimal() for word in words) or int(words[0]) < 1:
        raise _make_format_error(f"{text}: {clip_line(' '.join(words), 40)!r} is not a size line.")
    layout = (words[2] if words[2:] else "").zfill(3)[-3:]
    vertex_sizes, vertex_weights, edge_weights = (digit != "0" for digit in layout)
    weights_per_vertex = int(words[3]) if words[3:] else 1
    return _MetisHeader(
        int(words[0]),
        int(words[1]),
        vertex_sizes + vertex_weights * weights_per_vertex,
        1 + edge_weights,
        start,
    )


def _check_lines(text: FileRef, header: _MetisHeader) -> None:
    """Read all lines once, and compare their ids and their number with the header."""
    ends = 0
    for piece in _cut_pieces(text, header, CHUNK_EDGES):
        for vertices, neighbours, *weight in piece():
            check_weights(text.path, (vertices + 1, neighbours + 1, *weight), header.weights, ends)
            ends += len(neighbours)
            for ids, kind in ((vertices, "lines"), (neighbours, "neighbours")):
                if len(ids) and not (ids.min() >= 0 and ids.max() < header.n):
                    raise _make_format_error(
                        f"{text} has {kind} beyond its {header.n:,} vertices: {ids.min() + 1:,} to {ids.max() + 1:,}."
                    )
    rows = sum(_count_vertex_lines(lines) for lines in _cut_lines(text, header, CHUNK_EDGES))
    if rows < header.n:
        raise _make_format_error(f"{text} has lines for only {rows:,} of its {header.n:,} vertices.")
    if ends != 2 * header.edges:
        raise UserError(
            f"{text} lists {ends:,} neighbours, but its first line says {header.edges:,} edges, "
            "each of which must be listed from both ends."
        )


def _cut_pieces(text: FileRef, header: _MetisHeader, at_once: int) -> list[Piece]:
    """Cut the file into pieces, and count the lines of each: a line belongs to the vertex of its number."""
    pieces: list[Piece] = []
    row = 0
    for lines in _cut_lines(text, header, at_once):
        pieces.append(partial(_read_edges, text, header, lines, row))
        row += _count_vertex_lines(lines) if text.is_plain else 0
    return pieces


def _cut_lines(text: FileRef, header: _MetisHeader, at_once: int) -> list[ReadLines]:
    return cut_into_lines(text, max(at_once // 2, 1), header.start)


def _count_vertex_lines(lines: ReadLines) -> int:
    """Count the lines of vertices, which are all lines except comments."""
    from harness.graph.sources.text_loops import count_rows

    return sum(count_rows(data) for data in lines())


def _read_edges(text: FileRef, header: _MetisHeader, lines: ReadLines, row: int) -> Iterator[Edges]:
    """Yield the edges of some lines, the first of which belongs to vertex `row`."""
    from harness.graph.sources.text_loops import parse_rows

    for data in lines():
        source, target = (np.empty(len(data) // 2 + 1, np.int64) for _ in range(2))
        weight = np.empty(len(source)) if header.weights else None
        count, row, wrong = parse_rows(data, row, header.skip, header.step, source, target, weight)
        if wrong >= 0:
            raise _make_format_error(f"{text}: the line of vertex {wrong + 1:,} is not a list of numbers.")
        yield (source[:count], target[:count], *([] if weight is None else [weight[:count]]))  # type: ignore[misc]


def _make_format_error(reason: str) -> UserError:
    return UserError(f"{reason} Expected {EXPECTED}.")
