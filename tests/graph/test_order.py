"""Orders are permutations of the vertices, functions of the seed; permuted matrices are numpy's A[p][:, q]."""

import numpy as np
import pytest
import torch

from harness.graph.order import make_orders, permute_matrix
from harness.kernels.csr import from_scipy, to_scipy
from tests.random_matrices import random_matrix


@pytest.mark.parametrize("n", [1, 2, 211])
@pytest.mark.parametrize("permutation", ["none", "single", "double"])
def test_maps_are_permutations(permutation, n):
    maps = make_orders(permutation, n, seed=3)
    for each in maps:
        assert each.sort().values.tolist() == list(range(n))


def test_only_a_double_permutation_has_two_maps():
    for permutation, two in (("none", False), ("single", False), ("double", True)):
        maps = make_orders(permutation, 211, seed=3)
        assert torch.equal(maps.p, maps.q) != two


def test_maps_depend_on_the_seed_alone():
    first, again, other = (make_orders("double", 211, seed) for seed in (0, 0, 1))
    assert torch.equal(first.p, again.p)
    assert torch.equal(first.q, again.q)
    assert not torch.equal(first.p, other.p)
    assert torch.equal(first.p, make_orders("single", 211, 0).p)


def test_none_keeps_the_order():
    assert make_orders("none", 5, seed=9).p.tolist() == [0, 1, 2, 3, 4]


def test_the_two_orders_exchange_rows_and_columns():
    maps = make_orders("double", 31, 0)
    assert torch.equal(maps.rows(0), maps.cols(1))
    assert torch.equal(maps.rows(1), maps.cols(0))


def test_a_shuffled_vertex_may_land_anywhere():
    """Positions of one vertex over many seeds are uniform: chi-squared with 9 degrees of freedom, 1 in 10^6."""
    where = [make_orders("single", 10, seed).p.tolist().index(0) for seed in range(1000)]
    counts = np.bincount(where, minlength=10)
    assert ((counts - 100) ** 2 / 100).sum() < 46


@pytest.mark.parametrize("seed", range(3))
def test_permuted_is_numpys(seed):

    M = random_matrix(23, 0.2, seed)
    maps = make_orders("double", 23, seed)
    moved = permute_matrix(from_scipy(M), maps.p, maps.q)
    np.testing.assert_array_equal(to_scipy(moved).toarray(), M.toarray()[maps.p][:, maps.q])
    assert to_scipy(moved).has_sorted_indices
