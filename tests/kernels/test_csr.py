"""Building, transposing and slicing sparse matrices gives the same results as on dense ones."""

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.csr import (
    Csr,
    cast,
    from_coo,
    from_scipy,
    index_dtype,
    make_meta_csr,
    row_indices,
    to_scipy,
    transpose,
)
from harness.kernels.parts import extract_block


def dense(A: Csr) -> np.ndarray:
    D = np.zeros(A.shape)
    for row in range(A.rows):
        for entry in range(A.rowptr[row], A.rowptr[row + 1]):
            D[row, A.col[entry]] += float(A.val[entry])
    return D


def well_formed(A: Csr) -> bool:
    """Types, lengths, and rows that ascend."""
    ascending = torch.diff(row_indices(A) * A.cols + A.col) >= 0
    return (
        (A.rowptr.dtype, A.col.dtype) == (torch.int64, torch.int32)
        and A.rowptr[0] == 0
        and A.rowptr[-1] == len(A.col) == A.nnz
        and bool(ascending.all())
    )


def same(A: Csr, B: Csr) -> bool:
    return A.cols == B.cols and all(torch.equal(a, b) for a, b in zip(A[:3], B[:3], strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(-4, 4)), max_size=40), st.booleans()
)
def test_matrix_from_unordered_entries_equals_dense(entries, summed):
    expected = np.zeros((4, 5))
    for row, col, val in entries:
        expected[row, col] += val
    row, col, val = torch.tensor(entries, dtype=torch.int64).reshape(-1, 3).T
    A = from_coo(row, col, val.float(), (4, 5), sum_duplicates=summed)
    assert well_formed(A)
    assert np.array_equal(dense(A), expected)
    assert A.nnz == (len({pair[:2] for pair in entries}) if summed else len(entries))


def test_duplicate_entries_keep_their_order():
    """A thousand entries in each of four positions, numbered in their order."""
    place, number = torch.arange(4000) * 7 % 4, torch.arange(4000.0)
    A = from_coo(place // 2, place % 2, number, (2, 2))
    assert torch.equal(A.val, torch.cat([number[place == p] for p in range(4)]))
    assert torch.equal(transpose(A).val, torch.cat([number[place == p] for p in (0, 2, 1, 3)]))


def test_32_bit_indices_do_not_overflow():
    row, col = torch.tensor([40_000, 3], dtype=torch.int32), torch.tensor([70_000, 69_999], dtype=torch.int32)
    A = from_coo(row, col, torch.tensor([1.0, 2.0]), (70_001, 70_001))
    assert row_indices(A).tolist() == [3, 40_000]
    assert A.col.tolist() == [69_999, 70_000]


@pytest.mark.parametrize("row", [-1, 4])
def test_index_outside_the_matrix_is_refused(row):
    with pytest.raises(AssertionError, match=r"outside 0 \.\. 3"):
        from_coo(torch.tensor([0, row]), torch.tensor([0, 0]), torch.ones(2), (4, 4))


@given(st.from_type(Csr), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_transpose_equals_dense(A, dtype):
    A = cast(A, dtype)
    assert A.val.dtype == transpose(A).val.dtype == dtype
    assert well_formed(transpose(A))
    assert np.array_equal(dense(transpose(A)), dense(A).T)
    assert same(transpose(transpose(A)), A)


def test_transposed_shapes_have_their_own_values():
    """As a transposed matrix has: a replay counts the memory of both."""
    A = make_meta_csr(3, 5, 7)
    turned = transpose(A)
    assert (turned.shape, turned.nnz) == ((5, 3), 7)
    assert turned.val is not A.val


@given(st.from_type(Csr), st.data())
def test_extracted_block_equals_dense_slice(A, data):
    def part(size):
        low = data.draw(st.integers(0, size))
        return range(low, data.draw(st.integers(low, size)))

    rows, cols = part(A.rows), part(A.cols)
    B = extract_block(A, rows, cols)
    assert extract_block(A, rows, range(cols.stop, cols.start)).shape == (len(rows), 0)
    assert B.shape == (len(rows), len(cols))
    assert well_formed(B)
    assert np.array_equal(dense(B), dense(A)[rows.start : rows.stop, cols.start : cols.stop])


def test_block_of_full_rows_shares_memory():
    A = from_coo(torch.arange(6), torch.arange(6), torch.ones(6), (6, 6))
    assert extract_block(A, range(2, 5), range(6)).val.data_ptr() == A.val[2:].data_ptr()


@given(st.from_type(Csr), st.sampled_from(["csr", "csc", "coo"]))
def test_conversion_to_scipy_and_back_is_lossless(A, kind):
    M = to_scipy(A)
    assert np.array_equal(M.toarray(), dense(A))
    B = from_scipy(M.asformat(kind), torch.float32)
    assert well_formed(B)
    assert B.val.dtype == torch.float32
    assert np.array_equal(dense(B), dense(A))


def test_unsorted_read_only_scipy_matrix_is_copied():
    M = scipy.sparse.csr_array((np.array([1.0, 2.0]), np.array([2, 0]), np.array([0, 2])), shape=(1, 3))
    for array in (M.data, M.indices, M.indptr):
        array.flags.writeable = False
    A = from_scipy(M)
    assert (A.col.tolist(), A.val.tolist()) == ([0, 2], [2.0, 1.0])
    A.val[0] = 5.0
    assert M.data.tolist() == [1.0, 2.0]


def test_bf16_matrix_converts_to_float32_in_scipy():
    A = from_coo(torch.tensor([0]), torch.tensor([0]), torch.tensor([1.5], dtype=torch.bfloat16), (1, 1))
    assert to_scipy(A).dtype == np.float32
    assert (
        from_coo(*[torch.tensor([0, 0])] * 2, A.val.repeat(2), (1, 1), sum_duplicates=True).val.item() == 3.0
    )


def test_matrices_with_many_columns_use_64_bit_columns():
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64
    A = from_coo(torch.tensor([0, 1]), torch.tensor([2**33, 5]), torch.ones(2), (2, 2**33 + 1))
    assert A.col.tolist() == [2**33, 5]
    assert extract_block(A, range(2), range(2**33, 2**33 + 1)).col.dtype == torch.int32
