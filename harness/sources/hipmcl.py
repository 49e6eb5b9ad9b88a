"""Matrices as CombBLAS and HipMCL write them: in binary, or as labelled triples in text.

A binary file has a head of 52 bytes, 'HKDT' and six numbers of 64 bits: version, bytes of an entry, 0 for binary, rows,
columns, entries. Row, column and value of each entry follow. Ids begin at 0. An entry (i, j) is the edge from vertex i
to vertex j, whatever its value.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from harness.errors import UserError
from harness.sources.archive import FileIn
from harness.sources.refusal import refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import AT_ONCE, Edges, Piece, Stream, by_number, counted
from harness.sources.text import START, Lines, lines_of

BINARY_EXPECTED = (
    "'HKDT', six numbers of 64 bits (version, bytes of an entry, 0, rows, columns, entries), and the entries"
)
HEAD = np.dtype(
    [("magic", "S4"), *((key, "<u8") for key in ("version", "size", "format", "rows", "cols", "entries"))]
)


class CombBlas(FileSource):
    """A file of A.ParallelBinaryWrite, or of HipMCL."""

    kind: Literal["combblas"]
    index_bits: Literal[32, 64] = 64
    """The bits of a row's number and of a column's, which the file does not give."""

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.path
        with refusing(path, BINARY_EXPECTED):
            n, entry, entries = self._head(path)
            pieces = by_number(entries, partial(_entries, path, entry))
            way_out = f" Are its ids of {self.index_bits} bits (index_bits)?"
            counted(pieces(AT_ONCE)).check(path, n, way_out)
        return Stream(n, entries, pieces)

    def _head(self, path: Path) -> tuple[int, np.dtype[np.void], int]:
        """The number of vertices, the layout of an entry, and the number of entries."""
        head = np.fromfile(path, HEAD, 1)
        if not len(head) or head["magic"][0] != b"HKDT" or head["format"][0] != 0:
            raise UserError(f"{path} does not begin as expected. Expected {BINARY_EXPECTED}.")
        size, rows, cols, entries = (int(head[key][0]) for key in ("size", "rows", "cols", "entries"))
        if rows != cols or rows < 1:
            raise UserError(f"{path}: the matrix is {rows} x {cols}, but an adjacency is square.")
        index = self.index_bits // 8
        expected, actual = HEAD.itemsize + size * entries, path.stat().st_size
        if size < 2 * index or expected != actual:
            raise UserError(
                f"{path} has {actual:,} bytes. Its head says {entries:,} entries of {size} bytes, {expected:,} in all, "
                f"of which two ids take {2 * index} (index_bits)."
            )
        ends: Any = [("row", f"<i{index}"), ("col", f"<i{index}"), ("value", f"V{size - 2 * index}")]
        return rows, np.dtype(ends), entries


def _entries(path: Path, entry: np.dtype[np.void], numbers: range) -> Edges:
    """The entries with these numbers, as edges."""
    offset = HEAD.itemsize + numbers.start * entry.itemsize
    entries = np.fromfile(path, entry, len(numbers), offset=offset)
    return entries["row"].astype(np.int64), entries["col"].astype(np.int64)


# Labelled triples, as HipMCL reads them: two names and a weight a line, separated by white space.
#
# Vertices have the numbers of their names in sorted order (`LC_ALL=C sort -u`), whichever line came first.
# Weights are ignored: the graphs here have none, so of lines that repeat an edge one counts.

TRIPLES_EXPECTED = "a line for each edge: two names, and perhaps a weight, separated by one tab or one space"
ENDS = ("source", "target")


class Triples(FileSource):
    """A text file of edges between names, plain or gzipped."""

    kind: Literal["triples"]

    def stream(self, rest: Rest) -> Stream:
        text = FileIn(rest.folder / self.path)
        with refusing(text.path, TRIPLES_EXPECTED):
            names, edges = _names(text)
        if not edges:
            raise UserError(f"{text} holds no edge. Expected {TRIPLES_EXPECTED}.")
        return Stream(len(names), edges, partial(_text_pieces, text, names))


def _names(text: FileIn) -> tuple[Any, int]:
    """All names, sorted, and the number of edges."""
    names, edges = pa.array([], pa.binary()), 0
    for lines in lines_of(text, AT_ONCE, START):
        for chunk in lines():
            ends = _ends(text, chunk)
            names = pc.unique(pa.chunked_array([names, *(end.unique() for end in ends)]))
            edges += len(ends[0])
    return names.take(pc.sort_indices(names)), edges


def _text_pieces(text: FileIn, names: Any, at_once: int) -> list[Piece]:
    return [partial(_numbered, text, lines, names) for lines in lines_of(text, at_once, START)]


def _numbered(text: FileIn, lines: Lines, names: Any) -> Iterator[Edges]:
    for chunk in lines():
        source, target = (pc.index_in(end, names).to_numpy().astype(np.int64) for end in _ends(text, chunk))
        yield source, target


def _ends(text: FileIn, lines: NDArray[np.uint8]) -> tuple[Any, Any]:
    """The first two columns of some lines."""
    data = lines.tobytes()
    if not data.strip():
        nothing = pa.chunked_array([], pa.binary())
        return nothing, nothing
    first = data.lstrip(b"\n").split(b"\n", 1)[0]
    separator = "\t" if b"\t" in first else " "
    columns = [*ENDS, *(f"further {number}" for number in range(first.count(separator.encode()) - 1))]
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=columns, use_threads=False),
            csv.ParseOptions(delimiter=separator, quote_char=False),
            csv.ConvertOptions(include_columns=ENDS, column_types=dict.fromkeys(ENDS, pa.binary())),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise UserError(f"{text}: {str(error).splitlines()[0]} Expected {TRIPLES_EXPECTED}.") from None
    source, target = (table[end] for end in ENDS)
    if any(pc.min(pc.binary_length(end)).as_py() == 0 for end in (source, target)):
        raise UserError(
            f"{text}: a line begins with white space, or has two of them. Expected {TRIPLES_EXPECTED}."
        )
    return source, target
