"""Edges that need never be in memory together: pieces, each of which can be read by itself.

However a source is cut into pieces, and a piece into chunks, the edges are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.errors import UserError
from harness.graph.model import Bytes, Floats, Ints, Labels, RawGraph
from harness.sources.refusal import IN_CARD, check_ids

AT_ONCE = 1 << 22
"""Edges in a chunk, where the caller asks for no other number."""
Edges = tuple[Ints, Ints]
"""Sources and targets."""
Piece = Callable[[], Iterator[Edges]]
"""Reads some of the edges, chunk by chunk; again at every call."""


class Stream(NamedTuple):
    """A graph as its source gives it; a field is None where the source gives nothing."""

    n: int
    entries: int
    """The number of edges; of a generator, the most that it draws."""
    pieces: Callable[[int], Sequence[Piece]]
    """Cuts the edges into pieces whose chunks have at most this number of edges."""
    X: Callable[[], Floats] | None = None
    """Reads the features."""
    y: Labels | None = None
    split: Bytes | None = None


def stream_of(raw: RawGraph) -> Stream:
    """The stream of a graph that is in memory."""

    def edges(numbers: range) -> Edges:
        part = slice(numbers.start, numbers.stop)
        return raw.source[part], raw.target[part]

    X, count = raw.X, len(raw.source)
    return Stream(raw.n, count, by_number(count, edges), None if X is None else lambda: X, raw.y, raw.split)


def whole(stream: Stream) -> RawGraph:
    """The graph of a stream, in memory."""
    chunks = [chunk for piece in stream.pieces(max(stream.entries, 1)) for chunk in piece()]
    nothing = np.zeros(0, np.int64)
    source, target = (np.concatenate([nothing, *(chunk[end] for chunk in chunks)]) for end in (0, 1))
    X = stream.X() if stream.X else None
    return RawGraph(stream.n, source, target, X, stream.y, stream.split)


def by_number(count: int, edges: Callable[[range], Edges]) -> Callable[[int], list[Piece]]:
    """The pieces of a source that can give any range of its `count` edges: one chunk in each."""

    def piece(numbers: range) -> Iterator[Edges]:
        yield edges(numbers)

    def pieces(at_once: int) -> list[Piece]:
        starts = range(0, count, at_once)
        return [partial(piece, range(start, min(start + at_once, count))) for start in starts]

    return pieces


class Counted(NamedTuple):
    """The edges as a first pass counts them; without edges, the largest id is -1."""

    edges: int
    smallest: int
    largest: int

    def within(self, ids: range) -> bool:
        """True if `ids` holds every id of the edges."""
        return not self.edges or (self.smallest in ids and self.largest in ids)

    def check(self, path: Path, n: int, way_out: str = "") -> None:
        """Refuses edges that name other vertices than 0 .. n - 1."""
        if self.edges:
            check_ids(path, "edges", np.array([self.smallest, self.largest]), n, way_out)

    def vertices(self, path: Path, n: int | None) -> int:
        """The number of vertices that the card gives; without one, the largest id decides."""
        if n is None and not self.edges:
            raise UserError(f"{path} holds no edge, and the number of vertices is not given: {IN_CARD['n']}.")
        return self.largest + 1 if n is None else n


def counted(pieces: Sequence[Piece]) -> Counted:
    """Reads and counts all edges."""
    edges, smallest, largest = 0, 0, -1
    for piece in pieces:
        for source, target in piece():
            if len(source):
                low, high = min(source.min(), target.min()), max(source.max(), target.max())
                smallest, largest = min(smallest, int(low)) if edges else int(low), max(largest, int(high))
                edges += len(source)
    return Counted(edges, smallest, largest)
