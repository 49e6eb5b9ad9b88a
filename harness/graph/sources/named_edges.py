"""Edges between named vertices.

The number of a vertex is the position of its name in sorted order (`LC_ALL=C sort -u`), in any order of lines. In
text, one tab, comma or space separates the columns: the first of these that occurs in the first line. A name between
double quotes may contain a comma.
"""

import re
from collections.abc import Callable, Iterator
from csv import QUOTE_MINIMAL, QUOTE_NONE, reader
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, ValidationInfo

from harness.base.errors import UserError
from harness.base.validation import clip_line
from harness.graph.model import Weighting
from harness.graph.sources.archive import FileRef
from harness.graph.sources.read_errors import CARD_HINTS
from harness.graph.sources.stream import CHUNK_EDGES, Edges, EdgeStream, Piece, check_weights
from harness.graph.sources.text import (
    LinePosition,
    ReadLines,
    cut_into_lines,
    is_number,
    read_numbered_lines,
)

NAMES_EXPECTED = "one edge per line: two names and optionally a weight, separated by one tab, comma or space"
END_COLUMNS = ["source", "target"]
COLUMN_NAMES = {
    *(("source", "target"), ("source", "destination"), ("src", "dst"), ("src", "dest"), ("from", "to")),
    *(("head", "tail"), ("start", "end"), ("node1", "node2"), ("id1", "id2"), ("user1", "user2")),
}
"""Usual names of the two end columns, without punctuation and without a final id."""
NamedChunks = Callable[[int], list[Callable[[], Iterator[list[Any]]]]]
"""Cuts a file into pieces that yield source names, target names and, if asked for, weights, as arrow arrays."""


def _check_no_ids(names: bool, known: ValidationInfo) -> bool:
    """Raise an error if a graph with vertex names also has the keys n or base, which belong to ids."""
    if names and (known.data.get("n") is not None or known.data.get("base")):
        raise ValueError("vertices with names are those that occur in edges; leave out n and base")
    return names


VerticesHaveNames = Annotated[bool, AfterValidator(_check_no_ids)]
"""The type of the key `names` of a card."""


