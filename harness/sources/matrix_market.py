"""Matrix Market files (.mtx, .mtx.gz), as SuiteSparse publishes them.

An entry (i, j) is the edge from vertex i to vertex j, whatever its value: a stored zero is an edge too. A symmetric
header stands for the mirror entries too; they count as given.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.io import mminfo

from harness.errors import UserError
from harness.sources.refusal import refusing
from harness.sources.source import Rest, Source
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, Begin, counted, opened, pairs_of, skipped

EXPECTED = (
    "a line '%%MatrixMarket matrix coordinate FIELD SYMMETRY', comments with %, a line 'rows columns entries', "
    "and that many lines 'row column [value]' with ids from 1"
)


def _wanted() -> str:
    return f"Expected {EXPECTED}."


class MatrixMarket(Source):
    """A Matrix Market file, .mtx or .mtx.gz."""

    kind: Literal["mtx"]
    path: str

    def files(self) -> list[str]:
        return [self.path]

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.path
        with refusing(path, EXPECTED):
            rows, entries, mirrored = _header(path)
            found = counted(_pairs(path, AT_ONCE))
        if found.pairs != entries:
            raise UserError(
                f"{path} holds {found.pairs:,} entries, and its header says {entries:,}. {_wanted()}"
            )
        if found.pairs and not (found.smallest >= 1 and found.largest <= rows):
            raise UserError(_fault(path))
        return Stream(rows, entries * (1 + mirrored), partial(_pieces, path, mirrored=mirrored))


def _header(path: Path) -> tuple[int, int, bool]:
    """Rows, entries as listed, and whether each stands for its mirror image too."""
    rows, cols, entries, layout, _, symmetry = mminfo(path)
    if layout != "coordinate":
        raise UserError(f"{path}, line 1: the layout is {layout!r}, which lists every element. {_wanted()}")
    if rows != cols or rows < 1:
        raise UserError(f"{path}: the matrix is {rows} x {cols}, but an adjacency is square. {_wanted()}")
    return rows, entries, symmetry != "general"


def _begin(path: Path) -> Begin:
    """Where the entries begin: after the first line that is no comment."""
    return skipped(path, lambda _: True, skipped(path, lambda line: bool(line.split("%")[0].strip())), more=1)


def _pairs(path: Path, at_once: int) -> list[Piece]:
    return pairs_of(path, at_once, _begin(path), lambda: UserError(_fault(path)))


def _pieces(path: Path, at_once: int, *, mirrored: bool) -> list[Piece]:
    return [partial(_expanded, piece, mirrored) for piece in _pairs(path, max(at_once // (1 + mirrored), 1))]


def _expanded(piece: Piece, mirrored: bool) -> Iterator[Edges]:
    for row, col in piece():
        source, target = row - 1, col - 1
        off = source != target if mirrored else slice(0)
        yield np.concatenate([source, target[off]]), np.concatenate([target, source[off]])


def _fault(path: Path) -> str:
    """The first line that is no entry, of a file that has one. Slow: it reads line by line."""
    rows, _, _ = _header(path)
    begin = _begin(path)
    with opened(path) as file:
        file.seek(begin.byte)
        for number, line in enumerate(file, start=begin.line + 1):
            words = line.decode(errors="replace").split("%")[0].split()
            if words and not (
                len(words) > 1 and all(w.isdecimal() and 1 <= int(w) <= rows for w in words[:2])
            ):
                return (
                    f"{path}, line {number}: {' '.join(words)!r} is no entry of {rows} x {rows}. {_wanted()}"
                )
    return f"{path} cannot be read as text. {_wanted()}"
