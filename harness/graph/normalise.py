"""Normalisation: makes the matrix of a graph convolution from edges. It runs once, before a graph is cut.

    symmetrise unless directed -> drop duplicates -> drop loops, add one to each vertex -> D^-1/2 A D^-1/2

D holds the row sums after loops were added, so A[i, j], the weight of the edge j -> i, is divided by the roots of the
in-degrees of both ends: PyTorch Geometric's `gcn_norm`, on directed graphs too. Edges carry no weights.
"""

import numpy as np
import torch

from harness.graph.model import Ints, RawGraph, StageCounts
from harness.kernels.csr import Csr

LARGEST = 3_037_000_499
"""The largest n with n * n in 64 bits: an entry is sorted as the single number row * n + column."""


def normalise(raw: RawGraph, directed: bool) -> tuple[Csr, StageCounts]:
    """The normalised adjacency in float64 and the counts of every stage."""
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
    return _weighted(adjacency, n), counts


def _distinct(entries: Ints) -> Ints:
    """The distinct numbers in ascending order."""
    ordered = np.sort(entries)
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _weighted(entries: Ints, n: int) -> Csr:
    """Sorted entries as a matrix with the weight d_i^-1/2 d_j^-1/2 at (i, j), where row i has d_i entries."""
    row, col = np.divmod(entries, n)
    degree = np.bincount(row, minlength=n)
    scale = 1.0 / np.sqrt(degree)
    rowptr = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(degree, out=rowptr[1:])
    narrow = np.int32 if n <= np.iinfo(np.int32).max else np.int64
    return Csr(
        torch.from_numpy(rowptr),
        torch.from_numpy(col.astype(narrow)),
        torch.from_numpy(scale[row] * scale[col]),
        n,
    )
