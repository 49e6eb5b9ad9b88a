"""Shuffles are permutations that can be asked both ways, the same by tensors, by loops and by Python's integers."""

from math import isqrt

import numpy as np
import pytest
import torch
from scipy import stats

from harness.kernels.random import Purpose, bits
from harness.kernels.shuffle import FEW, ROUNDS, ROUNDS_OF_FEW, shuffle
from harness.kernels.shuffle_compiled import by_loop
from harness.kernels.splitmix import GOLDEN, MIX_1, MIX_2

LIKELY = 1e-6
SIZES = [0, 1, 2, 3, 4, 5, 10, 53, 257, 1000, 65536, 65537]
WORD = (1 << 64) - 1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_everybody_stands_somewhere_and_can_be_found(n, seed):
    found = shuffle(seed, Purpose.TEST, n)
    who = found.at(range(n))
    assert who.sort().values.tolist() == list(range(n))
    assert found.places(who).tolist() == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 53, 65537, (1 << 31) + 11, (1 << 61) - 1])
@pytest.mark.parametrize("back", [False, True])
def test_loops_and_tensors_are_equal(n, back):
    index = torch.arange(max(n - 999, 0), n)
    found = shuffle(5, Purpose.TEST, n, 1)
    height = isqrt(n - 1) + 1
    sides = height, -(-n // height)
    assert height * sides[1] >= n
    looped = by_loop(index.numpy(), n, sides, found.keys.numpy(), back)
    assert torch.from_numpy(looped).equal(found._through(index, back=back))


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
def test_it_is_what_integers_say(n):
    keys = [key & WORD for key in bits(3, Purpose.TEST, range(ROUNDS_OF_FEW if n < FEW else ROUNDS)).tolist()]
    index = range(min(n, 50))
    assert shuffle(3, Purpose.TEST, n).at(index).tolist() == [by_hand(x, n, keys) for x in index]


def test_another_seed_purpose_or_number_is_another_permutation():
    found = {
        tuple(shuffle(seed, purpose, 100, number).at(range(100)).tolist())
        for seed in (0, 1)
        for purpose in (Purpose.TEST, Purpose.EDGES)
        for number in (0, 1)
    }
    assert len(found) == 8


@pytest.mark.parametrize("n", [10, 100])
def test_two_neighbours_may_land_anywhere(n):
    """Over many seeds the places of 0 and of 1 are uniform, and all pairs of them equally likely."""
    pairs = np.array(
        [shuffle(seed, Purpose.TEST, n).places(torch.tensor([0, 1])).tolist() for seed in range(2000)]
    )
    for place in pairs.T:
        assert stats.chisquare(np.bincount(place, minlength=n)).pvalue > LIKELY
    away = (pairs[:, 1] - pairs[:, 0]) % n
    assert stats.chisquare(np.bincount(away, minlength=n)[1:]).pvalue > LIKELY


@pytest.mark.parametrize("stride", [1, 2, 1000, 1001])
def test_what_lies_together_is_spread_as_by_chance(stride):
    """Neighbours at any distance, of a lattice for instance, meet in one of 64 blocks as often as strangers do."""
    n, blocks = 1_100_003, 64
    found = shuffle(8, Purpose.TEST, n).places(range(n)) * blocks // n
    together = int((found[stride:] == found[:-stride]).sum())
    assert stats.binomtest(together, n - stride, 1 / blocks).pvalue > LIKELY
    sample = found[: 20_000 * stride : stride][:20_000]
    assert stats.chisquare(np.bincount(sample, minlength=blocks)).pvalue > LIKELY
    assert abs(stats.spearmanr(found[:200_000], np.arange(200_000)).statistic) < 5 / 200_000**0.5
