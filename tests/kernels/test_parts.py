"""Parts of matrices equal dense slices and scipy's indexing; on meta tensors, sizes are those of random matrices."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.csr import Csr, from_coo, row_indices, to_scipy
from harness.kernels.parts import (
    drop_empty_columns,
    extract_block,
    nonempty_columns,
    nonempty_rows,
    sample_rows,
    select_columns,
    select_columns_torch,
    select_rows,
    select_rows_torch,
    split_diagonal,
    vstack,
)
from tests.dense import to_dense


def ascending(A: Csr) -> bool:
    return bool((torch.diff(row_indices(A) * A.cols + A.col) >= 0).all())


@given(st.from_type(Csr), st.lists(st.integers(0, 12), max_size=20))
def test_selected_rows_equal_dense(A, rows):
    rows = torch.tensor([row % A.rows for row in rows] if A.rows else [], dtype=torch.int64)
    B = select_rows(A, rows)
    assert (B.rowptr.dtype, B.col.dtype) == (A.rowptr.dtype, A.col.dtype)
    assert B.shape == (len(rows), A.cols)
    assert ascending(B)
    assert torch.equal(to_dense(B), to_dense(A)[rows])


@given(st.from_type(Csr), st.data())
def test_tensor_operations_select_bitwise_the_same_as_loops(A, data):
    """The implementations for GPUs, also in bf16."""
    A = A._replace(val=A.val.to(data.draw(st.sampled_from([A.val.dtype, torch.bfloat16]))))
    cols = some_of(data, A.cols, in_order=True)
    rows = some_of(data, A.rows, in_order=False).repeat(2)
    for ours, tensors in (
        (select_rows(A, rows), select_rows_torch(A, rows)),
        (select_columns(A, cols), select_columns_torch(A, cols)),
    ):
        assert ours.cols == tensors.cols
        assert all(map(torch.equal, ours[:3], tensors[:3]))


@given(st.from_type(Csr), st.lists(st.integers(0, 13), max_size=4))
def test_vstack_of_row_blocks_equals_the_matrix(A, cuts):
    edges = [0, *sorted(min(cut, A.rows) for cut in cuts), A.rows]
    pieces = [extract_block(A, range(first, last), range(A.cols)) for first, last in pairwise(edges)]
    B = vstack(pieces)
    assert B.shape == A.shape
    assert all(map(torch.equal, B[:3], A[:3]))


def some_of(data, size: int, in_order: bool) -> torch.Tensor:
    chosen = data.draw(st.permutations(range(size)))[: data.draw(st.integers(0, size))]
    return torch.tensor(sorted(chosen) if in_order else chosen, dtype=torch.int64)


@given(st.from_type(Csr), st.data(), st.booleans())
def test_selected_columns_equal_scipy(A, data, in_order):
    cols = some_of(data, A.cols, in_order)
    B = select_columns(A, cols)
    assert ascending(B)
    assert np.array_equal(to_scipy(B).toarray(), to_scipy(A)[:, cols.numpy()].toarray())


def test_selecting_a_column_twice_is_refused():
    A = Csr(torch.tensor([0, 2]), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2), 2)
    with pytest.raises(AssertionError, match="twice"):
        select_columns(A, torch.tensor([1, 1]))


def test_sampled_rows_equal_dense_rows_with_the_scale() -> None:
    dense = torch.arange(35.0).view(7, 5) * (torch.arange(35).view(7, 5) % 3 == 0)
    row, col = dense.nonzero().T
    A, rows = from_coo(row, col, dense[row, col], (7, 5)), torch.tensor([1, 4, 6])
    drawn = torch.from_numpy(to_scipy(sample_rows(A, rows, 0.5)).toarray())
    assert torch.equal(drawn, dense[rows] / 2)
    shapes = sample_rows(_on_nothing(A), rows, 0.5)
    assert shapes.shape == (3, 5)
    assert shapes.nnz == round(A.nnz * 3 / 7)


def _on_nothing(A):
    return A._replace(rowptr=A.rowptr.to("meta"), col=A.col.to("meta"), val=A.val.to("meta"))


def structure(A: Csr) -> torch.Tensor:
    """Return a dense mask of the entries, including explicit zeros."""
    return to_dense(A._replace(val=torch.ones_like(A.val)))


@given(A=...)
def test_nonempty_rows_and_columns_have_an_entry(A: Csr) -> None:
    there = structure(A) != 0
    assert nonempty_columns(A).tolist() == there.any(dim=0).nonzero()[:, 0].tolist()
    assert nonempty_rows(A).tolist() == there.any(dim=1).nonzero()[:, 0].tolist()


@given(A=...)
def test_dropping_empty_columns_keeps_all_others(A: Csr) -> None:
    B = drop_empty_columns(A)
    assert torch.equal(to_dense(B), to_dense(A)[:, nonempty_columns(A)])


@pytest.mark.parametrize(
    ("rows", "cols", "nonzeros"), [(300, 200, 0), (300, 200, 1), (40, 500, 700), (9, 1, 5)]
)
def test_meta_tensors_have_as_many_nonempty_columns_as_random_entries(
    rows: int, cols: int, nonzeros: int
) -> None:
    shapes = Csr(
        torch.empty(rows + 1, dtype=torch.int64, device="meta"),
        torch.empty(nonzeros, dtype=torch.int32, device="meta"),
        torch.empty(nonzeros, device="meta"),
        cols,
    )
    drawn = []
    for seed in range(20):
        source = torch.Generator().manual_seed(seed)
        row = torch.randint(rows, (nonzeros,), generator=source)
        col = torch.randint(cols, (nonzeros,), generator=source)
        drawn.append(from_coo(row, col, torch.ones(nonzeros), (rows, cols)))
    for count in (nonempty_columns, nonempty_rows):
        mean = sum(len(count(A)) for A in drawn) / len(drawn)
        assert len(count(shapes)) == pytest.approx(mean, rel=0.03, abs=0.6)
    assert drop_empty_columns(shapes).cols == len(nonempty_columns(shapes))


@given(A=..., offset=st.integers(-12, 12))
def test_split_diagonal_and_rest_add_up_to_the_matrix(A: Csr, offset: int) -> None:
    whole, (without, values) = to_dense(A), split_diagonal(A, offset)
    rest = to_dense(without)
    row, col = torch.arange(A.rows)[:, None], torch.arange(A.cols)[None]
    on = row + offset == col
    assert torch.equal(rest, whole.masked_fill(on, 0))
    torch.testing.assert_close(values, whole[on].to(values.dtype))


@pytest.mark.parametrize("offset", [-9, -2, 0, 3, 9])
def test_split_diagonal_of_meta_tensors_removes_one_entry_per_diagonal_position(offset: int) -> None:
    row, col = torch.arange(6).repeat_interleave(8), torch.arange(8).repeat(6)
    A = from_coo(row, col, torch.rand(48), (6, 8))
    shapes = Csr(A.rowptr.to("meta"), A.col.to("meta"), A.val.to("meta"), A.cols)
    (expected, loops), (rest, values) = split_diagonal(A, offset), split_diagonal(shapes, offset)
    assert rest.nnz == expected.nnz
    assert values.shape == loops.shape
