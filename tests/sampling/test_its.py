"""Draws from rows equal the definition in Python, have the right probabilities, and give unbiased products."""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, combinations, permutations
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.conformance.case import make_check_graph
from harness.kernels import Csr, from_coo, to_scipy
from harness.kernels.random import Purpose, random_bits
from harness.strategies.sampling.matrices import batch_keys, draw_masses, draw_rows, one_batch, stack_batches
from tests.dense import list_rows

LIKELY = 1e-6
TIMES = 6000


def darts(seed: tuple[int, ...], row: int) -> Iterator[int]:
    """Return the random numbers of a row, in [0, 2^64)."""
    number = 0
    while True:
        yield random_bits(seed, Purpose.SAMPLE, torch.tensor([(row << 16) + number])).item() % 2**64
        number += 1


def taken(
    seed: tuple[int, ...], row: int, masses: list[int], times: int, *, replacement: bool
) -> Counter[int]:
    """The definition: a random number selects an entry by the prefix sums of the remaining masses."""
    left, found = dict(enumerate(masses)), Counter()
    for word, _ in zip(darts(seed, row), range(times), strict=False):
        dart = word * sum(left.values()) >> 64
        sums = list(accumulate(left.values()))
        place = list(left)[bisect(sums, dart)]
        found[place] += 1
        if not replacement:
            del left[place]
    return found


def one_row(masses: list[int]) -> Csr:
    place = torch.arange(len(masses))
    return from_coo(torch.zeros_like(place), place, torch.tensor(masses), (1, max(len(masses), 1)))


@given(st.lists(st.lists(st.integers(0, 96), max_size=40), max_size=4), st.integers(1, 9), st.integers(0, 99))
def test_drawn_entries_equal_the_definition(batches: list[list[int]], fanout: int, seed: int) -> None:
    """This holds for any vertices, also repeated ones, in any number of batches, also empty ones."""
    A = make_check_graph(97).A
    stack = stack_batches([torch.tensor(batch, dtype=torch.int64) for batch in batches])
    seeds = [(seed, number) for number in range(len(batches))]
    drawn = list_rows(draw_rows(A, stack, fanout, batch_keys(seeds)))
    whole = list_rows(A)
    named = [(at, vertex) for at, batch in zip(seeds, batches, strict=True) for vertex in batch]
    for (at, vertex), row in zip(named, drawn, strict=True):
        entries = list(whole[vertex].items())
        size = min(fanout, len(entries))
        places = (
            range(size)
            if size == len(entries)
            else taken(at, vertex, [1] * len(entries), size, replacement=False)
        )
        expected = {entries[place][0]: entries[place][1] * len(entries) / size for place in sorted(places)}
        assert list(row) == list(expected)
        assert list(row.values()) == pytest.approx(list(expected.values()))


