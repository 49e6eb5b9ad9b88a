"""Assembling the rectangles of a matrix gives the matrix; a window contains only its own entries."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels import Csr
from harness.kernels.csr import index_dtype
from harness.kernels.parts import Placement, assemble, extract_block, hstack
from tests.dense import to_dense


def cut(size: int, at: set[int]) -> list[range]:
    ends = [0, *sorted(cut for cut in at if 0 < cut < size), size]
    return [range(low, high) for low, high in pairwise(ends)]


cuts = st.sets(st.integers(0, 12))


@given(A=..., down=cuts, across=cuts)
def test_assembled_rectangles_equal_the_matrix(A: Csr, down: set[int], across: set[int]) -> None:
    places = [(rows, cols) for rows in cut(A.rows, down) for cols in cut(A.cols, across)]
    again = assemble([Placement(A, rows, cols, rows.start, cols.start) for rows, cols in places], A.shape)
    assert again.cols == A.cols
    for mine, theirs in zip(again[:3], A[:3], strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@given(A=..., across=cuts)
def test_stacked_stripes_equal_the_matrix(A: Csr, across: set[int]) -> None:
    again = hstack([extract_block(A, range(A.rows), cols) for cols in cut(A.cols, across)])
    assert again.cols == A.cols
    assert all(map(torch.equal, again[:3], A[:3]))


@given(A=..., data=st.data())
def test_windows_of_a_larger_matrix_equal_its_blocks(A: Csr, data: st.DataObject) -> None:
    top, left = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    low, high = sorted(data.draw(st.tuples(st.integers(0, A.rows), st.integers(0, A.rows))))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, A.cols), st.integers(0, A.cols))))
    window = Placement(A, range(low, high), range(start, stop), top, left)
    wide = assemble([window], (A.rows + 5, A.cols + 5))
    expected = torch.zeros(wide.shape, dtype=A.val.dtype)
    expected[top : top + high - low, left : left + stop - start] = to_dense(A)[low:high, start:stop]
    assert torch.equal(to_dense(wide), expected)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (3, 4)])
def test_assembling_no_parts_gives_an_empty_matrix(shape: tuple[int, int]) -> None:
    A = assemble([], shape)
    assert (A.shape, A.nnz) == (shape, 0)
    assert A.col.dtype == index_dtype(shape[1])
