"""Edges that need never be in memory together: pieces, each of which can be read by itself.

However a source is cut into pieces, and a piece into chunks, the edges are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.errors import UserError
from harness.graph.model import Bytes, EdgeWeights, Floats, Ints, Labels, RawGraph, Weighting
from harness.sources.refusal import IN_CARD, check_ids

AT_ONCE = 1 << 22
"""Edges in a chunk, where the caller asks for no other number."""
Edges = tuple[Ints, Ints] | tuple[Ints, Ints, EdgeWeights]
"""Sources and targets, and the weights of a card that asks for them."""
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
    names: Any = None
    """The names of the vertices as a sorted arrow array of bytes, for edges between names."""


def stream_of(raw: RawGraph) -> Stream:
    """The stream of a graph that is in memory."""

    def edges(numbers: range) -> Edges:
        part = slice(numbers.start, numbers.stop)
        if raw.weight is None:
            return raw.source[part], raw.target[part]
        return raw.source[part], raw.target[part], raw.weight[part]

    X, count = raw.X, len(raw.source)
    return Stream(raw.n, count, by_number(count, edges), None if X is None else lambda: X, raw.y, raw.split)


def whole(stream: Stream) -> RawGraph:
    """The graph of a stream, in memory."""
    chunks = [chunk for piece in stream.pieces(max(stream.entries, 1)) for chunk in piece()]
    nothing = np.zeros(0, np.int64)
    source, target = (np.concatenate([nothing, *(chunk[end] for chunk in chunks)]) for end in (0, 1))
    X = stream.X() if stream.X else None
    weights = [chunk[2] for chunk in chunks if len(chunk) == 3]
    weight = np.concatenate(weights) if weights else None
    return RawGraph(stream.n, source, target, X, stream.y, stream.split, weight)


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


LARGEST_WEIGHT, SMALLEST_WEIGHT = float(np.finfo(np.float32).max), float(np.finfo(np.float64).tiny)
"""The largest weight, and the smallest above 0: a run may compute in 32 bits."""


def check_weights(path: Path, edges: Sequence[Any], weights: Weighting | None, before: int = 0) -> None:
    """Refuses weights that A cannot have; `before` is the number of edges of the file before these."""
    if weights is None:
        return
    source, target, weight = edges
    size = np.abs(weight)
    legal = (size <= LARGEST_WEIGHT) & ((size >= SMALLEST_WEIGHT) | (size == 0))
    if weights == "normalised":
        legal &= weight >= 0
    if not legal.all():
        first = int(np.argmin(legal))
        rule = "a weight is 0, or a number whose size is from 2.3e-308 to 3.4e38"
        if weight[first] < 0 and weights == "normalised":
            rule = f"degrees are sums of weights, whose roots are taken: no weight is negative, or {IN_CARD['weights']}"
        raise UserError(
            f"{path}, edge {before + first + 1:,}, from {source[first]} to {target[first]}, weighs {weight[first]:g}: "
            f"{rule}."
        )


def with_weights(path: Path, raw: RawGraph, weights: Weighting | None) -> RawGraph:
    """The graph with weights of 64 bits, one real number an edge; without weights, if the card has none."""
    if weights is None:
        return replace(raw, weight=None)
    given = np.asarray(raw.weight)
    if given.size != len(raw.source) or given.dtype.kind not in "biuf":
        raise UserError(
            f"{path} has weights of the shape {given.shape} and the type {given.dtype} for {len(raw.source):,} edges. "
            "Expected a real number for each."
        )
    weight = given.reshape(-1).astype(np.float64)
    check_weights(path, (raw.source, raw.target, weight), weights)
    return replace(raw, weight=weight)


def no_weights(path: Path, reason: str) -> UserError:
    """The error for a file without weights, of a card that asks for them."""
    return UserError(
        f"{path} has no weights of edges: {reason}. Leave the weights out, or name another file."
    )


def counted(pieces: Sequence[Piece], path: Path = Path(), weights: Weighting | None = None) -> Counted:
    """Reads and counts all edges; checks their weights, too, if the card asks for them."""
    edges, smallest, largest = 0, 0, -1
    for piece in pieces:
        for source, target, *weight in piece():
            check_weights(path, (source, target, *weight), weights, edges)
            if len(source):
                low, high = min(source.min(), target.min()), max(source.max(), target.max())
                smallest, largest = min(smallest, int(low)) if edges else int(low), max(largest, int(high))
                edges += len(source)
    return Counted(edges, smallest, largest)
