"""Labelled triples, as HipMCL reads them: two names and a weight a line, separated by white space.

Vertices have the numbers of their names in sorted order (`LC_ALL=C sort -u`), whichever line came first. Weights are
ignored: the graphs here have none, so of lines that repeat an edge one counts.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from harness.errors import UserError
from harness.sources.archive import Place
from harness.sources.refusal import refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, START, Lines, lines_of

EXPECTED = "a line for each edge: two names, and perhaps a weight, separated by one tab or one space"
ENDS = ("source", "target")


class Triples(FileSource):
    """A text file of edges between names, plain or gzipped."""

    kind: Literal["triples"]

    def stream(self, rest: Rest) -> Stream:
        text = Place(rest.folder / self.path)
        with refusing(text.path, EXPECTED):
            names, edges = _names(text)
        if not edges:
            raise UserError(f"{text} holds no edge. Expected {EXPECTED}.")
        return Stream(len(names), edges, partial(_pieces, text, names))


def _names(text: Place) -> tuple[Any, int]:
    """All names, sorted, and how many edges there are."""
    names, edges = pa.array([], pa.binary()), 0
    for lines in lines_of(text, AT_ONCE, START):
        for chunk in lines():
            ends = _ends(text, chunk)
            names = pc.unique(pa.chunked_array([names, *(end.unique() for end in ends)]))
            edges += len(ends[0])
    return names.take(pc.sort_indices(names)), edges


def _pieces(text: Place, names: Any, at_once: int) -> list[Piece]:
    return [partial(_numbered, text, lines, names) for lines in lines_of(text, at_once, START)]


def _numbered(text: Place, lines: Lines, names: Any) -> Iterator[Edges]:
    for chunk in lines():
        source, target = (pc.index_in(end, names).to_numpy().astype(np.int64) for end in _ends(text, chunk))
        yield source, target


def _ends(text: Place, lines: NDArray[np.uint8]) -> tuple[Any, Any]:
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
        raise UserError(f"{text}: {str(error).splitlines()[0]} Expected {EXPECTED}.") from None
    source, target = (table[end] for end in ENDS)
    if any(pc.min(pc.binary_length(end)).as_py() == 0 for end in (source, target)):
        raise UserError(f"{text}: a line begins with white space, or has two of them. Expected {EXPECTED}.")
    return source, target
