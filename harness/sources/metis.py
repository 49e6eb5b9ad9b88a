"""Graphs as METIS reads them (.graph, also .gz): a line a vertex, its neighbours from 1, each edge from both ends.

The first line that is no comment says 'vertices edges [fmt [ncon]]'; fmt has a digit for sizes of vertices, weights of
vertices (ncon of them) and weights of edges. Weights of vertices are ignored.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from harness.errors import UserError
from harness.graph.model import Weighting
from harness.sources.archive import FileIn
from harness.sources.refusal import refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import AT_ONCE, Edges, Piece, Stream, check_weights, no_weights
from harness.sources.text import START, Begin, Lines, count_rows, lines_of, numbered_lines, parse_rows
from harness.validation import clip_line

EXPECTED = "a line 'vertices edges [fmt [ncon]]', then a line a vertex with its neighbours' numbers from 1"


class Metis(FileSource):
    """A graph file of METIS."""

    kind: Literal["metis"]
    reads_weights: ClassVar[bool] = True

    def stream(self, rest: Rest) -> Stream:
        text = FileIn(rest.folder / self.path)
        with refusing(text.path, EXPECTED):
            header = _header(text)._replace(weights=rest.weights)
            if rest.weights and header.step == 1:
                raise no_weights(text.path, "its first line does not announce them (fmt 001)")
            _check(text, header)
        return Stream(header.n, 2 * header.edges, partial(_pieces, text, header))


class _MetisHeader(NamedTuple):
    """The size of a graph, and the layout of its lines: `skip` numbers, then a neighbour in every `step` numbers."""

    n: int
    edges: int
    skip: int
    step: int
    begin: Begin
    weights: Weighting | None = None
    """Set if the weights of edges are to be read."""


def _header(text: FileIn) -> _MetisHeader:
    data = ((line, after) for line, after in numbered_lines(text) if not line.startswith("%"))
    line, begin = next(data, ("", START))
    if not line:
        raise _wrong(f"{text} has no line of sizes.")
    words = line.split()
    if not 2 <= len(words) <= 4 or not all(word.isdecimal() for word in words) or int(words[0]) < 1:
        raise _wrong(f"{text}: {clip_line(' '.join(words), 40)!r} are no sizes.")
    sizes, weights, on_edges = (digit != "0" for digit in (words[2] if words[2:] else "").zfill(3)[-3:])
    weighed = int(words[3]) if words[3:] else 1
    return _MetisHeader(int(words[0]), int(words[1]), sizes + weights * weighed, 1 + on_edges, begin)


def _check(text: FileIn, header: _MetisHeader) -> None:
    """Reads all lines once, and compares their ids and their numbers with the header."""
    ends = 0
    for piece in _pieces(text, header, AT_ONCE):
        for vertices, neighbours, *weight in piece():
            check_weights(text.path, (vertices + 1, neighbours + 1, *weight), header.weights, ends)
            ends += len(neighbours)
            for ids, kind in ((vertices, "lines"), (neighbours, "neighbours")):
                if len(ids) and not (ids.min() >= 0 and ids.max() < header.n):
                    raise _wrong(
                        f"{text} has {kind} beyond its {header.n:,} vertices: {ids.min() + 1:,} to {ids.max() + 1:,}."
                    )
    rows = sum(_rows_in(lines) for lines in _lines(text, header, AT_ONCE))
    if rows < header.n:
        raise _wrong(f"{text} has lines for {rows:,} of its {header.n:,} vertices.")
    if ends != 2 * header.edges:
        raise UserError(
            f"{text} lists {ends:,} neighbours, and its first line says {header.edges:,} edges, "
            "each of which is listed from both ends."
        )


def _pieces(text: FileIn, header: _MetisHeader, at_once: int) -> list[Piece]:
    """Counts the lines of each piece, because the vertex of a line is the number of the lines before it."""
    pieces: list[Piece] = []
    row = 0
    for lines in _lines(text, header, at_once):
        pieces.append(partial(_edges, text, header, lines, row))
        row += _rows_in(lines) if text.is_plain else 0
    return pieces


def _lines(text: FileIn, header: _MetisHeader, at_once: int) -> list[Lines]:
    return lines_of(text, max(at_once // 2, 1), header.begin)


def _rows_in(lines: Lines) -> int:
    """The number of lines of vertices: those without comments."""
    return sum(count_rows(data) for data in lines())


def _edges(text: FileIn, header: _MetisHeader, lines: Lines, row: int) -> Iterator[Edges]:
    """The edges of some lines, the first of which is of this vertex."""
    for data in lines():
        source, target = (np.empty(len(data) // 2 + 1, np.int64) for _ in range(2))
        weight = np.empty(len(source)) if header.weights else None
        count, row, wrong = parse_rows(data, row, header.skip, header.step, source, target, weight)
        if wrong >= 0:
            raise _wrong(f"{text}: the line of vertex {wrong + 1:,} is no list of numbers.")
        yield (source[:count], target[:count], *([] if weight is None else [weight[:count]]))  # type: ignore[misc]


def _wrong(fault: str) -> UserError:
    return UserError(f"{fault} Expected {EXPECTED}.")
