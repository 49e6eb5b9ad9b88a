"""Matrices as CombBLAS and HipMCL write them: in binary, or as labelled triples in text.

A binary file has a header of 52 bytes, 'HKDT' and six 64-bit numbers: version, bytes per entry, 0 for binary, rows,
columns, entries. Row, column and value of each entry follow. Ids start at 0. An entry (i, j) is the edge from vertex i
to vertex j, whatever its value.
"""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from harness.errors import UserError
from harness.sources.archive import FileRef
from harness.sources.named_edges import NamedEdgeText
from harness.sources.read_errors import convert_read_errors
from harness.sources.source import FileSource, ReadOptions
from harness.sources.stream import CHUNK_EDGES, Edges, EdgeStream, count_edges, cut_by_index
from harness.sources.text import START

BINARY_EXPECTED = (
    "'HKDT', six 64-bit numbers (version, bytes per entry, 0, rows, columns, entries), and the entries"
)
HEADER = np.dtype(
    [("magic", "S4"), *((key, "<u8") for key in ("version", "size", "format", "rows", "cols", "entries"))]
)


class CombBlas(FileSource):
    """A file written by A.ParallelBinaryWrite or by HipMCL."""

    kind: Literal["combblas"]
    index_bits: Literal[32, 64] = 64
    """The number of bits of row and column ids, which the file does not say."""

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        path = options.folder / self.path
        with convert_read_errors(path, BINARY_EXPECTED):
            n, entry, entries = self._read_header(path)
            pieces = cut_by_index(entries, partial(_read_entries, path, entry))
            hint = f" Do its ids have {self.index_bits} bits (index_bits)?"
            count_edges(pieces(CHUNK_EDGES)).check(path, n, hint)
        return EdgeStream(n, entries, pieces)

    def _read_header(self, path: Path) -> tuple[int, np.dtype[np.void], int]:
        """Return the number of vertices, the dtype of an entry, and the number of entries."""
        head = np.fromfile(path, HEADER, 1)
        if not len(head) or head["magic"][0] != b"HKDT" or head["format"][0] != 0:
            raise UserError(f"{path} has an unexpected header. Expected {BINARY_EXPECTED}.")
        size, rows, cols, entries = (int(head[key][0]) for key in ("size", "rows", "cols", "entries"))
        if rows != cols or rows < 1:
            raise UserError(f"{path}: the matrix is {rows} x {cols}, but an adjacency is square.")
        index = self.index_bits // 8
        expected, actual = HEADER.itemsize + size * entries, path.stat().st_size
        if size < 2 * index or expected != actual:
            raise UserError(
                f"{path} has {actual:,} bytes. According to its header, it has {entries:,} entries of {size} bytes, "
                f"{expected:,} bytes in all; two ids take {2 * index} of each entry (index_bits)."
            )
        ends: Any = [("row", f"<i{index}"), ("col", f"<i{index}"), ("value", f"V{size - 2 * index}")]
        return rows, np.dtype(ends), entries


def _read_entries(path: Path, entry: np.dtype[np.void], numbers: range) -> Edges:
    """Return a range of entries as edges."""
    offset = HEADER.itemsize + numbers.start * entry.itemsize
    entries = np.fromfile(path, entry, len(numbers), offset=offset)
    return entries["row"].astype(np.int64), entries["col"].astype(np.int64)


# Labelled triples, as HipMCL reads them: two names and a weight per line, separated by white space.

TRIPLES_EXPECTED = "one edge per line: two names and optionally a weight, separated by one tab or one space"


class Triples(FileSource):
    """A text file of edges between named vertices, plain or gzipped."""

    kind: Literal["triples"]
    reads_weights: ClassVar[bool] = True

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        text = FileRef(options.folder / self.path)
        with convert_read_errors(text.path, TRIPLES_EXPECTED):
            return NamedEdgeText(text, START, TRIPLES_EXPECTED, options.weights).open_stream()
