"""Every accepted pair of levels occurs in a combination, and the cases of a check have all pairs of their choices."""

from importlib.metadata import EntryPoint
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import main
from harness.conformance.case_list import (
    COMBINED,
    choose_combined_grids,
    combine_choices,
    list_cases,
    list_choices,
)
from harness.conformance.pairs import cover_pairs
from harness.registry import load_strategy, registered_strategies


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.integers(0, 2**31))
def test_every_pair_that_is_accepted_alone_occurs(levels: list[int], seed: int) -> None:
    def accepts(combination: tuple[int, ...]) -> bool:
        """Refuse a fixed third of all pairs of levels that are not usual."""
        return not any(
            i and j and hash((seed, a, i, b, j)) % 3 == 0
            for (a, i), (b, j) in combinations(enumerate(combination), 2)
        )

    covering = cover_pairs(levels, accepts)
    assert all(map(accepts, covering.combinations))
    seen = {
        (a, i, b, j) for each in covering.combinations for (a, i), (b, j) in combinations(enumerate(each), 2)
    }
    wanted = {
        (a, i, b, j)
        for a, b in combinations(range(len(levels)), 2)
        for i, j in product(range(levels[a]), range(levels[b]))
        if accepts(tuple(i if c == a else j if c == b else 0 for c in range(len(levels))))
    }
    assert seen >= wanted
    assert covering.pairs == len(wanted)


def test_few_combinations_have_all_pairs() -> None:
    assert len(cover_pairs([3, 3, 2, 2, 2, 2, 2, 2, 2, 2], lambda _: True).combinations) <= 15


@pytest.mark.parametrize("name", ["cagnet-2d", "cagnet-3d", "plexus", "compose"])
def test_every_axis_is_split_in_three_and_in_two(name: str) -> None:
    strategy = load_strategy(name)
    cases, _ = combine_choices(name, strategy, choose_combined_grids(strategy, COMBINED["quick"]))
    for axis in strategy.axes:
        assert {2, 3} <= {case.spec.grid[axis] for case in cases}


@pytest.mark.parametrize("name", ["cagnet-1d", "pipegcn", "compose", "neutronstar"])
def test_features_are_trained_with_and_without_a_projection(name: str) -> None:
    cases, *_ = list_cases(name, load_strategy(name), "quick", None)
    trained = [case for case in cases if case.spec.training.features]
    assert {case.spec.model.projection for case in trained} == {True, False}
    assert {case.directed for case in trained} == {True, False}


@pytest.mark.long
@pytest.mark.parametrize("point", registered_strategies(), ids=lambda point: point.name)
def test_every_value_of_a_parameter_meets_both_directions(point: EntryPoint) -> None:
    strategy = load_strategy(point.name)
    cases, *_ = list_cases(point.name, strategy, "quick", None)
    combined = [case for case in cases if ": combination" in case.name]
    for key, values in list_choices(strategy).items() if combined else ():
        for value in values if key != "wire" else ():
            found = {case.directed for case in combined if case.spec.strategy.params.get(key) == value}
            assert found == {True, False}, (key, value)


def test_list_names_every_case_and_counts_the_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "cagnet-2d", "--quick", "--list"]) == 0
    printed = capsys.readouterr().out
    cases, impossible, covering = list_cases("cagnet-2d", load_strategy("cagnet-2d"), "quick", None)
    assert all(case.name in printed for case in (*cases, *impossible))
    assert f"{covering.pairs} pairs in {len(covering.combinations)} cases" in printed
    assert "sage of 4 layers, multi-label" in printed
