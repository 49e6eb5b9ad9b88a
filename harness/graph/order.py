"""Orders of the vertices: the permutations of a dataset, as index maps.

A map gives the original vertex at each new position: the entry of A[p][:, q] at (i, j) is the entry of A at
(p[i], q[j]). Two different maps move the loops off the diagonal, which balances the blocks of sparse graphs (the double
permutation of Plexus). Layers then alternate between order 0, A[p][:, q], and order 1, A[q][:, p], so that the rows
of one layer's output are the columns of the next layer. With one map, or none, p is q and both orders are the same
matrix.

A permutation is drawn so that any part of its map can be computed without the rest (`harness.kernels.shuffle`); the map
of a partition is a table.
"""

from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from harness.kernels.csr import Csr, from_scipy, index_dtype, to_scipy
from harness.kernels.random import Index, Purpose
from harness.kernels.shuffle import random_permutation

Permutation = Literal["none", "single", "double"]


class Map(Protocol):
    """A map of vertices, computed or in a table."""

    def values_at(self, places: Index) -> Tensor:
        """The original vertices at these positions, int64."""

    def positions_of(self, numbers: Index) -> Tensor:
        """The positions of these original vertices."""


class TableMap:
    """A map in memory, as a table for either direction."""

    def __init__(self, order: Tensor) -> None:
        self._order = order
        self._places = torch.empty(len(order), dtype=index_dtype(len(order)))
        self._places[order] = torch.arange(len(order), dtype=self._places.dtype)

    def values_at(self, places: Index) -> Tensor:
        return _some(self._order, places)

    def positions_of(self, numbers: Index) -> Tensor:
        return _some(self._places, numbers)


M = TypeVar("M")


class Orders(NamedTuple, Generic[M]):
    """The two maps of a dataset, equal unless the permutation is double; each a `Map`, or a tensor (n,) of int64."""

    p: M
    q: M

    def rows(self, order: int) -> M:
        """The map of the rows in this order, which is that of labels and splits."""
        return self.q if order else self.p

    def cols(self, order: int) -> M:
        """The map of the columns in this order, which for order 0 is that of the features."""
        return self.p if order else self.q


def maps(permutation: Permutation, n: int, seed: int) -> Orders[Map] | None:
    """The maps of a dataset of n vertices, as functions of the seed; None if all vertices stay."""
    if permutation == "none":
        return None
    p = random_permutation(seed, Purpose.PERMUTATION, n)
    return Orders(p, p if permutation == "single" else random_permutation(seed, Purpose.PERMUTATION, n, 1))


def orders(permutation: Permutation, n: int, seed: int) -> Orders[Tensor]:
    """The maps of a dataset of n vertices, as tensors."""
    drawn = maps(permutation, n, seed)
    if drawn is None:
        same = torch.arange(n)
        return Orders(same, same)
    p = drawn.p.values_at(range(n))
    return Orders(p, p if drawn.q is drawn.p else drawn.q.values_at(range(n)))


def permuted(A: Csr, rows: Tensor, cols: Tensor) -> Csr:
    """A[rows][:, cols] for two maps of all rows and all columns."""
    M = to_scipy(A)[rows.numpy()]
    position = torch.empty(A.cols, dtype=A.col.dtype)
    position[cols] = torch.arange(A.cols, dtype=A.col.dtype)
    M.indices = position.numpy()[M.indices]
    M.has_sorted_indices = False
    return from_scipy(M, A.val.dtype)


def _some(table: Tensor, index: Index) -> Tensor:
    return (table[index.start : index.stop] if isinstance(index, range) else table[index]).long()
