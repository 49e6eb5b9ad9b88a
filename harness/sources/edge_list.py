"""Text files with one edge a line (.txt, .tsv, .csv, also .gz), as SNAP, OGB and HipMCL publish them; and parquet.

A line 'u v' is the edge from u to v, by integer ids. A card with weights reads the third column; further columns are
ignored. A comma or white space separates the columns; # or % starts a comment. Ends may be names instead of ids.
"""

import re
from collections.abc import Callable, Iterator
from csv import QUOTE_MINIMAL, QUOTE_NONE, reader
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from harness.errors import UserError
from harness.graph.model import Weighting
from harness.sources.archive import FileIn
from harness.sources.refusal import IN_CARD, refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import AT_ONCE, Edges, Piece, Stream, check_weights, counted, no_weights
from harness.sources.text import (
    START,
    Begin,
    Lines,
    is_number,
    lines_of,
    numbered_lines,
    pairs_of,
    uncommented,
)
from harness.validation import VERTICES, clip_line

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
    names: bool = False
    """True if the ends are names: vertices are numbered from 0 in the order of their names, sorted byte by byte."""

    @field_validator("names")
    @classmethod
    def _without_numbers(cls, names: bool, known: ValidationInfo) -> bool:
        return without_numbers(names, known)

    def stream(self, rest: Rest) -> Stream:
        text = FileIn(rest.folder / self.path)
        if self.names:
            with refusing(text.path, NAMES_EXPECTED):
                named = NamedText(text, self._begin(text), NAMES_EXPECTED, rest.weights, comments=True)
                if not self.header:
                    named.check_begin()
                return named.stream()
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
                edge = clip_line(uncommented(line), 40)
                return UserError(
                    f"{text}, line {number}: {edge!r} is not an edge. Expected {EXPECTED}{hint}."
                )
            if outside := [word for word in words if int(word) not in ids]:
                return UserError(
                    f"{text}, line {number}: the id {outside[0]} is not among {ids.start} .. {ids.stop - 1}: "
                    f"{IN_CARD['n']}, the number of vertices, or {IN_CARD['base']}, the first id."
                )
            if words and weighted and not (weight and is_number(weight[0])):
                edge = clip_line(uncommented(line), 40)
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
NAMED_PARQUET_EXPECTED = "a parquet file whose first two columns of text are the names of the ends"


class Parquet(FileSource):
    """A parquet file of edges."""

    kind: Literal["parquet"]
    reads_weights: ClassVar[bool] = True
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. Without it the largest id decides."""
    names: bool = False
    """True if the ends are names, in the first two columns of text."""

    @field_validator("names")
    @classmethod
    def _without_numbers(cls, names: bool, known: ValidationInfo) -> bool:
        return without_numbers(names, known)

    def stream(self, rest: Rest) -> Stream:
        import pyarrow as pa

        path = rest.folder / self.path
        try:
            with refusing(path, PARQUET_EXPECTED):
                if self.names:
                    chunks = partial(_row_groups, path, (rest.weights is not None, True))
                    return _numbered(path, chunks, rest.weights, NAMED_PARQUET_EXPECTED)
                pieces = partial(_row_groups, path, (rest.weights is not None, False))
                counts = counted(pieces(AT_ONCE), path, rest.weights)
        except pa.ArrowException as error:
            raise UserError(f"{path} cannot be read: {error}. Expected {PARQUET_EXPECTED}.") from None
        n = counts.vertices(path, self.n)
        counts.check(path, n, f" If the ids are right, {IN_CARD['n']}.")
        return Stream(n, counts.edges, pieces)


WEIGHT_COLUMNS = ("weight", "weights", "edge_weight")


def _row_groups(path: Path, wanted: tuple[bool, bool], at_once: int) -> list[Any]:
    """A piece for each row group; with weights and between names, if these are wanted."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    weighted, named = wanted
    with ParquetFile(path) as file:
        schema, groups = file.schema_arrow, range(file.num_row_groups)
    columns = [field.name for field in schema if (_is_text if named else pa.types.is_integer)(field.type)][:2]
    if len(columns) < 2:
        expected = NAMED_PARQUET_EXPECTED if named else PARQUET_EXPECTED
        raise UserError(f"{path} has the columns {', '.join(schema.names)}. Expected {expected}.")
    if weighted:
        numbers = [field.name for field in schema if pa.types.is_integer(field.type) or _is_real(field.type)]
        others = [name for name in numbers if name not in columns]
        weights = [name for name in WEIGHT_COLUMNS if name in others] or others
        if not weights:
            raise no_weights(path, f"its columns are {', '.join(schema.names)}")
        columns.append(weights[0])
    read = _named_row_group if named else _row_group
    return [partial(read, path, columns, group, at_once) for group in groups]


