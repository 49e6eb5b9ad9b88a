"""Blocks cover their range once and in order; coordinates are numpy's row-major order."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.comm.layout import balanced, coordinates, grids_of, rank_at, split
from harness.ledger import AxisName

amounts, parts_of = st.integers(0, 300), st.integers(1, 40)


@given(amounts, parts_of)
def test_blocks_cover_the_range_once_and_in_order(n: int, parts: int) -> None:
    for blocks in (split(n, parts), balanced(n, parts)):
        assert len(blocks) == parts
        assert [i for block in blocks for i in block] == list(range(n))


@given(amounts.filter(bool), parts_of)
def test_split_makes_the_blocks_of_torch_chunk(n: int, parts: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(n).chunk(parts)]
    assert [list(block) for block in split(n, parts) if block] == chunks


@given(amounts, parts_of)
def test_balanced_makes_the_blocks_of_numpy(n: int, parts: int) -> None:
    assert [len(block) for block in balanced(n, parts)] == [
        len(block) for block in np.array_split(np.arange(n), parts)
    ]


def test_more_parts_than_things_leaves_empty_parts_at_the_end() -> None:
    assert [len(block) for block in split(5, 4)] == [2, 2, 1, 0]
    assert [len(block) for block in split(0, 3)] == [0, 0, 0]
    assert [len(block) for block in balanced(5, 4)] == [2, 1, 1, 1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_coordinates_are_row_major(sizes: list[int], data: st.DataObject) -> None:
    shape = dict(zip(AxisName, sizes, strict=False))
    rank = data.draw(st.integers(0, int(np.prod(sizes)) - 1))
    at = coordinates(shape, rank)
    assert list(at) == list(shape)
    assert tuple(at.values()) == tuple(np.unravel_index(rank, sizes))
    assert rank_at(shape, at) == rank


def test_a_rank_outside_the_grid_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        coordinates({AxisName.P: 3}, 3)


@given(st.integers(1, 60), st.integers(1, 3))
def test_grids_are_all_the_factorisations(ranks: int, axes: int) -> None:
    names = (AxisName.X, AxisName.Y, AxisName.Z)[:axes]
    found = [tuple(grid.values()) for grid in grids_of(ranks, *names)]
    numbers = range(1, ranks + 1)
    assert len(set(found)) == len(found)
    assert set(found) == {shape for shape in product(*[numbers] * axes) if prod(shape) == ranks}
    assert sum(found[0]) == min(map(sum, found))
