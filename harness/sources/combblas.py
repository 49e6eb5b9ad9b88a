"""Matrices as CombBLAS and HipMCL write them in binary: a head of 52 bytes, then row, column and value of each entry.

The head is 'HKDT' and six numbers of 64 bits: version, bytes of an entry, 0 for binary, rows, columns, entries. Ids
begin at 0. An entry (i, j) is the edge from vertex i to vertex j, whatever its value.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.errors import UserError
from harness.sources.refusal import refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, counted

EXPECTED = (
    "'HKDT', six numbers of 64 bits (version, bytes of an entry, 0, rows, columns, entries), and the entries"
)
HEAD = np.dtype(
    [("magic", "S4"), *((key, "<u8") for key in ("version", "size", "format", "rows", "cols", "entries"))]
)


class CombBlas(FileSource):
    """A file of A.ParallelBinaryWrite, or of HipMCL."""

    kind: Literal["combblas"]
    index_bits: Literal[32, 64] = 64
    """Of a row's number, and of a column's: the file does not say."""

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.path
        with refusing(path, EXPECTED):
            n, entry, entries = self._head(path)
            pieces = partial(_pieces, path, entry, entries)
            if not counted(pieces(AT_ONCE)).within(range(n)):
                raise UserError(
                    f"{path} names vertices outside 0 .. {n - 1}. Are its ids of {self.index_bits} bits (index_bits)?"
                )
        return Stream(n, entries, pieces)

    def _head(self, path: Path) -> tuple[int, np.dtype[np.void], int]:
        """Vertices, how an entry lies, and how many there are."""
        head = np.fromfile(path, HEAD, 1)
        if not len(head) or head["magic"][0] != b"HKDT" or head["format"][0] != 0:
            raise UserError(f"{path} does not begin as expected. Expected {EXPECTED}.")
        size, rows, cols, entries = (int(head[key][0]) for key in ("size", "rows", "cols", "entries"))
        if rows != cols or rows < 1:
            raise UserError(f"{path}: the matrix is {rows} x {cols}, but an adjacency is square.")
        index = self.index_bits // 8
        expected, found = HEAD.itemsize + size * entries, path.stat().st_size
        if size < 2 * index or expected != found:
            raise UserError(
                f"{path} has {found:,} bytes. Its head says {entries:,} entries of {size} bytes, {expected:,} in all, "
                f"of which two ids take {2 * index} (index_bits)."
            )
        ends: Any = [("row", f"<i{index}"), ("col", f"<i{index}"), ("value", f"V{size - 2 * index}")]
        return rows, np.dtype(ends), entries


def _pieces(path: Path, entry: np.dtype[np.void], entries: int, at_once: int) -> list[Piece]:
    starts = range(0, entries, at_once)
    return [partial(_part, path, entry, start, min(at_once, entries - start)) for start in starts]


def _part(path: Path, entry: np.dtype[np.void], start: int, count: int) -> Iterator[Edges]:
    some = np.fromfile(path, entry, count, offset=HEAD.itemsize + start * entry.itemsize)
    yield some["row"].astype(np.int64), some["col"].astype(np.int64)
