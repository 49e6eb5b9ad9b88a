"""Text files with one edge a line (.txt, .tsv, .csv, also .gz), as SNAP, OGB and HipMCL publish them.

A line 'u v' is the edge from u to v, by integer ids. Further columns, weights for instance, are ignored: the
graphs here have none. A comma or white space separates them; # or % starts a comment.
"""

import gzip
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from pydantic import Field

from harness.errors import UserError
from harness.sources.archive import Place
from harness.sources.refusal import IN_CARD, refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, counted, pairs_of, skipped
from harness.validation import VERTICES, clipped

EXPECTED = "one edge a line: two integer ids, separated by a comma or by white space"


def _fault(path: Path, header: bool, ids: range | None) -> str:
    """The first line that is no edge, for a file that is known to be wrong. Slow: it reads line by line."""
    with _text(path) as lines:
        for number, data in _data_lines(lines, header):
            ends = data.replace(",", " ").split()[:2]
            if len(ends) < 2 or not all(_is_id(end) for end in ends):
                said = f"{path}, line {number}: {clipped(data, 40)!r} is not an edge."
                return f"{said} Expected {EXPECTED}{_hint(number, header)}."
            outside = [end for end in ends if ids is not None and int(end) not in ids]
            if ids is not None and outside:
                return (
                    f"{path}, line {number}: the id {outside[0]} is not among {ids.start} .. {ids.stop - 1}: "
                    f"{IN_CARD['n']}, the number of vertices, or {IN_CARD['base']}, the first id."
                )
    return f"{path} cannot be read as text. Expected {EXPECTED}."


def _data_lines(lines: TextIO, header: bool) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and what is left of each line without comments, blank lines left out."""
    stripped = ((number, line.split("#")[0].split("%")[0].strip()) for number, line in enumerate(lines, 1))
    data = (item for item in stripped if item[1])
    if header:
        next(data, None)
    return data


def _hint(number: int, header: bool) -> str:
    return f"; if this line names the columns, {IN_CARD['header']}" if number == 1 and not header else ""


def _is_id(text: str) -> bool:
    """Whether this is an integer of 64 bits."""
    return len(text) < 30 and text.lstrip("+-").isdecimal() and -(1 << 63) <= int(text) < 1 << 63


def _text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


class EdgeList(FileSource):
    """A text file of edges, one a line; also gzipped. Further columns (weights) are ignored."""

    kind: Literal["edges"]
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. Without it the largest id decides, and vertices after the last edge are lost."""
    base: Literal[0, 1] = 0
    """The id of the first vertex."""
    header: bool = False
    """Whether the first line that is no comment names the columns."""

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.path
        with refusing(path, EXPECTED):
            found = counted(self._pieces(path, AT_ONCE))
        n = found.vertices(path, self.n)
        if not found.within(range(n)):
            raise UserError(_fault(path, self.header, range(self.base, self.base + n)))
        return Stream(n, found.pairs, partial(self._pieces, path))

    def _pieces(self, path: Path, at_once: int) -> list[Piece]:
        ids = range(self.base, self.base + (self.n or 1 << 62))
        begins = skipped(Place(path), lambda line: bool(line.split("#")[0].split("%")[0].strip()))
        begins = skipped(Place(path), lambda _: True, begins, more=1) if self.header else begins
        pieces = pairs_of(Place(path), at_once, begins, lambda: UserError(_fault(path, self.header, ids)))
        return [partial(_from_base, piece, self.base) for piece in pieces]


def _from_base(piece: Piece, base: int) -> Iterator[Edges]:
    for source, target in piece():
        yield source - base, target - base


# Edges in parquet: the first two columns of whole numbers are sources and targets. Row groups are read one
# by one.

PARQUET_EXPECTED = "a parquet file whose first two columns of whole numbers are the ends of edges"


class Parquet(FileSource):
    """A parquet file of edges."""

    kind: Literal["parquet"]
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. Without it the largest id decides."""

    def stream(self, rest: Rest) -> Stream:
        import pyarrow as pa

        path = rest.folder / self.path
        try:
            with refusing(path, PARQUET_EXPECTED):
                found = counted(_pieces(path, AT_ONCE))
        except pa.ArrowException as error:
            raise UserError(f"{path} cannot be read: {error}. Expected {PARQUET_EXPECTED}.") from None
        n = found.vertices(path, self.n)
        if not found.within(range(n)):
            ids = f"{found.smallest} to {found.largest}"
            raise UserError(f"{path}: ids go from {ids}, not 0 to {n - 1}: {IN_CARD['n']}.")
        return Stream(n, found.pairs, partial(_pieces, path))


def _pieces(path: Path, at_once: int) -> list[Piece]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        columns = _ends(path, file)
        groups = range(file.num_row_groups)
    return [partial(_group, path, columns, group, at_once) for group in groups]


def _ends(path: Path, file: Any) -> list[str]:
    import pyarrow as pa

    whole = [field.name for field in file.schema_arrow if pa.types.is_integer(field.type)]
    if len(whole) < 2:
        raise UserError(
            f"{path} has the columns {', '.join(file.schema_arrow.names)}. Expected {PARQUET_EXPECTED}."
        )
    return whole[:2]


def _group(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[Edges]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for batch in file.iter_batches(at_once, [group], columns):
            source, target = (batch.column(name) for name in columns)
            if source.null_count or target.null_count:
                raise UserError(f"{path}: an end of an edge is null.")
            yield source.to_numpy().astype(np.int64), target.to_numpy().astype(np.int64)