def _is_real(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def _columns(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[list[Any]]:
    """The columns of a row group, some rows at a time."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for batch in file.iter_batches(at_once, [group], columns):
            read: list[Any] = [batch.column(name) for name in columns]
            if any(column.null_count for column in read):
                raise UserError(f"{path}: an end or the weight of an edge is null.")
            yield read


def _row_group(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[Edges]:
    for ends in _columns(path, columns, group, at_once):
        source, target = (end.to_numpy().astype(np.int64) for end in ends[:2])
        yield (source, target, *(end.to_numpy().astype(np.float64) for end in ends[2:]))


def _named_row_group(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[list[Any]]:
    import pyarrow as pa

    for ends in _columns(path, columns, group, at_once):
        yield [*(end.cast(pa.string()).cast(pa.binary()) for end in ends[:2]), *ends[2:]]


# Edges between names. Vertices have the numbers of their names in sorted order (`LC_ALL=C sort -u`), whichever line
# came first. In a text, one tab, comma or space separates the columns: the first of these that the first line has. A
# comma may stand in a name between double quotes.

NAMES_EXPECTED = "a line for each edge: two names, and perhaps a weight, separated by one tab, comma or space"
ENDS = ["source", "target"]
COLUMNS = {
    *(("source", "target"), ("source", "destination"), ("src", "dst"), ("src", "dest"), ("from", "to")),
    *(("head", "tail"), ("start", "end"), ("node1", "node2"), ("id1", "id2"), ("user1", "user2")),
}
"""Names of columns for the ends of edges, without signs and without an id at their end."""
NamedChunks = Callable[[int], list[Callable[[], Iterator[list[Any]]]]]
"""Reads names of sources, names of targets and perhaps weights, as arrow arrays, in pieces."""


def without_numbers(names: bool, known: ValidationInfo) -> bool:
    """Refuses keys for ids of a graph whose vertices have names."""
    if names and (known.data.get("n") is not None or known.data.get("base")):
        raise ValueError("vertices with names are those that edges name, so n and base are left out")
    return names


class NamedText(NamedTuple):
    """A text of edges between names."""

    text: FileIn
    begin: Begin
    expected: str
    weights: Weighting | None
    comments: bool = False
    """True if # or % begins a comment, and a comma may separate columns."""

    def stream(self) -> Stream:
        return _numbered(self.text.path, self._chunks, self.weights, self.expected)

    def check_begin(self) -> None:
        """Refuses a first line of names of columns."""
        if not (first := next(self._lines(), None)):
            return
        number, line, words = first
        if tuple(re.sub("[^a-z0-9]|id$", "", word.lower()) for word in words[:2]) in COLUMNS:
            raise UserError(
                f"{self.text}, line {number}: {line!r} names columns: {IN_CARD['header']}. If it is an edge, move it "
                "below another."
            )

    def _chunks(self, at_once: int) -> list[Callable[[], Iterator[list[Any]]]]:
        return [partial(self._read, lines) for lines in lines_of(self.text, at_once, self.begin)]

    def _read(self, lines: Lines) -> Iterator[list[Any]]:
        """The first two columns of some lines, and the third if there are weights."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv

        wanted = [*ENDS, *(["weight"] if self.weights else [])]
        types = dict.fromkeys(ENDS, pa.binary()) | ({"weight": pa.float64()} if self.weights else {})
        for chunk in lines():
            data = chunk.tobytes()
            if self.comments:
                data = re.sub(rb"(?m)^[ \t]*[#%].*$", b"", data)
            data = data.replace(b"\r\n", b"\n").lstrip(b"\n")
            if not data.strip():
                continue
            first = data.split(b"\n", 1)[0].decode(errors="replace")
            separator = self._separator(first)
            further = range(len(_columns_of(first, separator)) - len(wanted))
            columns = [*wanted, *(f"further {number}" for number in further)]
            try:
                table = csv.read_csv(
                    pa.BufferReader(data),
                    csv.ReadOptions(column_names=columns, use_threads=False),
                    csv.ParseOptions(delimiter=separator, quote_char='"' if separator == "," else False),
                    csv.ConvertOptions(include_columns=wanted, column_types=types),
                )
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                raise self._fault(str(error)) from None
            around = [pc.any(pc.match_substring_regex(table[end], r"^\s|^$|\s$")).as_py() for end in ENDS]
            if any(around) or (self.weights and table["weight"].null_count):
                raise self._fault("a line has too little")
            yield [table[name] for name in wanted]

    def _fault(self, reason: str) -> UserError:
        """The error for the first line that is no edge. Slow: reads line by line."""
        columns, example = 0, ""
        hint = f" If this line names the columns, {IN_CARD['header']}." if self.comments else ""
        for number, line, words in self._lines():
            columns, example = columns or len(words), example or clip_line(line, 40)
            if columns < len(ENDS) or len(words) != columns:
                unlike = f" like {example!r}, the first" if columns >= len(ENDS) else ""
                wrong = f"is not an edge{unlike}. Expected {self.expected}."
            elif any(word != word.strip() or not word for word in words[:2]):
                wrong = (
                    f"has an end that is empty, or that has white space around it. Expected {self.expected}."
                )
            elif self.weights and not is_number("".join(words[2:3])):
                wrong = "has no weight. Expected a number as its third column."
                hint = hint if words[2:] else ""
            else:
                hint = ""
                continue
            return UserError(f"{self.text}, line {number}: {clip_line(line, 40)!r} {wrong}{hint}")
        return UserError(f"{self.text} cannot be read: {reason.splitlines()[0]} Expected {self.expected}.")

    def _lines(self) -> Iterator[tuple[int, str, list[str]]]:
        """The lines with edges: number, text and columns."""
        separator = ""
        for raw, (_, number) in numbered_lines(self.text, self.begin):
            line = raw.rstrip("\r\n")
            if line and not (self.comments and re.match(r"[ \t]*[#%]", line)):
                separator = separator or self._separator(line)
                yield number, line, _columns_of(line, separator)

    def _separator(self, line: str) -> str:
        return next((each for each in ("\t, " if self.comments else "\t ") if each in line), " ")


def _columns_of(line: str, separator: str) -> list[str]:
    return next(
        reader([line], delimiter=separator, quoting=QUOTE_MINIMAL if separator == "," else QUOTE_NONE)
    )


def _numbered(path: Path, chunks: NamedChunks, weights: Weighting | None, expected: str) -> Stream:
    """The edges of some chunks, all of which are read once for their names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names, edges = pa.array([], pa.binary()), 0
    for piece in chunks(AT_ONCE):
        for source, target, *weight in piece():
            given = [np.asarray(each, dtype=np.float64) for each in weight]
            check_weights(path, (source, target, *given), weights, edges)
            names = pc.unique(pa.chunked_array([names, *pieces_of(source), *pieces_of(target)]))
            edges += len(source)
    if not edges:
        raise UserError(f"{path} holds no edge. Expected {expected}.")
    if bool(pc.any(pc.match_substring(names, b"\n")).as_py()):
        raise UserError(f"{path}: a name has a line break in it. Names are kept one a line: replace it.")
    names = names.take(pc.sort_indices(names))

    def pieces(at_once: int) -> list[Piece]:
        return [partial(_as_numbers, piece, names) for piece in chunks(at_once)]

    return Stream(len(names), edges, pieces, names=names)


def pieces_of(names: Any) -> list[Any]:
    """The arrays of a column, each name once."""
    unique = names.unique()
    return list(getattr(unique, "chunks", [unique]))


def _as_numbers(piece: Callable[[], Iterator[list[Any]]], names: Any) -> Iterator[Edges]:
    import pyarrow.compute as pc

    for source, target, *weight in piece():
        ends = (np.asarray(pc.index_in(end, names), dtype=np.int64) for end in (source, target))
        yield (*ends, *(np.asarray(each, dtype=np.float64) for each in weight))  # type: ignore[misc]
