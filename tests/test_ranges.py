"""Blocks cover their range once and in order, and intersections of ranges equal those of sets."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.base.ranges import intersect_ranges, slice_range, split_evenly, split_evenly_part, split_range

amounts, parts_of = st.integers(0, 300), st.integers(1, 40)


@given(amounts, parts_of)
def test_blocks_cover_the_range_once_and_in_order(n: int, parts: int) -> None:
    for blocks in (split_range(n, parts), split_evenly(n, parts)):
        assert len(blocks) == parts
        assert [i for block in blocks for i in block] == list(range(n))


@given(amounts.filter(bool), parts_of)
def test_split_makes_the_blocks_of_torch_chunk(n: int, parts: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(n).chunk(parts)]
    assert [list(block) for block in split_range(n, parts) if block] == chunks


@given(amounts, parts_of)
def test_balanced_makes_the_blocks_of_numpy(n: int, parts: int) -> None:
    assert [len(block) for block in split_evenly(n, parts)] == [
        len(block) for block in np.array_split(np.arange(n), parts)
    ]


@given(amounts, parts_of)
def test_part_of_even_split_is_block_of_its_number(n: int, parts: int) -> None:
    assert [split_evenly_part(n, parts, i) for i in range(parts)] == split_evenly(n, parts)


def test_more_parts_than_things_leaves_empty_parts_at_the_end() -> None:
    assert [len(block) for block in split_range(5, 4)] == [2, 2, 1, 0]
    assert [len(block) for block in split_range(0, 3)] == [0, 0, 0]
    assert [len(block) for block in split_evenly(5, 4)] == [2, 1, 1, 1]


@given(amounts, parts_of, st.integers(0, 50))
def test_a_part_of_a_range_is_counted_from_its_start(n: int, parts: int, start: int) -> None:
    whole = range(start, start + n)
    assert [i for block in split_range(n, parts) for i in slice_range(whole, block)] == list(whole)


@given(*[st.integers(0, 9)] * 4)
def test_intersection_of_ranges(a: int, b: int, c: int, d: int) -> None:
    one, other = range(*sorted((a, b))), range(*sorted((c, d)))
    assert set(intersect_ranges(one, other)) == set(one) & set(other)
