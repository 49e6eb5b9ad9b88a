"""Text files with one edge a line (.txt, .tsv, .csv, also .gz), as SNAP, OGB and HipMCL publish them.

A line 'u v' is the edge from u to v, by integer ids. Further columns, weights for instance, are ignored: the
graphs here have none. The separator is the comma or white space, as in the first line; # or % starts a comment.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import numpy as np
from pydantic import Field

from harness.errors import UserError
from harness.graph.model import Ints, RawGraph
from harness.sources.refusal import refusing
from harness.sources.source import Rest, Source

EXPECTED = "one edge a line: two integer ids, separated by a comma or by white space"


class Layout(NamedTuple):
    """What the first line of data shows of a file."""

    separator: str
    comment: str
    columns: int


def read_edge_list(path: Path, n: int | None = None, base: int = 0, header: bool = False) -> RawGraph:
    """The graph of the file. Without n, the largest id decides how many vertices there are."""
    with refusing(path, EXPECTED):
        layout = _layout(path)
        ends = np.zeros((0, 2), dtype=np.int64) if layout is None else _parse(path, layout, header)
    if n is None and not len(ends):
        raise UserError(
            f"{path} holds no edge, and nothing says how many vertices there are. Set n in the card."
        )
    vertices = int(ends.max()) + 1 - base if n is None else n
    if len(ends) and (ends.min() < base or ends.max() >= base + vertices):
        raise UserError(_fault(path, header, range(base, base + vertices)))
    return RawGraph(vertices, ends[:, 0] - base, ends[:, 1] - base)


def _parse(path: Path, layout: Layout, header: bool) -> Ints:
    """The first two columns."""
    import pandas as pd  # half a second that opening a drawn graph does not need

    try:
        table = pd.read_csv(
            path,
            sep=layout.separator,
            comment=layout.comment,
            header=0 if header else None,
            names=[str(column) for column in range(layout.columns)],
            usecols=["0", "1"],
            dtype=np.int64,
            compression="gzip" if path.suffix == ".gz" else None,
        )
    except (ValueError, OverflowError):
        raise UserError(_fault(path, header, None)) from None
    return table.to_numpy()


def _layout(path: Path) -> Layout | None:
    """Separator, comment sign and number of columns; None for a file without a line of data."""
    comment = "#"
    with _text(path) as lines:
        for line in lines:
            if line.startswith("%"):
                comment = "%"
            if data := line.split(comment)[0].strip():
                comma = "," in data
                columns = len(data.split("," if comma else None))
                return Layout("," if comma else r"\s+", comment, max(columns, 2))
    return None


def _fault(path: Path, header: bool, ids: range | None) -> str:
    """The first line that is no edge, for a file that is known to be wrong. Slow: it reads line by line."""
    with _text(path) as lines:
        for number, data in _data_lines(lines, header):
            ends = data.replace(",", " ").split()[:2]
            if len(ends) < 2 or not all(_is_id(end) for end in ends):
                return f"{path}, line {number}: {data!r} is not an edge. Expected {EXPECTED}{_hint(number, header)}."
            outside = [end for end in ends if ids is not None and int(end) not in ids]
            if ids is not None and outside:
                return (
                    f"{path}, line {number}: the id {outside[0]} is not among {ids.start} .. {ids.stop - 1}. "
                    f"Set n, the number of vertices, or base, the first id, in the card."
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
    return (
        "; if this line names the columns, set header: true in the card" if number == 1 and not header else ""
    )


def _is_id(text: str) -> bool:
    """Whether this is an integer of 64 bits."""
    return text.lstrip("+-").isdecimal() and -(1 << 63) <= int(text) < 1 << 63


def _text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


class EdgeList(Source):
    """A text file of edges, one a line; also gzipped. Further columns (weights) are ignored."""

    kind: Literal["edges"]
    path: str
    n: int | None = Field(None, ge=1)
    """The number of vertices. Without it the largest id decides, and vertices after the last edge are lost."""
    base: Literal[0, 1] = 0
    """The id of the first vertex."""
    header: bool = False
    """Whether the first line that is no comment names the columns."""

    def files(self) -> list[str]:
        return [self.path]

    def graph(self, rest: Rest) -> RawGraph:
        return read_edge_list(rest.folder / self.path, self.n, self.base, self.header)
