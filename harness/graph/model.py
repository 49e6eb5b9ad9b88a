"""A graph before and after normalisation, in memory. It knows nothing of files, processes or orders.

Before: `RawGraph`, the edges as a file or a generator names them. After: `Graph`, what training reads.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.kernels.csr import Csr

TRAIN, VALID, TEST = 1, 2, 3
"""The values of a split; 0 is a vertex that belongs to none."""
SPLITS = {"train": TRAIN, "valid": VALID, "test": TEST}
NO_LABEL = -1
LabelTask = Literal["single-label", "multi-label"]
"""One class a vertex: (n,) int64. Any number of classes a vertex: (n, classes) int8, 0 or 1; NO_LABEL throughout a row,
where it is not known."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64] | NDArray[np.int8]


@dataclass(frozen=True)
class RawGraph:
    """What a source says of a graph; None where it says nothing.

    Edge k goes from vertex `source[k]` to vertex `target[k]`, both below n; loops and duplicates may be among
    them. An undirected graph may name an edge in one direction or in both.
    """

    n: int
    source: Ints
    target: Ints
    X: Floats | None = None
    y: Labels | None = None
    split: Bytes | None = None


@dataclass(frozen=True)
class StageCounts:
    """How many entries there were at each stage. "Edges" means something else in every paper."""

    stored: int
    """Entries that the source gave; a symmetric Matrix Market file counts as its header expands it."""
    loops: int
    """Of those, entries from a vertex to itself, repetitions included."""
    duplicates: int
    """Of those, entries that repeat an earlier one."""
    nnz_sym: int
    """Without loops and duplicates; with both directions of every edge, unless the graph is directed."""
    nnz_adj: int
    """What the kernels multiply: nnz_sym and one loop per vertex."""


@dataclass(frozen=True)
class Graph:
    """A graph ready for training, in its original order of vertices."""

    A: Csr
    """Normalised, float64, columns sorted. A[i, j] is the weight of the edge j -> i."""
    X: Tensor
    """Features, (n, width) float32."""
    y: Tensor
    """Labels, as `LabelTask` says."""
    split: Tensor
    """(n,) uint8: 0, TRAIN, VALID or TEST."""
    classes: int
    directed: bool
    counts: StageCounts

    @property
    def n(self) -> int:
        return self.A.rows

    @property
    def task(self) -> LabelTask:
        return "single-label" if self.y.dim() == 1 else "multi-label"


def labelled(y: Tensor) -> Tensor:
    """Which vertices have labels."""
    return (y if y.dim() == 1 else y[:, 0]) != NO_LABEL