class NamedEdgeText(NamedTuple):
    """A text file of edges between named vertices."""

    text: FileRef
    start: LinePosition
    weights: Weighting | None

    def open_stream(self) -> EdgeStream:
        return number_names(self.text.path, self._cut_chunks, self.weights, NAMES_EXPECTED)

    def check_first_line(self) -> None:
        """Raise an error if the first line looks like column names."""
        if not (first := next(self._read_edge_lines(), None)):
            return
        number, line, words = first
        if tuple(re.sub("[^a-z0-9]|id$", "", word.lower()) for word in words[:2]) in COLUMN_NAMES:
            raise UserError(
                f"{self.text}, line {number}: {line!r} looks like column names: {CARD_HINTS['header']}. If it is "
                "an edge, move it below another."
            )

    def _cut_chunks(self, at_once: int) -> list[Callable[[], Iterator[list[Any]]]]:
        return [
            partial(self._read_columns, lines) for lines in cut_into_lines(self.text, at_once, self.start)
        ]

    def _read_columns(self, lines: ReadLines) -> Iterator[list[Any]]:
        """Yield the first two columns of some lines, and the third if there are weights."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv

        wanted = [*END_COLUMNS, *(["weight"] if self.weights else [])]
        types = dict.fromkeys(END_COLUMNS, pa.binary()) | ({"weight": pa.float64()} if self.weights else {})
        for chunk in lines():
            data = re.sub(rb"(?m)^[ \t]*[#%].*$", b"", chunk.tobytes())
            data = data.replace(b"\r\n", b"\n").lstrip(b"\n")
            if not data.strip():
                continue
            first = data.split(b"\n", 1)[0].decode(errors="replace")
            separator = _choose_separator(first)
            further = range(len(_split_columns(first, separator)) - len(wanted))
            columns = [*wanted, *(f"further {number}" for number in further)]
            try:
                table = csv.read_csv(
                    pa.BufferReader(data),
                    csv.ReadOptions(column_names=columns, use_threads=False),
                    csv.ParseOptions(delimiter=separator, quote_char='"' if separator == "," else False),
                    csv.ConvertOptions(include_columns=wanted, column_types=types),
                )
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                raise self._make_line_error(str(error)) from None
            bad_names = (pc.match_substring_regex(table[end], r"^\s|^$|\s$") for end in END_COLUMNS)
            if any(pc.any(bad).as_py() for bad in bad_names) or (self.weights and table["weight"].null_count):
                raise self._make_line_error("a line has too few columns")
            yield [table[name] for name in wanted]

    def _make_line_error(self, reason: str) -> UserError:
        """Return the error for the first line that is not an edge. Slow: reads line by line."""
        columns, example = 0, ""
        hint = f" If this line names the columns, {CARD_HINTS['header']}."
        for number, line, words in self._read_edge_lines():
            columns, example = columns or len(words), example or clip_line(line, 40)
            if columns < len(END_COLUMNS) or len(words) != columns:
                unlike = f" like {example!r}, the first one" if columns >= len(END_COLUMNS) else ""
                wrong = f"is not an edge{unlike}. Expected {NAMES_EXPECTED}."
            elif any(word != word.strip() or not word for word in words[:2]):
                wrong = (
                    f"has an end that is empty, or that has white space around it. Expected {NAMES_EXPECTED}."
                )
            elif self.weights and not is_number("".join(words[2:3])):
                wrong = "has no weight. Expected a number as its third column."
                hint = hint if words[2:] else ""
            else:
                hint = ""
                continue
            return UserError(f"{self.text}, line {number}: {clip_line(line, 40)!r} {wrong}{hint}")
        return UserError(f"{self.text} cannot be read: {reason.splitlines()[0]} Expected {NAMES_EXPECTED}.")

    def _read_edge_lines(self) -> Iterator[tuple[int, str, list[str]]]:
        """Yield the number, the text and the columns of every line with an edge."""
        separator = ""
        for raw, (_, number) in read_numbered_lines(self.text, self.start):
            line = raw.rstrip("\r\n")
            if line and not re.match(r"[ \t]*[#%]", line):
                separator = separator or _choose_separator(line)
                yield number, line, _split_columns(line, separator)


def _choose_separator(line: str) -> str:
    return next((separator for separator in "\t, " if separator in line), " ")


def _split_columns(line: str, separator: str) -> list[str]:
    if separator == ",":
        return next(reader([line], delimiter=",", quoting=QUOTE_MINIMAL))
    return next(reader([line], delimiter=separator, quoting=QUOTE_NONE))


def number_names(path: Path, chunks: NamedChunks, weights: Weighting | None, expected: str) -> EdgeStream:
    """Return the stream of edges with vertex numbers. All chunks are read once to collect the names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names, edges = pa.array([], pa.binary()), 0
    for piece in chunks(CHUNK_EDGES):
        for source, target, *weight in piece():
            given = [np.asarray(each, dtype=np.float64) for each in weight]
            check_weights(path, (source, target, *given), weights, edges)
            new_names = [*list_unique_names(source), *list_unique_names(target)]
            names = pc.unique(pa.chunked_array([names, *new_names]))
            edges += len(source)
    if not edges:
        raise UserError(f"{path} has no edges. Expected {expected}.")
    if bool(pc.any(pc.match_substring(names, b"\n")).as_py()):
        raise UserError(f"{path}: a name contains a line break. Names are stored one per line: replace it.")
    names = names.take(pc.sort_indices(names))

    def pieces(at_once: int) -> list[Piece]:
        return [partial(_convert_names, piece, names) for piece in chunks(at_once)]

    return EdgeStream(len(names), edges, pieces, names=names)


def list_unique_names(names: Any) -> list[Any]:
    """Return the distinct names of a column, as a list of arrays."""
    unique = names.unique()
    return list(getattr(unique, "chunks", [unique]))


def _convert_names(piece: Callable[[], Iterator[list[Any]]], names: Any) -> Iterator[Edges]:
    import pyarrow.compute as pc

    for source, target, *weight in piece():
        ends = (np.asarray(pc.index_in(end, names), dtype=np.int64) for end in (source, target))
        yield (*ends, *(np.asarray(each, dtype=np.float64) for each in weight))  # type: ignore[misc]
