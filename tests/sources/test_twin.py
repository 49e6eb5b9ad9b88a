"""A twin's edges are what Python's integers say they are, its names a permutation, its degrees those of its nature."""

import numpy as np
import pytest

from harness.kernels.random import Purpose, key_of
from harness.kernels.splitmix import GOLDEN, MIX_1, MIX_2
from harness.sources.generator import drawn
from harness.sources.twin import CLUSTER, WITHIN, Twin
from harness.sources.twin_compiled import name_of

WORD = (1 << 64) - 1


def finalised(z):
    z = (z ^ (z >> 30)) * MIX_1 & WORD
    z = (z ^ (z >> 27)) * MIX_2 & WORD
    return z ^ (z >> 31)


def bits(index, keys):
    return finalised((finalised((index * GOLDEN + keys[0]) & WORD) + keys[1]) & WORD)


def unit(number):
    return (number >> 11) * 0.5**53


def name(rank, n, keys):
    size = max((n - 1).bit_length(), 2)
    low = size - size // 2
    x = rank
    while True:
        left, right = x >> low, x & ((1 << low) - 1)
        for turn in range(4):
            z = (right ^ (keys[turn % 2] >> (turn // 2))) * MIX_1 & WORD
            mask = (1 << (low if turn % 2 else size // 2)) - 1
            left, right = right, left ^ ((z ^ (z >> 31)) & mask)
        x = (left << low) | right
        if x < n:
            return x


def edge(k, twin):
    keys = key_of(twin.seed, Purpose.EDGES)
    u = unit(bits(4 * k, keys))
    start, v = int(u * u * twin.n), unit(bits(4 * k + 2, keys))
    end = int(v * v * twin.n)
    if twin.within and unit(bits(4 * k + 1, keys)) < twin.within:
        corner = start - start % CLUSTER
        end = corner + int(v * min(CLUSTER, twin.n - corner))
    return name(start, twin.n, keys), name(end, twin.n, keys)


@pytest.mark.parametrize("within", [0.0, WITHIN])
@pytest.mark.parametrize("n", [1, 2, 37, 1000, 1 << 20])
def test_edges_are_those_of_pythons_integers(n, within):
    twin = Twin(n, 5000, seed=3, within=within)
    found = zip(*(end.tolist() for end in twin.edges(range(100, 400))), strict=True)
    assert list(found) == [edge(k, twin) for k in range(100, 400)]


@pytest.mark.parametrize("within", [0.0, WITHIN])
def test_any_chunks_give_the_same_edges(within):
    twin = Twin(999, 7000, seed=1, within=within)
    whole = drawn(twin, range(7000))
    for chunk in (1, 64, 6999):
        for mine, theirs in zip(drawn(twin, range(7000), chunk), whole, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 1000, 4097])
def test_names_are_a_permutation_that_hides_ranks(n):
    keys = tuple(np.uint64(key) for key in key_of(5, Purpose.EDGES))
    names = [name_of(rank, n, max((n - 1).bit_length(), 2), keys) for rank in range(n)]
    assert sorted(names) == list(range(n))
    if n > 100:
        assert abs(np.corrcoef(names, range(n))[0, 1]) < 5 / n**0.5


def test_degrees_fall_with_the_root_of_the_rank():
    n, edges = 40_000, 400_000
    source, target = drawn(Twin(n, edges, seed=2), range(edges))
    for ends in (source, target):
        degrees = np.sort(np.bincount(ends, minlength=n))[::-1]
        expected = edges * (np.sqrt(np.arange(1, n + 1) / n) - np.sqrt(np.arange(n) / n))
        assert degrees[0] == pytest.approx(expected[0], rel=0.1)
        assert degrees[:1000].sum() == pytest.approx(expected[:1000].sum(), rel=0.05)
        assert np.median(degrees) == pytest.approx(np.median(expected), abs=1.5)


def test_in_clusters_edges_stay_among_few():
    n, edges = 64 * 500, 100_000
    keys = tuple(np.uint64(key) for key in key_of(4, Purpose.EDGES))
    names = np.array([name_of(rank, n, max((n - 1).bit_length(), 2), keys) for rank in range(n)])
    cluster = np.empty(n, np.int64)
    cluster[names] = np.arange(n) // CLUSTER
    source, target = drawn(Twin(n, edges, seed=4, within=WITHIN), range(edges))
    assert (cluster[source] == cluster[target]).mean() == pytest.approx(WITHIN, abs=0.02)
    source, target = drawn(Twin(n, edges, seed=4), range(edges))
    assert (cluster[source] == cluster[target]).mean() < 0.02
