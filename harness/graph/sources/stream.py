"""Streams of edges: pieces that can be read independently, so that the edges need never be in memory together.

The edges do not depend on how a source is cut into pieces, or a piece into chunks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.graph.model import Bytes, EdgeWeights, Floats, Ints, Labels, RawGraph, Weighting
from harness.graph.sources.read_errors import CARD_HINTS, check_ids

CHUNK_EDGES = 1 << 22
"""The default number of edges in a chunk."""
Edges = tuple[Ints, Ints] | tuple[Ints, Ints, EdgeWeights]
"""Sources and targets, and weights if the card asks for them."""
Piece = Callable[[], Iterator[Edges]]
"""Reads some of the edges, chunk by chunk, from the beginning at every call."""


class EdgeStream(NamedTuple):
    """A graph as its source provides it. Fields that the source does not provide are None."""

    n: int
    entries: int
    """The number of edges; for a generator, an upper bound."""
    pieces: Callable[[int], Sequence[Piece]]
    """Cuts the edges into pieces whose chunks have at most the given number of edges."""
    X: Callable[[], Floats] | None = None
    """Reads the features."""
    y: Labels | None = None
    split: Bytes | None = None
    names: Any = None
    """The vertex names as a sorted arrow array of bytes, for named vertices."""


def stream_graph(raw: RawGraph) -> EdgeStream:
    """Return the stream of a graph in memory."""

    def read_edges(numbers: range) -> Edges:
        part = slice(numbers.start, numbers.stop)
        if raw.weight is None:
            return raw.source[part], raw.target[part]
        return raw.source[part], raw.target[part], raw.weight[part]

    X, count = raw.X, len(raw.source)
    read_features = None if X is None else lambda: X
    return EdgeStream(raw.n, count, cut_by_index(count, read_edges), read_features, raw.y, raw.split)


def collect_graph(stream: EdgeStream) -> RawGraph:
    """Read a stream into memory."""
    chunks = [chunk for piece in stream.pieces(max(stream.entries, 1)) for chunk in piece()]
    empty = np.zeros(0, np.int64)
    source, target = (np.concatenate([empty, *(chunk[end] for chunk in chunks)]) for end in (0, 1))
    X = stream.X() if stream.X else None
    weights = [chunk[2] for chunk in chunks if len(chunk) == 3]
    weight = np.concatenate(weights) if weights else None
    return RawGraph(stream.n, source, target, X, stream.y, stream.split, weight)


def cut_by_index(count: int, read_edges: Callable[[range], Edges]) -> Callable[[int], list[Piece]]:
    """Return a function that cuts `count` edges into pieces of one chunk each. `read_edges` reads any range of them."""

    def read_piece(numbers: range) -> Iterator[Edges]:
        yield read_edges(numbers)

    def cut(at_once: int) -> list[Piece]:
        starts = range(0, count, at_once)
        return [partial(read_piece, range(start, min(start + at_once, count))) for start in starts]

    return cut


class EdgeCounts(NamedTuple):
    """What a first pass over the edges counts. Without edges, the largest id is -1."""

    edges: int
    smallest: int
    largest: int

    def are_within(self, ids: range) -> bool:
        """Return True if all ids are within `ids`."""
        return not self.edges or (self.smallest in ids and self.largest in ids)

    def check(self, path: Path, n: int, hint: str = "") -> None:
        """Raise an error if an id is outside 0 .. n - 1."""
        if self.edges:
            check_ids(path, "edges", np.array([self.smallest, self.largest]), n, hint)

    def resolve_vertex_count(self, path: Path, n: int | None) -> int:
        """Return the number of vertices: `n` if the card gives it, else the largest id plus one."""
        if n is None and not self.edges:
            raise UserError(
                f"{path} has no edges, and the number of vertices is not given: {CARD_HINTS['n']}."
            )
        return self.largest + 1 if n is None else n


MAX_WEIGHT, MIN_WEIGHT = float(np.finfo(np.float32).max), float(np.finfo(np.float64).tiny)
"""Limits of nonzero weights: a run may compute in float32."""


def check_weights(path: Path, edges: Sequence[Any], weights: Weighting | None, before: int = 0) -> None:
    """Raise an error for weights that A cannot have; `before` is the number of earlier edges in the file."""
    if weights is None:
        return
    source, target, weight = edges
    size = np.abs(weight)
    is_valid = (size <= MAX_WEIGHT) & ((size >= MIN_WEIGHT) | (size == 0))
    if weights == "normalised":
        is_valid &= weight >= 0
    if not is_valid.all():
        first = int(np.argmin(is_valid))
        rule = "a weight must be 0, or have an absolute value from 2.3e-308 to 3.4e38"
        if weight[first] < 0 and weights == "normalised":
            rule = (
                "normalised weights must not be negative, because degrees are sums of weights: correct them, or "
                f"{CARD_HINTS['weights']}"
            )
        raise UserError(
            f"{path}, edge {before + first + 1:,}, from {source[first]} to {target[first]}, has the weight "
            f"{weight[first]:g}: {rule}."
        )


def check_graph_weights(path: Path, raw: RawGraph, weights: Weighting | None) -> RawGraph:
    """Return the graph with float64 weights that were checked; without weights if the card has none."""
    if weights is None:
        return replace(raw, weight=None)
    given = np.asarray(raw.weight)
    if given.size != len(raw.source) or given.dtype.kind not in "biuf":
        raise UserError(
            f"{path} has weights of shape {given.shape} and type {given.dtype} for {len(raw.source):,} edges. "
            "Expected a real number for each edge."
        )
    weight = given.reshape(-1).astype(np.float64)
    check_weights(path, (raw.source, raw.target, weight), weights)
    return replace(raw, weight=weight)


def make_missing_weights_error(path: Path, reason: str) -> UserError:
    """Return the error for a file without weights whose card asks for them."""
    return UserError(f"{path} has no edge weights: {reason}. Leave out the weights, or name another file.")


def count_edges(pieces: Sequence[Piece], path: Path = Path(), weights: Weighting | None = None) -> EdgeCounts:
    """Read and count all edges; check their weights if the card asks for them."""
    edges, smallest, largest = 0, 0, -1
    for piece in pieces:
        for source, target, *weight in piece():
            check_weights(path, (source, target, *weight), weights, edges)
            if len(source):
                low, high = min(source.min(), target.min()), max(source.max(), target.max())
                smallest = min(smallest, int(low)) if edges else int(low)
                largest = max(largest, int(high))
                edges += len(source)
    return EdgeCounts(edges, smallest, largest)
