"""Orders of the vertices: the permutations of a dataset, as index maps.

A map says which original vertex stands at each new position: A[p][:, q] has at (i, j) what A has at
(p[i], q[j]). Two maps that differ move the loops off the diagonal, which balances the blocks of sparse graphs
(the double permutation of Plexus); layers then alternate between order 0, A[p][:, q], and order 1, A[q][:, p],
so that the rows one layer leaves are the columns of the next. With one map, or none, p is q and both orders
are the same matrix.

A permutation is drawn so that any part of its map can be had without the rest (`harness.kernels.shuffle`); the map of
a partition is a table.
"""

from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from harness.kernels.csr import Csr, from_scipy, index_dtype, to_scipy
from harness.kernels.random import Index, Purpose
from harness.kernels.shuffle import shuffle

Permutation = Literal["none", "single", "double"]


class Map(Protocol):
    """A map that may be too long to be held."""

    def at(self, places: Index) -> Tensor:
        """Which original vertices stand at these positions, int64."""

    def places(self, numbers: Index) -> Tensor:
        """The positions of these original vertices."""


class Table:
    """A map that is held, both ways."""

    def __init__(self, order: Tensor) -> None:
        self._order = order
        self._places = torch.empty(len(order), dtype=index_dtype(len(order)))
        self._places[order] = torch.arange(len(order), dtype=self._places.dtype)

    def at(self, places: Index) -> Tensor:
        return _some(self._order, places)

    def places(self, numbers: Index) -> Tensor:
        return _some(self._places, numbers)


M = TypeVar("M")


class Orders(NamedTuple, Generic[M]):
    """The two maps of a dataset, each a `Map` or whole, (n,) int64; equal unless the permutation is double."""

    p: M
    q: M

    def rows(self, order: int) -> M:
        """The map of the rows in this order; labels and splits follow it."""
        return self.q if order else self.p

    def cols(self, order: int) -> M:
        """The map of the columns in this order; the features follow that of order 0."""
        return self.p if order else self.q


def maps(permutation: Permutation, n: int, seed: int) -> Orders[Map] | None:
    """The maps of a dataset of n vertices, functions of the seed; None if all vertices stay."""
    if permutation == "none":
        return None
    p = shuffle(seed, Purpose.PERMUTATION, n)
    return Orders(p, p if permutation == "single" else shuffle(seed, Purpose.PERMUTATION, n, 1))


def orders(permutation: Permutation, n: int, seed: int) -> Orders[Tensor]:
    """The same, whole."""
    drawn = maps(permutation, n, seed)
    if drawn is None:
        same = torch.arange(n)
        return Orders(same, same)
    p = drawn.p.at(range(n))
    return Orders(p, p if drawn.q is drawn.p else drawn.q.at(range(n)))


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
