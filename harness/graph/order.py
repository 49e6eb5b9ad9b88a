"""Orders of the vertices: the permutations of a dataset, as index maps.

A map gives the original vertex at each new position: entry (i, j) of A[p][:, q] is entry (p[i], q[j]) of A. Two
different maps move the loops off the diagonal, which balances the blocks of sparse graphs (the double permutation of
Plexus). Layers then alternate between order 0, A[p][:, q], and order 1, A[q][:, p], so that the rows of one layer's
output are the columns of the next layer. With one map, or none, p is q and both orders are the same matrix.

Any part of a permutation can be computed without the rest (`harness.kernels.shuffle`); the map of a partition is a
table.
"""

from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from harness.graph.model import Permutation
from harness.kernels.csr import Csr, from_scipy, index_dtype, to_scipy
from harness.kernels.random import Index, Purpose
from harness.kernels.shuffle import random_permutation


class Map(Protocol):
    """A bijection between new positions and original vertices, computed or stored as a table."""

    def values_at(self, places: Index) -> Tensor:
        """Return the original vertices at these positions, int64."""

    def positions_of(self, numbers: Index) -> Tensor:
        """Return the positions of these original vertices."""


class TableMap:
    """A map in memory: one table for each direction."""

    def __init__(self, order: Tensor) -> None:
        self._order = order
        self._places = torch.empty(len(order), dtype=index_dtype(len(order)))
        self._places[order] = torch.arange(len(order), dtype=self._places.dtype)

    def values_at(self, places: Index) -> Tensor:
        return _look_up(self._order, places)

    def positions_of(self, numbers: Index) -> Tensor:
        return _look_up(self._places, numbers)


M = TypeVar("M")


class Orders(NamedTuple, Generic[M]):
    """The two maps of a dataset, equal unless the permutation is double; each a `Map` or an int64 tensor (n,)."""

    p: M
    q: M

    def rows(self, order: int) -> M:
        """Return the map of the rows of an order, which labels and splits also follow."""
        return self.q if order else self.p

    def cols(self, order: int) -> M:
        """Return the map of the columns of an order. Features follow the columns of order 0."""
        return self.p if order else self.q


def make_maps(permutation: Permutation, n: int, seed: int) -> Orders[Map] | None:
    """Return the maps of a dataset of `n` vertices, computed from the seed; None for the original order."""
    if permutation == "none":
        return None
    p = random_permutation(seed, Purpose.PERMUTATION, n)
    return Orders(p, p if permutation == "single" else random_permutation(seed, Purpose.PERMUTATION, n, 1))


def make_orders(permutation: Permutation, n: int, seed: int) -> Orders[Tensor]:
    """Return the maps of a dataset of `n` vertices as tensors."""
    drawn = make_maps(permutation, n, seed)
    if drawn is None:
        identity = torch.arange(n)
        return Orders(identity, identity)
    p = drawn.p.values_at(range(n))
    return Orders(p, p if drawn.q is drawn.p else drawn.q.values_at(range(n)))


def permute_matrix(A: Csr, rows: Tensor, cols: Tensor) -> Csr:
    """Return A[rows][:, cols] for permutations of all rows and all columns."""
    M = to_scipy(A)[rows.numpy()]
    position = torch.empty(A.cols, dtype=A.col.dtype)
    position[cols] = torch.arange(A.cols, dtype=A.col.dtype)
    M.indices = position.numpy()[M.indices]
    M.has_sorted_indices = False
    return from_scipy(M, A.val.dtype)


def _look_up(table: Tensor, index: Index) -> Tensor:
    return (table[index.start : index.stop] if isinstance(index, range) else table[index]).long()
