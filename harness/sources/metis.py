"""Graphs as METIS reads them (.graph, also .gz): a line a vertex, its neighbours from 1, each edge from both ends.

The first line that is no comment says 'vertices edges [fmt [ncon]]'; fmt has a digit for sizes of vertices, weights of
vertices (ncon of them) and weights of edges. Weights are ignored.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from harness.errors import UserError
from harness.sources.archive import Place, opened
from harness.sources.refusal import refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, MARK, Begin, Lines, decoded, lines_of
from harness.validation import clipped

EXPECTED = "a line 'vertices edges [fmt [ncon]]', then a line a vertex with its neighbours' numbers from 1"


class Metis(FileSource):
    """A graph file of METIS."""

    kind: Literal["metis"]

    def stream(self, rest: Rest) -> Stream:
        text = Place(rest.folder / self.path)
        with refusing(text.path, EXPECTED):
            header = _header(text)
            _check(text, header)
        return Stream(header.n, 2 * header.edges, partial(_pieces, text, header))


class _Header(NamedTuple):
    """Sizes, how many numbers of a line come before its neighbours, and how many there are to each of them."""

    n: int
    edges: int
    skip: int
    step: int
    begin: Begin


def _header(text: Place) -> _Header:
    byte = 0
    with opened(text) as file:
        for line in file:
            byte += len(line)
            if not line.removeprefix(MARK).startswith(b"%"):
                break
        else:
            raise UserError(f"{text} has no line of sizes. Expected {EXPECTED}.")
    said = decoded(line).split()
    if not 2 <= len(said) <= 4 or not all(word.isdecimal() for word in said) or int(said[0]) < 1:
        raise UserError(f"{text}: {clipped(' '.join(said), 40)!r} are no sizes. Expected {EXPECTED}.")
    sizes, weights, on_edges = (digit != "0" for digit in (said[2] if said[2:] else "").zfill(3)[-3:])
    weighed = int(said[3]) if said[3:] else 1
    return _Header(int(said[0]), int(said[1]), sizes + weights * weighed, 1 + on_edges, Begin(byte))


def _check(text: Place, header: _Header) -> None:
    """Everything is read once and counted."""
    ends = 0
    for piece in _pieces(text, header, AT_ONCE):
        for vertices, neighbours in piece():
            ends += len(neighbours)
            for ids, what in ((vertices, "lines"), (neighbours, "neighbours")):
                if len(ids) and not (ids.min() >= 0 and ids.max() < header.n):
                    raise UserError(
                        f"{text} has {what} beyond its {header.n:,} vertices: "
                        f"{ids.min() + 1:,} to {ids.max() + 1:,}. Expected {EXPECTED}."
                    )
    rows = sum(_rows_in(lines) for lines in _lines(text, header, AT_ONCE))
    if rows < header.n:
        raise UserError(f"{text} has lines for {rows:,} of its {header.n:,} vertices.")
    if ends != 2 * header.edges:
        raise UserError(
            f"{text} lists {ends:,} neighbours, and its first line says {header.edges:,} edges, "
            "each of which is listed from both ends."
        )


def _pieces(text: Place, header: _Header, at_once: int) -> list[Piece]:
    """Which vertex a line belongs to is known when the lines before it are counted."""
    pieces: list[Piece] = []
    row = 0
    for lines in _lines(text, header, at_once):
        pieces.append(partial(_edges, text, header, lines, row))
        row += _rows_in(lines) if text.is_plain else 0
    return pieces


def _lines(text: Place, header: _Header, at_once: int) -> list[Lines]:
    return lines_of(text, max(at_once // 2, 1), header.begin)


def _rows_in(lines: Lines) -> int:
    """Lines that are no comments, each of a vertex."""
    from harness.sources.text import count_rows

    return sum(count_rows(data) for data in lines())


def _edges(text: Place, header: _Header, lines: Lines, row: int) -> Iterator[Edges]:
    """Those of some lines, the first of which is of this vertex."""
    from harness.sources.text import parse_rows

    for data in lines():
        source, target = (np.empty(len(data) // 2 + 1, np.int64) for _ in range(2))
        found, row, wrong = parse_rows(data, row, header.skip, header.step, source, target)
        if wrong >= 0:
            raise UserError(
                f"{text}: the line of vertex {wrong + 1:,} is no list of numbers. Expected {EXPECTED}."
            )
        yield source[:found], target[:found]
