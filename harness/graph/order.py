"""Orders of the vertices: the permutations of a dataset, as index maps.

A map says which original vertex stands at each new position: A[p][:, q] has at (i, j) what A has at
(p[i], q[j]). Two maps that differ move the loops off the diagonal, which balances the blocks of sparse graphs
(the double permutation of Plexus); layers then alternate between order 0, A[p][:, q], and order 1, A[q][:, p],
so that the rows one layer leaves are the columns of the next. With one map, or none, p is q and both orders
are the same matrix.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from harness.kernels.csr import Csr, from_scipy, to_scipy
from harness.kernels.random import Purpose, shuffled

Permutation = Literal["none", "single", "double"]


class Orders(NamedTuple):
    """The two maps of a dataset, (n,) int64 each. They are equal unless the permutation is double."""

    p: Tensor
    q: Tensor

    def rows(self, order: int) -> Tensor:
        """The map of the rows in this order; labels and splits follow it."""
        return self.q if order else self.p

    def cols(self, order: int) -> Tensor:
        """The map of the columns in this order; the features follow that of order 0."""
        return self.p if order else self.q


def orders(permutation: Permutation, n: int, seed: int) -> Orders:
    """The maps of a dataset of n vertices, functions of the seed."""
    if permutation == "none":
        same = torch.arange(n)
        return Orders(same, same)
    p = shuffled(seed, Purpose.PERMUTATION, range(n))
    if permutation == "single":
        return Orders(p, p)
    return Orders(p, shuffled(seed, Purpose.PERMUTATION, range(n, 2 * n)))


def permuted(A: Csr, rows: Tensor, cols: Tensor) -> Csr:
    """A[rows][:, cols] for two maps of all rows and all columns."""
    M = to_scipy(A)[rows.numpy()]
    position = torch.empty(A.cols, dtype=A.col.dtype)
    position[cols] = torch.arange(A.cols, dtype=A.col.dtype)
    M.indices = position.numpy()[M.indices]
    M.has_sorted_indices = False
    return from_scipy(M, A.val.dtype)
