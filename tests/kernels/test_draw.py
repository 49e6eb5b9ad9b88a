"""Drawing without replacement: a set, the same for everybody, and each set as likely as any other."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.kernels.draw import by_tensors, distinct
from harness.kernels.draw_compiled import first_of_permutation

LIKELY = 1e-6


@given(st.integers(0, 3000), st.data())
def test_so_many_different_numbers_of_the_range(below: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, below))
    drawn = distinct((1, size), below, size)
    assert len(drawn) == size
    assert all(0 <= a < b < below for a, b in pairwise(drawn.tolist())) or size < 2
    assert drawn.dtype == torch.int64


@pytest.mark.parametrize("below", [1, 2, 3, 7, 30, 31, 1000, 111_059_956])
def test_both_implementations_are_one_permutation(below: int) -> None:
    tall = int(np.ceil(np.sqrt(below)))
    shape, key, size = (tall, -(-below // tall)), (5, 1 << 63), min(below, 400)
    compiled = first_of_permutation(size, below, shape, 8, key)
    assert compiled.tolist() == by_tensors(size, below, shape, key, torch.device("cpu")).tolist()
    assert len(set(compiled.tolist())) == size


@pytest.mark.parametrize(("below", "size"), [(5, 2), (6, 3), (7, 3), (9, 2)])
def test_every_set_is_as_likely(below: int, size: int) -> None:
    """So is every vertex, with chance B / N, and every pair, with chance B (B - 1) / N (N - 1) (SGN-005, SGN-006)."""
    sets = dict.fromkeys(combinations(range(below), size), 0)
    for seed in range(6000):
        sets[tuple(distinct((seed, 0, 3), below, size).tolist())] += 1
    assert stats.chisquare(list(sets.values())).pvalue > LIKELY


def test_inclusion_in_a_large_range() -> None:
    """Every hundredth of the range has its share; samples of other groups and steps overlap as chance has it."""
    below, size = 100_003, 2_000
    first, *others = [distinct((0, group, step), below, size) for group in range(5) for step in range(20)]
    counts = np.histogram(torch.cat([first, *others]).numpy(), bins=100, range=(0, below))[0]
    assert stats.chisquare(counts).pvalue > LIKELY
    common = [int(torch.isin(first, other).sum()) for other in others]
    mean = size * size / below
    assert abs(np.mean(common) - mean) < 5 * np.sqrt(mean / len(common))


def test_no_group_repeats_what_another_has_drawn() -> None:
    """A seed that is added to the step would: group 1 at step t would have the sample of group 0 at step t + 1."""
    drawn = [
        tuple(distinct((7, group, step), 1000, 50).tolist()) for group in range(10) for step in range(10)
    ]
    assert len(set(drawn)) == len(drawn)
