"""Turns edges into the adjacency matrix of a graph convolution. Runs once, before a graph is cut.

    symmetrise unless directed -> drop duplicates -> one loop per vertex -> D^-1/2 A D^-1/2

D holds the row sums after loops were added, so A[i, j], the value of the edge j -> i, is divided by the square roots of
the in-degrees of both ends, as PyTorch Geometric's `gcn_norm` does, on directed graphs too.

Weighted edges give the same entries, with values:

    sum duplicates -> copy the weight to the other direction unless directed -> add missing loops

and, for `normalised`, D^-1/2 A D^-1/2 with the sums of weights in D, as `gcn_norm` with weights. An added loop has the
weight 1 if A is normalised and 0 if A is raw, so A has the same entries in both, and every vertex has a loop.
"""

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.graph.model import DIRECTED_HINT, EdgeWeights, Ints, RawGraph, StageCounts, Weighting
from harness.kernels.csr import Csr

MAX_VERTICES = 3_037_000_499
"""The largest n with n * n below 2^63: entries are sorted by the number row * n + column."""
ADDED_LOOP_WEIGHT: dict[Weighting, float] = {"normalised": 1.0, "raw": 0.0}
ASYMMETRY_TOLERANCE = 1e-6
"""The relative difference up to which the weights of both directions of an edge count as equal; their mean is used."""


def normalise_adjacency(
    raw: RawGraph, directed: bool, weights: Weighting | None = None
) -> tuple[Csr, StageCounts]:
    """Return the adjacency in float64, normalised unless `weights` is raw, and the counts of every stage."""
    n = raw.n
    assert 0 < n <= MAX_VERTICES, n
    entries = _sort_unique(raw.target * n + raw.source)
    row, col = np.divmod(entries, n)
    edges = entries[row != col]
    if not directed:
        row, col = np.divmod(edges, n)
        edges = np.concatenate([edges, col * n + row])
    loops = np.arange(n, dtype=np.int64) * (n + 1)
    adjacency = _sort_unique(np.concatenate([edges, loops]))
    counts = StageCounts(
        stored=len(raw.source),
        loops=int(np.count_nonzero(raw.source == raw.target)),
        duplicates=len(raw.source) - len(entries),
        nnz_sym=len(adjacency) - n,
        nnz_adj=len(adjacency),
    )
    values = np.ones(len(adjacency))
    if weights is not None:
        values = _merge_weights(raw, adjacency, directed=directed, loop=ADDED_LOOP_WEIGHT[weights])
    return _build_matrix(adjacency, values, n, normalise=weights != "raw"), counts


def _sort_unique(entries: Ints) -> Ints:
    """Return the distinct numbers in ascending order."""
    ordered = np.sort(entries)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def _build_matrix(entries: Ints, values: EdgeWeights, n: int, *, normalise: bool) -> Csr:
    """Return sorted entries and their values as a matrix, multiplied by D^-1/2 from both sides if `normalise`."""
    row, col = np.divmod(entries, n)
    if normalise:
        scale = inverse_sqrt(torch.from_numpy(np.bincount(row, weights=values, minlength=n))).numpy()
        values = values * (scale[row] * scale[col])
    rowptr = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=n), out=rowptr[1:])
    col_dtype = np.int32 if n <= np.iinfo(np.int32).max else np.int64
    return Csr(torch.from_numpy(rowptr), torch.from_numpy(col.astype(col_dtype)), torch.from_numpy(values), n)


def _merge_weights(raw: RawGraph, adjacency: Ints, *, directed: bool, loop: float) -> EdgeWeights:
    """Return the weight of every entry, before normalisation."""
    n, values = raw.n, np.full(len(adjacency), loop)
    assert raw.weight is not None
    given, edge = np.unique(raw.target * n + raw.source, return_inverse=True)
    sums = np.bincount(edge, weights=raw.weight, minlength=len(given))
    row, col = np.divmod(given, n)
    if directed or not len(given):
        values[np.searchsorted(adjacency, given)] = sums
        return values
    mirrored = col * n + row
    position = np.searchsorted(given, mirrored).clip(max=len(given) - 1)
    reverse = np.where(given[position] == mirrored, sums[position], sums)
    is_asymmetric = np.abs(sums - reverse) > ASYMMETRY_TOLERANCE * np.maximum(np.abs(sums), np.abs(reverse))
    if is_asymmetric.any():
        first = int(is_asymmetric.argmax())
        raise make_asymmetric_weight_error(
            int(col[first]), int(row[first]), float(sums[first]), float(reverse[first])
        )
    for entries in (given, mirrored):
        values[np.searchsorted(adjacency, entries)] = (sums + reverse) / 2
    return values


def inverse_sqrt(strengths: Tensor) -> Tensor:
    """Return d^-1/2 for the sums of the weights in the rows, and 0 where a sum is 0, as `gcn_norm` does."""
    return torch.where(strengths > 0, 1 / strengths.sqrt(), 0.0)


def make_asymmetric_weight_error(source: int, target: int, forward: float, backward: float) -> UserError:
    """Return the error for an edge of an undirected graph whose two directions have different weights."""
    return UserError(
        f"the edge from vertex {source:,} to vertex {target:,} has the weight {forward:g}, and the reverse edge "
        f"{backward:g}. In an undirected graph, both directions have the same weight: make them equal, or "
        f"{DIRECTED_HINT}."
    )