@given(
    st.lists(st.lists(st.integers(1, 1 << 57), max_size=12), min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(0, 99),
    st.booleans(),
)
def test_draws_by_mass_equal_the_definition(
    rows: list[list[int]], times: int, seed: int, replacement: bool
) -> None:
    place = [(i, j, mass) for i, row in enumerate(rows) for j, mass in enumerate(row)]
    row, col, mass = torch.tensor(place, dtype=torch.int64).reshape(-1, 3).T
    P = from_coo(row, col, mass, (len(rows), 12))
    keys = batch_keys([(seed, number) for number in range(len(rows))])
    drawn = list_rows(draw_masses(P, times, keys, replacement=replacement))
    for number, (masses, found) in enumerate(zip(rows, drawn, strict=True)):
        if not masses or (len(masses) <= times and not replacement):
            assert found == dict.fromkeys(range(len(masses)), 1.0)
            continue
        counted = taken((seed, number), 0, masses, times, replacement=replacement)
        weights = {j: counted[j] * sum(masses) / masses[j] / times for j in sorted(counted)}
        assert list(found) == list(weights)
        assert list(found.values()) == pytest.approx(list(weights.values()))


@pytest.mark.parametrize(("degree", "fanout"), [(3, 1), (5, 2), (6, 3), (7, 6)])
def test_all_sets_of_neighbours_are_equally_likely(degree: int, fanout: int) -> None:
    row = one_row([1] * degree)._replace(val=torch.ones(degree))
    stack = stack_batches([torch.tensor([0])] * TIMES)
    drawn = draw_rows(row, stack, fanout, batch_keys([(3, step) for step in range(TIMES)]))
    seen = Counter(map(tuple, drawn.col.view(TIMES, fanout).tolist()))
    assert seen.keys() == set(combinations(range(degree), fanout))
    assert len(seen) == comb(degree, fanout)
    assert stats.chisquare(list(seen.values())).pvalue > LIKELY


MASSES = [1, 5, 2, 9, 3]


def drawn_sets(size: int, *, replacement: bool) -> Counter[tuple[int, ...]]:
    P = one_row(MASSES)
    many = Csr(torch.arange(TIMES + 1) * len(MASSES), P.col.repeat(TIMES), P.val.repeat(TIMES), len(MASSES))
    keys = batch_keys([(8, step) for step in range(TIMES)])
    return Counter(tuple(row) for row in list_rows(draw_masses(many, size, keys, replacement=replacement)))


def test_first_draws_have_probability_proportional_to_mass() -> None:
    for replacement in (False, True):
        seen = drawn_sets(1, replacement=replacement)
        counts, expected = zip(
            *((seen[place,], TIMES * mass / sum(MASSES)) for place, mass in enumerate(MASSES)), strict=True
        )
        assert stats.chisquare(counts, expected).pvalue > LIKELY


@pytest.mark.parametrize("size", [2, 3])
def test_sets_without_replacement_have_the_enumerated_probabilities(size: int) -> None:
    """The probability of a set is a sum over all orders of its draws, each from the remaining masses."""
    chance: Counter[tuple[int, ...]] = Counter()
    for order in permutations(range(len(MASSES)), size):
        product, left = 1.0, sum(MASSES)
        for place in order:
            product, left = product * MASSES[place] / left, left - MASSES[place]
        chance[tuple(sorted(order))] += product
    assert sum(chance.values()) == pytest.approx(1)
    seen = drawn_sets(size, replacement=False)
    assert seen.keys() <= chance.keys()
    expected = [TIMES * chance[each] for each in sorted(chance)]
    assert stats.chisquare([seen[each] for each in sorted(chance)], expected).pvalue > LIKELY


def test_sampled_products_are_unbiased() -> None:
    """Without the scale the mean is different, so the test can fail."""
    A, times = make_check_graph(97).A, 3000
    x = torch.linspace(-1, 2, 97, dtype=torch.float64).numpy()
    many = stack_batches([torch.arange(97)] * times)
    drawn = draw_rows(A, many, 2, batch_keys([(1, step) for step in range(times)]))
    for scaled in (True, False):
        val = drawn.val if scaled else A.val[0].expand(drawn.nnz).clone()
        products = (to_scipy(drawn._replace(val=val)) @ x).reshape(times, 97)
        spread = products.std(axis=0) / times**0.5
        off = np.abs(products.mean(axis=0) - to_scipy(A) @ x)
        assert (off <= 5 * spread + 1e-12).all() == scaled


def test_draws_of_a_row_do_not_depend_on_other_rows() -> None:
    A = make_check_graph(97).A
    whole = list_rows(draw_rows(A, one_batch(range(97)), 3, batch_keys([(1, 2)])))
    some = torch.tensor([50, 3, 96, 3])
    stack = stack_batches([torch.arange(5), some])
    assert list_rows(draw_rows(A, stack, 3, batch_keys([(1, 1), (1, 2)])))[5:] == [
        whole[v] for v in some.tolist()
    ]


def test_draws_depend_on_the_vertex_and_not_on_its_local_row() -> None:
    """A rank that has only some of the rows needs this."""
    A = make_check_graph(97).A
    here = torch.arange(40, 60)
    mine = Csr(A.rowptr[40:61] - A.rowptr[40], A.col[A.rowptr[40] :], A.val[A.rowptr[40] :], 97)
    own, keys = stack_batches([here]), batch_keys([(1, 2)])
    found = draw_rows(mine, stack_batches([here - 40]), 3, keys, own)
    assert list_rows(found) == list_rows(draw_rows(A, own, 3, keys))
