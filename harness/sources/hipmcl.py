"""Matrices as CombBLAS and HipMCL write them: in binary, or as labelled triples in text.

A binary file has a head of 52 bytes, 'HKDT' and six numbers of 64 bits: version, bytes of an entry, 0 for binary, rows,
columns, entries. Row, column and value of each entry follow. Ids begin at 0. An entry (i, j) is the edge from vertex i
to vertex j, whatever its value.
"""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from harness.errors import UserError
from harness.sources.archive import FileIn
from harness.sources.edge_list import NamedText
from harness.sources.refusal import refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import AT_ONCE, Edges, Stream, by_number, counted
from harness.sources.text import START

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

TRIPLES_EXPECTED = "a line for each edge: two names, and perhaps a weight, separated by one tab or one space"


class Triples(FileSource):
    """A text file of edges between names, plain or gzipped."""

    kind: Literal["triples"]
    reads_weights: ClassVar[bool] = True

    def stream(self, rest: Rest) -> Stream:
        text = FileIn(rest.folder / self.path)
        with refusing(text.path, TRIPLES_EXPECTED):
            return NamedText(text, START, TRIPLES_EXPECTED, rest.weights).stream()
