"""Edges that need never be in memory together: pieces, each of which can be read by itself.

However a source is cut into pieces, and a piece into chunks, the edges are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from harness.graph.model import Bytes, Floats, Ints, Labels, RawGraph

Edges = tuple[Ints, Ints]
"""Sources and targets."""
Piece = Callable[[], Iterator[Edges]]
"""Reads some of the edges, chunk by chunk; again at every call."""


class Stream(NamedTuple):
    """What a source says of a graph; None where it says nothing."""

    n: int
    entries: int
    """How many edges there are, or are drawn at most."""
    pieces: Callable[[int], Sequence[Piece]]
    """Pieces whose chunks have no more than so many edges."""
    X: Callable[[], Floats] | None = None
    """The features, read when they are asked for."""
    y: Labels | None = None
    split: Bytes | None = None


def stream_of(raw: RawGraph) -> Stream:
    """A graph that is in memory."""

    def pieces(at_once: int) -> list[Piece]:
        starts = range(0, len(raw.source), at_once)
        return [lambda start=start: _cut(raw, start, start + at_once) for start in starts]  # type: ignore[misc]

    X = raw.X
    return Stream(raw.n, len(raw.source), pieces, None if X is None else lambda: X, raw.y, raw.split)


def whole(stream: Stream) -> RawGraph:
    """The graph of a stream, in memory."""
    chunks = [chunk for piece in stream.pieces(max(stream.entries, 1)) for chunk in piece()]
    nothing = np.zeros(0, np.int64)
    source, target = (np.concatenate([nothing, *(chunk[end] for chunk in chunks)]) for end in (0, 1))
    X = stream.X() if stream.X else None
    return RawGraph(stream.n, source, target, X, stream.y, stream.split)


def _cut(raw: RawGraph, start: int, stop: int) -> Iterator[Edges]:
    yield raw.source[start:stop], raw.target[start:stop]
