"""Normalisation: makes the matrix of a graph convolution from edges. It runs once, before a graph is cut.

    symmetrise unless directed -> drop duplicates -> drop loops, add one to each vertex -> D^-1/2 A D^-1/2

D holds the row sums after loops were added, so A[i, j], the weight of the edge j -> i, is divided by the roots of the
in-degrees of both ends: PyTorch Geometric's `gcn_norm`, on directed graphs too.

Weighted edges become the same entries, with values:

    sum duplicates -> take the weights of one direction for both, unless directed -> add the loops that are missing

and, for `normalised`, D^-1/2 A D^-1/2 with the sums of weights in D: `gcn_norm` with weights. An added loop weighs 1
where A is normalised and 0 where A is raw, so that A has the same entries in both, and every vertex has a loop.
"""

import numpy as np
import torch
from torch import Tensor

from harness.errors import UserError
from harness.graph.model import EdgeWeights, Ints, RawGraph, StageCounts, Weighting
from harness.kernels.csr import Csr

LARGEST = 3_037_000_499
"""The largest n with n * n in 64 bits: an entry is sorted as the single number row * n + column."""
LOOP: dict[Weighting, float] = {"normalised": 1.0, "raw": 0.0}
"""The weight of a loop that is added."""
UNEVEN = 1e-6
"""The relative difference up to which the weights of an edge's two directions are the same; their mean counts."""
DIRECTED = "set directed: true in the card"


def normalise(raw: RawGraph, directed: bool, weights: Weighting | None = None) -> tuple[Csr, StageCounts]:
    """The adjacency in float64, normalised unless `weights` is raw, and the counts of every stage."""
    n = raw.n
    assert 0 < n <= LARGEST, n
    entries = _distinct(raw.target * n + raw.source)
    row, col = np.divmod(entries, n)
    edges = entries[row != col]
    if not directed:
        row, col = np.divmod(edges, n)
        edges = np.concatenate([edges, col * n + row])
    loops = np.arange(n, dtype=np.int64) * (n + 1)
    adjacency = _distinct(np.concatenate([edges, loops]))
    counts = StageCounts(
        stored=len(raw.source),
        loops=int(np.count_nonzero(raw.source == raw.target)),
        duplicates=len(raw.source) - len(entries),
        nnz_sym=len(adjacency) - n,
        nnz_adj=len(adjacency),
    )
    if weights is None:
        return _by_degrees(adjacency, n), counts
    assert raw.weight is not None
    values = _values(raw, adjacency, directed=directed, loop=LOOP[weights])
    return _by_weights(adjacency, values, n, weights), counts


def _distinct(entries: Ints) -> Ints:
    """The distinct numbers in ascending order."""
    ordered = np.sort(entries)
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _by_degrees(entries: Ints, n: int) -> Csr:
    """Sorted entries as a matrix with the value d_i^-1/2 d_j^-1/2 at (i, j), where row i has d_i entries."""
    row, col = np.divmod(entries, n)
    scale = 1.0 / np.sqrt(np.bincount(row, minlength=n))
    return _matrix(entries, scale[row] * scale[col], n)


def _matrix(entries: Ints, values: EdgeWeights, n: int) -> Csr:
    """Sorted entries and their values as a matrix."""
    row, col = np.divmod(entries, n)
    rowptr = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=n), out=rowptr[1:])
    narrow = np.int32 if n <= np.iinfo(np.int32).max else np.int64
    return Csr(torch.from_numpy(rowptr), torch.from_numpy(col.astype(narrow)), torch.from_numpy(values), n)


# Weighted edges.


def _values(raw: RawGraph, adjacency: Ints, *, directed: bool, loop: float) -> EdgeWeights:
    """The weight of every entry, before normalisation."""
    n, values = raw.n, np.full(len(adjacency), loop)
    given, edge = np.unique(raw.target * n + raw.source, return_inverse=True)
    sums = np.bincount(edge, weights=raw.weight, minlength=len(given))
    row, col = np.divmod(given, n)
    if directed or not len(given):
        values[np.searchsorted(adjacency, given)] = sums
        return values
    mirror = col * n + row
    place = np.searchsorted(given, mirror).clip(max=len(given) - 1)
    other = np.where(given[place] == mirror, sums[place], sums)
    uneven = np.abs(sums - other) > UNEVEN * np.maximum(np.abs(sums), np.abs(other))
    if uneven.any():
        first = int(uneven.argmax())
        raise uneven_weights(int(col[first]), int(row[first]), float(sums[first]), float(other[first]))
    for entries in (given, mirror):
        values[np.searchsorted(adjacency, entries)] = (sums + other) / 2
    return values


def _by_weights(entries: Ints, values: EdgeWeights, n: int, weights: Weighting) -> Csr:
    """Sorted entries as a matrix, normalised or as they are."""
    row, col = np.divmod(entries, n)
    if weights == "normalised":
        scale = scale_of(torch.from_numpy(np.bincount(row, weights=values, minlength=n))).numpy()
        values = values * (scale[row] * scale[col])
    return _matrix(entries, values, n)


def scale_of(strengths: Tensor) -> Tensor:
    """d^-1/2 for the sums of the weights in the rows; 0 for a row that weighs nothing, as in `gcn_norm`."""
    return torch.where(strengths > 0, 1 / strengths.sqrt(), 0.0)


def uneven_weights(source: int, target: int, one: float, other: float) -> UserError:
    """The error for an edge of an undirected graph whose two directions have different weights."""
    return UserError(
        f"the edge from vertex {source:,} to vertex {target:,} weighs {one:g}, and the edge back weighs {other:g}. An "
        f"edge of an undirected graph has one weight: give both directions the same, or {DIRECTED}."
    )
