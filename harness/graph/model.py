"""A graph in memory, before and after normalisation, independent of files, processes and orders.

`RawGraph` holds the edges as a file or a generator gives them; `Graph` holds the matrices of training.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # sources and cards use this module without torch
    from torch import Tensor

    from harness.kernels.csr import Csr

TRAIN, VALID, TEST = 1, 2, 3
"""The values of a split; 0 marks a vertex that belongs to none."""
SPLITS = {"train": TRAIN, "valid": VALID, "test": TEST}
NO_LABEL = -1
LabelTask = Literal["single-label", "multi-label"]
"""Single-label: one class per vertex, (n,) int64. Multi-label: any number of classes per vertex, (n, classes) int8 of 0
and 1. An unlabelled vertex has NO_LABEL, in all columns if multi-label."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64] | NDArray[np.int8]
EdgeWeights = NDArray[np.float64]
Weighting = Literal["normalised", "raw"]
"""How A uses edge weights: normalised by weighted degrees, or as given."""
Permutation = Literal["none", "single", "double"]
"""One order of the vertices, one random order, or two of them (`harness.graph.order`)."""
DIRECTED_HINT = "set directed: true in the card"
"""Advice in error messages."""


@dataclass(frozen=True)
class RawGraph:
    """The edges and the vertex data of a source; None for data that the source does not have.

    Edge k goes from vertex `source[k]` to vertex `target[k]`, both below n; loops and duplicates are allowed. An
    undirected graph may list an edge in one direction or in both. `weight` is used only if the card has weights.
    """

    n: int
    source: Ints
    target: Ints
    X: Floats | None = None
    y: Labels | None = None
    split: Bytes | None = None
    weight: EdgeWeights | None = None


@dataclass(frozen=True)
class StageCounts:
    """The number of entries at each stage of normalisation, since papers differ in what they call edges."""

    stored: int
    """Entries of the source. A symmetric Matrix Market file is counted with its mirrored entries."""
    loops: int
    """Stored entries from a vertex to itself, duplicates included."""
    duplicates: int
    """Stored entries that repeat an earlier entry."""
    nnz_sym: int
    """Entries without loops and duplicates; both directions of every edge count unless the graph is directed."""
    nnz_adj: int
    """Entries of the matrix that kernels multiply by: nnz_sym plus one loop per vertex."""


@dataclass(frozen=True)
class Graph:
    """A graph ready for training, in the original order of its vertices."""

    A: "Csr"
    """float64, columns sorted. A[i, j] is the value of the edge j -> i, normalised unless `weights` is raw."""
    X: "Tensor"
    """Features, (n, width) float32."""
    y: "Tensor"
    """Labels, in the form that `LabelTask` describes."""
    split: "Tensor"
    """(n,) uint8: 0, TRAIN, VALID or TEST."""
    classes: int
    directed: bool
    counts: StageCounts
    weights: Weighting | None = None
    """None for edges without weights."""

    @property
    def n(self) -> int:
        """The number of vertices."""
        return self.A.rows

    @property
    def task(self) -> LabelTask:
        return "single-label" if self.y.dim() == 1 else "multi-label"


def has_label(y: "Tensor") -> "Tensor":
    """Return a mask of the vertices that have a label."""
    return (y if y.dim() == 1 else y[:, 0]) != NO_LABEL
