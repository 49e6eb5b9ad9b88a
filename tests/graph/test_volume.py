"""The volume of a partition is the number of distinct columns that scipy counts outside the diagonal blocks."""

from itertools import pairwise

import pytest
from scipy import sparse

from harness.graph.partitions.partition import count_needed_rows
from harness.kernels.csr import from_scipy
from tests.random_matrices import random_matrix


@pytest.mark.parametrize("bounds", [(0, 31), (0, 10, 10, 25, 31), (0, 31, 31), tuple(range(32))])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_volumes_are_scipys(bounds, density):
    M = random_matrix(31, density, 0)
    expected = []
    for start, stop in pairwise(bounds):
        there = set(M[start:stop].nonzero()[1].tolist())
        expected.append(len(there - set(range(start, stop))))
    assert count_needed_rows(from_scipy(M), bounds) == expected


def test_a_part_receives_what_its_rows_read_not_what_its_columns_send():
    """Vertex 0 sends to 1 and 2: the second part needs one row, the first none."""
    M = sparse.csr_array(([1.0, 1.0], ([1, 2], [0, 0])), shape=(3, 3))
    assert count_needed_rows(from_scipy(M), (0, 1, 3)) == [0, 1]
