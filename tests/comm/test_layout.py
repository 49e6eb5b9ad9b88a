"""Coordinates follow numpy's row-major order, and every grid is listed once."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comm.layout import coordinates, list_grids, list_members, rank_at
from harness.ledger import AxisName


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_coordinates_are_row_major(sizes: list[int], data: st.DataObject) -> None:
    shape = dict(zip(AxisName, sizes, strict=False))
    rank = data.draw(st.integers(0, int(np.prod(sizes)) - 1))
    at = coordinates(shape, rank)
    assert list(at) == list(shape)
    assert tuple(at.values()) == tuple(np.unravel_index(rank, sizes))
    assert rank_at(shape, at) == rank


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_members_of_an_axis_differ_only_in_its_coordinates(sizes: list[int], data: st.DataObject) -> None:
    shape = dict(zip(AxisName, sizes, strict=False))
    own = coordinates(shape, data.draw(st.integers(0, prod(sizes) - 1)))
    names = data.draw(st.sets(st.sampled_from(list(shape))))
    alike = [
        rank
        for rank in range(prod(sizes))
        if all(at == own[name] for name, at in coordinates(shape, rank).items() if name not in names)
    ]
    assert list(list_members(shape, own, names)) == alike


def test_coordinates_of_a_rank_outside_the_grid_fail_an_assertion() -> None:
    with pytest.raises(AssertionError):
        coordinates({AxisName.P: 3}, 3)


@given(st.integers(1, 60), st.integers(1, 3))
def test_grids_are_all_factorisations(ranks: int, axes: int) -> None:
    names = (AxisName.X, AxisName.Y, AxisName.Z)[:axes]
    found = [tuple(grid.values()) for grid in list_grids(ranks, *names)]
    numbers = range(1, ranks + 1)
    assert len(set(found)) == len(found)
    assert set(found) == {shape for shape in product(*[numbers] * axes) if prod(shape) == ranks}
    assert sum(found[0]) == min(map(sum, found))
