"""Sampled neighbours: all sets are equally likely, ranks draw the same, and products are unbiased."""

from collections import Counter
from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.conformance.case import make_check_graph
from harness.kernels import from_coo, to_scipy
from harness.kernels.parts import select_rows
from harness.kernels.random import Purpose, random_bits
from harness.strategies.sampling.sampler import sample_neighbours
from tests.dense import list_rows

LIKELY = 1e-6


def floyd(seed: tuple[int, ...], vertex: int, of: int, drawn: int) -> set[int]:
    """The definition."""
    chosen: set[int] = set()
    for k in range(drawn):
        last = of - drawn + k
        (word,) = random_bits(seed, Purpose.SAMPLE, torch.tensor([(vertex << 12) + k])).tolist()
        pick = ((word % 2**64) >> 32) * (last + 1) >> 32
        chosen.add(last if pick in chosen else pick)
    return chosen


@pytest.mark.parametrize("loops", [False, True])
@given(fanout=st.integers(1, 9), seed=st.integers(0, 99), size=st.integers(0, 40))
def test_sampled_neighbours_equal_the_definition(loops: bool, fanout: int, seed: int, size: int) -> None:
    A = make_check_graph(97).A
    rows = torch.randperm(97, generator=torch.Generator().manual_seed(size))[:size]
    drawn = list_rows(sample_neighbours(A, rows, rows, fanout, (seed, 1), loops=loops))
    assert len(drawn) == size
    for vertex, row in zip(rows.tolist(), drawn, strict=True):
        (whole,) = list_rows(select_rows(A, torch.tensor([vertex])))
        loop = {vertex: whole[vertex]} if loops and vertex in whole else {}
        others = [col for col in whole if col not in loop]
        places = floyd((seed, 1), vertex, len(others), fanout) if fanout < len(others) else range(len(others))
        scale = len(others) / max(len(list(places)), 1)
        expected = loop | {others[place]: whole[others[place]] * scale for place in places}
        assert row.keys() == expected.keys()
        assert list(row) == sorted(row)
        assert all(row[col] == pytest.approx(expected[col]) for col in row)


@pytest.mark.parametrize(("degree", "fanout"), [(3, 1), (5, 2), (6, 3), (7, 6)])
def test_all_sets_of_neighbours_are_equally_likely(degree: int, fanout: int) -> None:
    """Compared with an enumeration of all sets."""
    A = from_coo(
        torch.zeros(degree, dtype=torch.int64), torch.arange(degree), torch.ones(degree), (1, degree)
    )
    row, times = torch.tensor([0]), 4000
    seen = Counter(
        tuple(sample_neighbours(A, row, torch.tensor([7]), fanout, (step, 3)).col.tolist())
        for step in range(times)
    )
    assert seen.keys() == set(combinations(range(degree), fanout))
    assert len(seen) == comb(degree, fanout)
    assert stats.chisquare(list(seen.values())).pvalue > LIKELY


def test_sampled_products_are_unbiased() -> None:
    A = make_check_graph(97).A
    x, rows = torch.linspace(-1, 2, 97, dtype=torch.float64).numpy(), torch.arange(97)
    exact = to_scipy(A) @ x
    draws = np.stack(
        [to_scipy(sample_neighbours(A, rows, rows, 2, (step,), loops=True)) @ x for step in range(3000)]
    )
    spread = draws.std(axis=0) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - exact) <= 5 * spread + 1e-12).all()


def test_neighbours_of_a_row_do_not_depend_on_other_rows() -> None:
    A = make_check_graph(97).A
    all_rows, some = torch.arange(97), torch.tensor([50, 3, 96])
    whole = list_rows(sample_neighbours(A, all_rows, all_rows, 3, (1, 2)))
    assert list_rows(sample_neighbours(A, some, some, 3, (1, 2))) == [whole[row] for row in some.tolist()]
