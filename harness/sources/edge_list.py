"""Text files with one edge a line (.txt, .tsv, .csv, also .gz), as SNAP, OGB and HipMCL publish them; and parquet.

A line 'u v' is the edge from u to v, by integer ids. A card with weights reads the third column; further columns are
ignored. A comma or white space separates the columns; # or % starts a comment.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harness.errors import UserError
from harness.sources.archive import FileIn
from harness.sources.refusal import IN_CARD, refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import AT_ONCE, Edges, Piece, Stream, counted, no_weights
from harness.sources.text import START, Begin, is_number, numbered_lines, pairs_of, uncommented
from harness.validation import VERTICES, clipped

EXPECTED = "one edge a line: two integer ids, separated by a comma or by white space"


class EdgeList(FileSource):
    """A text file of edges, one a line; also gzipped."""

    kind: Literal["edges"]
    reads_weights: ClassVar[bool] = True
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. Without it the largest id decides, and vertices after the last edge are lost."""
    base: Literal[0, 1] = 0
    """The id of the first vertex."""
    header: bool = False
    """True if the first line that is no comment names the columns."""

    def stream(self, rest: Rest) -> Stream:
        text = FileIn(rest.folder / self.path)
        with refusing(text.path, EXPECTED):
            begin = self._begin(text)
            pieces = partial(self._pieces, text, begin, rest.weights is not None)
            counts = counted(pieces(AT_ONCE), text.path, rest.weights)
        n = counts.vertices(text.path, self.n)
        if not counts.within(range(n)):
            raise self._fault(text, begin, n)
        return Stream(n, counts.edges, pieces)

    def _begin(self, text: FileIn) -> Begin:
        """The place after the line that names the columns, if the file has such a line."""
        data = (after for line, after in numbered_lines(text) if uncommented(line))
        return next(data, START) if self.header else START

    def _pieces(self, text: FileIn, begin: Begin, weighted: bool, at_once: int) -> list[Piece]:
        fault = partial(self._fault, text, begin, self.n or 1 << 62, weighted)
        pairs = pairs_of(text, at_once, begin, fault, weighted=weighted)
        return [partial(_from_base, piece, self.base) for piece in pairs]

    def _fault(self, text: FileIn, begin: Begin, n: int, weighted: bool = False) -> UserError:
        """The error for the first line that is no edge. Slow: reads line by line."""
        ids = range(self.base, self.base + n)
        for line, (_, number) in numbered_lines(text, begin):
            words, weight = (each := uncommented(line).replace(",", " ").split())[:2], each[2:3]
            wrong = [word for word in words if not _is_id(word)]
            if words and (wrong or len(words) < 2):
                hint = f"; if this line names the columns, {IN_CARD['header']}" if number == 1 else ""
                edge = clipped(uncommented(line), 40)
                return UserError(
                    f"{text}, line {number}: {edge!r} is not an edge. Expected {EXPECTED}{hint}."
                )
            if outside := [word for word in words if int(word) not in ids]:
                return UserError(
                    f"{text}, line {number}: the id {outside[0]} is not among {ids.start} .. {ids.stop - 1}: "
                    f"{IN_CARD['n']}, the number of vertices, or {IN_CARD['base']}, the first id."
                )
            if words and weighted and not (weight and is_number(weight[0])):
                edge = clipped(uncommented(line), 40)
                return UserError(
                    f"{text}, line {number}: {edge!r} has no weight. Expected a number as its third column."
                )
        return UserError(f"{text} cannot be read as text. Expected {EXPECTED}.")


def _is_id(text: str) -> bool:
    """True for an integer of 64 bits."""
    return len(text) < 30 and text.lstrip("+-").isdecimal() and -(1 << 63) <= int(text) < 1 << 63


def _from_base(piece: Piece, base: int) -> Iterator[Edges]:
    for source, target, *weight in piece():
        yield (source - base, target - base, *weight)  # type: ignore[misc]


# Edges in parquet: the first two columns of whole numbers are sources and targets. Row groups are read one by one.

PARQUET_EXPECTED = "a parquet file whose first two columns of whole numbers are the ends of edges"


class Parquet(FileSource):
    """A parquet file of edges."""

    kind: Literal["parquet"]
    reads_weights: ClassVar[bool] = True
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. Without it the largest id decides."""

    def stream(self, rest: Rest) -> Stream:
        import pyarrow as pa

        path = rest.folder / self.path
        try:
            with refusing(path, PARQUET_EXPECTED):
                pieces = partial(_row_groups, path, rest.weights is not None)
                counts = counted(pieces(AT_ONCE), path, rest.weights)
        except pa.ArrowException as error:
            raise UserError(f"{path} cannot be read: {error}. Expected {PARQUET_EXPECTED}.") from None
        n = counts.vertices(path, self.n)
        counts.check(path, n, f" If the ids are right, {IN_CARD['n']}.")
        return Stream(n, counts.edges, pieces)


WEIGHT_COLUMNS = ("weight", "weights", "edge_weight")


def _row_groups(path: Path, weighted: bool, at_once: int) -> list[Piece]:
    """A piece for each row group."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        schema, groups = file.schema_arrow, range(file.num_row_groups)
    columns = [field.name for field in schema if pa.types.is_integer(field.type)][:2]
    if len(columns) < 2:
        raise UserError(f"{path} has the columns {', '.join(schema.names)}. Expected {PARQUET_EXPECTED}.")
    if weighted:
        numbers = [field.name for field in schema if pa.types.is_integer(field.type) or _is_real(field.type)]
        others = [name for name in numbers if name not in columns]
        named = [name for name in WEIGHT_COLUMNS if name in others]
        if not (named or others):
            raise no_weights(path, f"its columns are {', '.join(schema.names)}")
        columns.append((named or others)[0])
    return [partial(_row_group, path, columns, group, at_once) for group in groups]


def _is_real(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind))


def _row_group(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[Edges]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for batch in file.iter_batches(at_once, [group], columns):
            ends: list[Any] = [batch.column(name) for name in columns]
            if any(end.null_count for end in ends):
                raise UserError(f"{path}: an end or the weight of an edge is null.")
            source, target = (end.to_numpy().astype(np.int64) for end in ends[:2])
            yield (source, target, *(end.to_numpy().astype(np.float64) for end in ends[2:]))
