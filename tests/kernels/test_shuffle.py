"""Permutations and their inverses are the same by tensors, by loops and by Python's integers.

Samples without replacement are the same on every rank, and all sets are equally likely.
"""

from itertools import combinations, pairwise
from math import isqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.kernels.random import GOLDEN, MIX_1, MIX_2, Purpose, random_bits
from harness.kernels.shuffle import (
    FEW,
    ROUNDS,
    ROUNDS_OF_FEW,
    permute_numba,
    permute_torch,
    random_permutation,
    sample_distinct,
)

LIKELY = 1e-6
SIZES = [0, 1, 2, 3, 4, 5, 10, 53, 257, 1000, 65536, 65537]
WORD = (1 << 64) - 1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_permutation_is_a_bijection_with_its_inverse(n, seed):
    found = random_permutation(seed, Purpose.TEST, n)
    who = found.values_at(range(n))
    assert who.sort().values.tolist() == list(range(n))
    assert found.positions_of(who).tolist() == list(range(n))


@pytest.mark.parametrize(
    "n", [1, 2, 3, 7, 30, 31, 53, 1000, 65537, 111_059_956, (1 << 31) + 11, (1 << 61) - 1]
)
@pytest.mark.parametrize("back", [False, True])
def test_compiled_permutation_equals_tensor_operations(n, back):
    index = torch.arange(max(n - 2999, 0), n)
    found = random_permutation(5, Purpose.TEST, n, 1)
    height = isqrt(n - 1) + 1
    sides = height, -(-n // height)
    assert height * sides[1] >= n
    assert found.sides == sides
    assert permute_numba(found, index, back=back).equal(permute_torch(found, index, back=back))


def mixed(z):
    z = ((z ^ (z >> 30)) * MIX_1) & WORD
    z = ((z ^ (z >> 27)) * MIX_2) & WORD
    return z ^ (z >> 31)


def by_hand(x, n, keys):
    height = isqrt(n - 1) + 1
    width = -(-n // height)
    while True:
        row, col = divmod(x, width)
        for number, key in enumerate(keys):
            if number % 2:
                col = (col + ((mixed((row * GOLDEN + key) & WORD) >> 32) * width >> 32)) % width
            else:
                row = (row + ((mixed((col * GOLDEN + key) & WORD) >> 32) * height >> 32)) % height
        x = row * width + col
        if x < n:
            return x


@pytest.mark.parametrize("n", [7, 53, 10**9 + 7])
def test_permutation_equals_the_definition_in_python(n):
    keys = [
        key & WORD
        for key in random_bits(3, Purpose.TEST, range(ROUNDS_OF_FEW if n < FEW else ROUNDS)).tolist()
    ]
    index = range(min(n, 50))
    assert random_permutation(3, Purpose.TEST, n).values_at(index).tolist() == [
        by_hand(x, n, keys) for x in index
    ]


def test_permutation_depends_on_seed_purpose_and_size():
    found = {
        tuple(random_permutation(seed, purpose, 100, number).values_at(range(100)).tolist())
        for seed in (0, 1)
        for purpose in (Purpose.TEST, Purpose.EDGES)
        for number in (0, 1)
    }
    assert len(found) == 8


@pytest.mark.parametrize("n", [10, 100])
def test_positions_of_a_pair_are_uniform(n):
    """Over many seeds the positions of 0 and 1 are uniform, and all pairs of positions are equally likely."""
    pairs = np.array(
        [
            random_permutation(seed, Purpose.TEST, n).positions_of(torch.tensor([0, 1])).tolist()
            for seed in range(2000)
        ]
    )
    for place in pairs.T:
        assert stats.chisquare(np.bincount(place, minlength=n)).pvalue > LIKELY
    away = (pairs[:, 1] - pairs[:, 0]) % n
    assert stats.chisquare(np.bincount(away, minlength=n)[1:]).pvalue > LIKELY


@pytest.mark.parametrize("stride", [1, 2, 1000, 1001])
def test_nearby_indices_are_spread_uniformly_over_blocks(stride):
    """Indices at any fixed distance, such as in a lattice, share one of 64 blocks as often as random pairs."""
    n, blocks = 1_100_003, 64
    found = random_permutation(8, Purpose.TEST, n).positions_of(range(n)) * blocks // n
    together = int((found[stride:] == found[:-stride]).sum())
    assert stats.binomtest(together, n - stride, 1 / blocks).pvalue > LIKELY
    sample = found[: 20_000 * stride : stride][:20_000]
    assert stats.chisquare(np.bincount(sample, minlength=blocks)).pvalue > LIKELY
    assert abs(stats.spearmanr(found[:200_000], np.arange(200_000)).statistic) < 5 / 200_000**0.5


@given(st.integers(0, 3000), st.data())
def test_sample_has_distinct_ascending_numbers_in_range(below: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, below))
    drawn = sample_distinct((1, size), below, size)
    assert len(drawn) == size
    assert all(0 <= a < b < below for a, b in pairwise(drawn.tolist())) or size < 2
    assert drawn.dtype == torch.int64


@pytest.mark.parametrize(("below", "size"), [(5, 2), (6, 3), (7, 3), (9, 2)])
def test_all_samples_are_equally_likely(below: int, size: int) -> None:
    """A vertex has probability B / N, and a pair B (B - 1) / N (N - 1) (SGN-005, SGN-006)."""
    sets = dict.fromkeys(combinations(range(below), size), 0)
    for seed in range(6000):
        sets[tuple(sample_distinct((seed, 0, 3), below, size).tolist())] += 1
    assert stats.chisquare(list(sets.values())).pvalue > LIKELY


def test_samples_of_a_large_range_are_uniform_and_independent() -> None:
    """Each hundredth of the range is hit equally often; samples of other groups and steps overlap as random ones."""
    below, size = 100_003, 2_000
    first, *others = [
        sample_distinct((0, group, step), below, size) for group in range(5) for step in range(20)
    ]
    counts = np.histogram(torch.cat([first, *others]).numpy(), bins=100, range=(0, below))[0]
    assert stats.chisquare(counts).pvalue > LIKELY
    common = [int(torch.isin(first, other).sum()) for other in others]
    mean = size * size / below
    assert abs(np.mean(common) - mean) < 5 * np.sqrt(mean / len(common))


def test_groups_and_steps_have_different_samples() -> None:
    """If the key were a sum, group 1 at step t would have the sample of group 0 at step t + 1."""
    drawn = [
        tuple(sample_distinct((7, group, step), 1000, 50).tolist())
        for group in range(10)
        for step in range(10)
    ]
    assert len(set(drawn)) == len(drawn)
