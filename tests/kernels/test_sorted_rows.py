"""Products with sorted rows have the bits of products with the matrix before sorting, and equal scipy's and torch's."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.kernels.csr import Csr, cast, from_coo, get_packed_format, pack, to_scipy, transpose
from harness.kernels.random import Purpose, integers, uniform
from harness.kernels.sorted_rows import (
    MOST_COLUMNS,
    SHORT_ROWS,
    SHORT_ROWS_IF_NARROW,
    WINDOW,
    SortedRows,
    balance_sorted_rows,
    has_short_rows,
    pack_sorted_rows,
    sort_rows,
    unpack_block,
)
from harness.kernels.spmm import spmm

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def draw_matrix(rows: int, cols: int, nnz: int) -> Csr:
    """Return a matrix with some long rows and many empty rows; entries may be repeated."""
    row = (uniform(0, Purpose.EDGES, range(nnz)) ** 4 * rows).long()
    col = integers(1, Purpose.EDGES, range(nnz), max(cols, 1))
    return from_coo(row, col, uniform(2, Purpose.TEST, range(nnz)) - 0.5, (rows, cols))


SHAPES = {
    "several windows": draw_matrix(3 * WINDOW + 100, 700, 4000),
    "one row": draw_matrix(1, 40, 30),
    "one column": draw_matrix(WINDOW + 1, 1, 900),
    "no entries": draw_matrix(WINDOW, 5, 0),
    "no rows": draw_matrix(0, 5, 0),
    "no columns": draw_matrix(5, 0, 0),
    "no empty rows": from_coo(torch.arange(700), torch.arange(700) * 3 % 90, torch.ones(700), (700, 90)),
    "window of empty rows": from_coo(
        torch.tensor([0, 2 * WINDOW + 3, 2 * WINDOW + 3]), torch.tensor([4, 0, 4]), torch.ones(3), (1600, 5)
    ),
    "a long row": draw_matrix(2, 3000, 9000),
}


def draw_dense(seed: int, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    """Return numbers of both signs, some of which are negative zeros."""
    x = uniform(seed, Purpose.TEST, range(rows * cols)).reshape(rows, cols) - 0.5
    return torch.where(x.abs() < 0.05, -0.0, x).to(dtype)


def restore(S: SortedRows) -> list[list[tuple[int, float]]]:
    """Return the entries of each row in their order."""
    rows: list[list[tuple[int, float]]] = [[] for _ in range(S.rows)]
    entries = list(zip(S.col.tolist(), S.val.tolist(), strict=True))
    for k, number in enumerate(S.lengths.numpy().view(np.uint32).tolist()):
        count, position = divmod(number, WINDOW)
        rows[k // WINDOW * WINDOW + position] = entries[:count]
        entries = entries[count:]
    assert not entries
    return rows


@pytest.mark.parametrize("shape", SHAPES)
def test_sorting_keeps_the_entries_of_each_row_and_sorts_each_window(shape: str) -> None:
    A = SHAPES[shape]
    S = sort_rows(A)
    assert (S.shape, S.nnz, S.lengths.dtype) == (A.shape, A.nnz, torch.int32)
    bounds, col, val = A.rowptr.tolist(), A.col.tolist(), A.val.tolist()
    assert restore(S) == [list(zip(col[i:j], val[i:j], strict=True)) for i, j in itertools.pairwise(bounds)]
    for window in (S.lengths >> 9).split(WINDOW):
        assert torch.equal(window, window.sort().values)


@pytest.mark.parametrize("add", [False, True], ids=["", "added"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_with_sorted_rows_have_the_bits_of_products_with_csr(
    shape: str, dtype: torch.dtype, add: bool
) -> None:
    A = cast(SHAPES[shape], dtype)
    for width in (0, 1, 3, 8, 16, 41, 300):
        H, Z = draw_dense(3, A.cols, width, dtype), draw_dense(4, A.rows, width, dtype)
        expected = spmm(A, H, add_to=Z.clone() if add else None)
        result = spmm(sort_rows(A), H, add_to=Z.clone() if add else None)
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        assert torch.equal(result.view(bits), expected.view(bits)), width  # -0.0 differs from 0.0


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_products_of_blocks_equal_dense_torch(shape: str) -> None:
    A = cast(SHAPES[shape], torch.float64)
    dense = torch.from_numpy(to_scipy(A).toarray())
    H, dZ = draw_dense(3, A.cols, 5, torch.float64), draw_dense(4, A.rows, 5, torch.float64)
    Z = spmm(sort_rows(A), H, add_to=dZ.clone())
    assert torch.allclose(Z, dZ + dense @ H, rtol=1e-12, atol=1e-12)
    dH = spmm(sort_rows(transpose(A)), dZ)
    assert torch.allclose(dH, dense.T @ dZ, rtol=1e-12, atol=1e-12)


@given(A=st.from_type(Csr), features=st.integers(0, 9), add=st.booleans(), wide=st.booleans())
def test_products_of_small_matrices_equal_scipy(A: Csr, features: int, add: bool, wide: bool) -> None:
    A = A._replace(col=A.col.long() if wide else A.col)
    H, Z = (
        (torch.arange(size * features).reshape(size, features) % 7 - 3).double() for size in (A.cols, A.rows)
    )
    expected = to_scipy(A) @ H.numpy() + (Z.numpy() if add else 0)
    assert np.array_equal(spmm(sort_rows(A), H, add_to=Z if add else None).numpy(), expected)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("features", [1, 16, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_with_sorted_rows_do_not_depend_on_the_number_of_threads(shape: str, features: int) -> None:
    S = sort_rows(cast(SHAPES[shape], torch.float32))
    H, Z = (draw_dense(3, size, features, torch.float32) for size in (S.cols, S.rows))
    by_two = spmm(S, H, add_to=Z.clone())
    torch.set_num_threads(1)
    assert torch.equal(spmm(S, H, add_to=Z), by_two)


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", SHAPES)
def test_shares_of_threads_cover_all_rows_and_begin_at_their_first_entries(shape: str, shares: int) -> None:
    S = sort_rows(cast(SHAPES[shape], torch.float32))
    counts = S.lengths.numpy().view(np.uint32) >> 9
    bounds = balance_sorted_rows(S.lengths.numpy(), shares).tolist()
    assert [row for begin, end, _ in bounds for row in range(begin, end)] == list(range(S.rows))
    assert all(entry == counts[:begin].sum() for begin, end, entry in bounds if begin < end)


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_sorted_rows_have_the_size_of_packed_csr_and_the_same_products(shape: str) -> None:
    A = cast(SHAPES[shape], torch.float64)
    form = get_packed_format(A)._replace(has_sorted_rows=True)
    buffer = pack_sorted_rows(A, form)
    assert (buffer.numel(), form.words) == (pack(A).numel(), get_packed_format(A).words)
    S, H = unpack_block(buffer, form), draw_dense(3, A.cols, 5, torch.float64)
    assert isinstance(S, SortedRows)
    assert torch.equal(spmm(S, H), spmm(A, H))
    assert isinstance(unpack_block(pack(A), get_packed_format(A)), Csr)


def test_meta_tensors_are_sorted_to_the_same_shape() -> None:
    A = SHAPES["several windows"]
    meta = sort_rows(Csr(*(part.to("meta") for part in A[:3]), A.cols))
    assert [(x.shape, x.dtype) for x in meta[:3]] == [(x.shape, x.dtype) for x in sort_rows(A)[:3]]
    H = torch.empty(A.cols, 4, device="meta", dtype=A.val.dtype)
    assert spmm(meta, H).shape == (A.rows, 4)


def test_rows_are_short_up_to_a_mean_length_and_a_width_that_the_format_holds() -> None:
    for narrow, most in ((False, SHORT_ROWS), (True, SHORT_ROWS_IF_NARROW)):
        assert has_short_rows(100, 50, most * 100, narrow=narrow)
        assert not has_short_rows(100, 50, most * 100 + 1, narrow=narrow)
        assert has_short_rows(100, MOST_COLUMNS, 7, narrow=narrow)
        assert not has_short_rows(100, MOST_COLUMNS + 1, 7, narrow=narrow)
        # Row pointers of a packed matrix would have 64 bits.
        assert not has_short_rows(1 << 30, 50, 1 << 31, narrow=narrow)


def test_a_row_longer_than_the_format_holds_is_refused() -> None:
    most = MOST_COLUMNS + 1
    A = Csr(torch.tensor([0, most]), torch.zeros(most, dtype=torch.int32), torch.ones(1).expand(most), 1)
    with pytest.raises(AssertionError, match="8,388,608 entries"):
        sort_rows(A)
