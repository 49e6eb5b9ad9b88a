"""Sampled submatrices equal scipy's, and their products are unbiased."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.base.ranges import split_part
from harness.conformance.case import make_check_graph
from harness.kernels import Csr, to_scipy
from harness.kernels.induced import induced_pair, induced_submatrix, induced_submatrix_torch
from harness.kernels.parts import extract_block
from harness.kernels.random import Purpose, uniform
from harness.kernels.shuffle import sample_distinct

N = 97
WAYS = [induced_submatrix, induced_submatrix_torch]


def scipy_part(A: Csr, rows: torch.Tensor, cols: torch.Tensor, diagonal: int, chance: float) -> np.ndarray:
    dense = to_scipy(A)[rows.numpy()][:, cols.numpy()].toarray()
    return np.where(rows.numpy()[:, None] + diagonal == cols.numpy()[None, :], dense, dense / chance)


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(0, N), st.integers(1, 4), st.integers(1, 4), st.data())
def test_sampled_blocks_equal_scipy(way, size: int, r: int, s: int, data: st.DataObject) -> None:
    """For any blocks of rows and columns, also empty ones."""
    A = make_check_graph(N).A
    rows, cols = (
        split_part(N, r, data.draw(st.integers(0, r - 1))),
        split_part(N, s, data.draw(st.integers(0, s - 1))),
    )
    mine, diagonal = extract_block(A, rows, cols), rows.start - cols.start
    for tag in (1, 2, 7):
        S = sample_distinct((tag, size), N, size)
        S_r = S[(rows.start <= S) & (rows.stop > S)] - rows.start
        S_c = S[(cols.start <= S) & (cols.stop > S)] - cols.start
        found, turned = way(mine, S_r, S_c, diagonal, 0.25), induced_pair(mine, S_r, S_c, diagonal, 0.25)[1]
        theirs = scipy_part(mine, S_r, S_c, diagonal, 0.25)
        np.testing.assert_allclose(to_scipy(found).toarray(), theirs, rtol=1e-15)
        np.testing.assert_array_equal(to_scipy(turned).toarray(), to_scipy(found).toarray().T)
        for matrix in (found, turned):
            assert matrix.rowptr.dtype == torch.int64
            for row in range(matrix.rows):
                assert (matrix.col[matrix.rowptr[row] : matrix.rowptr[row + 1]].diff() > 0).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("column", [torch.int32, torch.int64])
@pytest.mark.parametrize("cols", [63, 64, 65, 128])
def test_samples_at_bitmap_word_boundaries_equal_scipy(way, column: torch.dtype, cols: int) -> None:
    """Empty and full samples, and columns next to the end of a word of the bitmap, in a matrix without zeros."""
    rows = 3
    col = torch.arange(cols, dtype=column).repeat(rows)
    val = torch.arange(1.0, rows * cols + 1, dtype=torch.float64)
    A = Csr(torch.arange(0, rows * cols + 1, cols), col, val, cols)
    around = sorted({j for j in (0, 1, 62, 63, 64, 65, cols - 1) if j < cols})
    for places in product(([], [1], [0, 1, 2]), ([], [cols - 1], around, range(cols))):
        S_r, S_c = (torch.tensor([*each], dtype=torch.int64) for each in places)
        S, S_T = way(A, S_r, S_c, cols - 2, 0.5), induced_pair(A, S_r, S_c, cols - 2, 0.5)[1]
        assert S.col.dtype == S_T.col.dtype == torch.int32
        np.testing.assert_array_equal(to_scipy(S).toarray(), scipy_part(A, S_r, S_c, cols - 2, 0.5))
        np.testing.assert_array_equal(to_scipy(S_T).toarray(), to_scipy(S).toarray().T)


def test_tensor_operations_have_the_bits_of_compiled_loops() -> None:
    """1 / 0.3 has more digits than float32, and is not rounded before the product."""
    A, S = make_check_graph(N).A, torch.arange(0, N, 2)
    values = uniform(1, Purpose.TEST, range(A.nnz))
    for dtype in (torch.float32, torch.float64):
        compiled, by_torch = (way(A._replace(val=values.to(dtype)), S, S, 0, 0.3) for way in WAYS)
        for mine, theirs in zip(compiled[:3], by_torch[:3], strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


def test_sample_outside_the_matrix_is_refused() -> None:
    A = make_check_graph(N).A
    inside = torch.tensor([0])
    for outside in (torch.tensor([N]), torch.tensor([-1])):
        for rows, cols in ((outside, inside), (inside, outside)):
            with pytest.raises(IndexError, match="out of range"):
                induced_submatrix(A, rows, cols, 0, 1.0)


def test_sampled_products_are_unbiased() -> None:
    """SGN-007: over samples that contain v, the mean of the rescaled sum over v's neighbours is the full sum.

    Without the scale the mean is off by far more than the standard error, so the test can fail.
    """
    A, size, draws = make_check_graph(N).A, 40, 4000
    x = torch.linspace(-1, 2, N, dtype=torch.float64)
    exact = torch.from_numpy(to_scipy(A) @ x.numpy())
    chance = (size - 1) / (N - 1)
    for scale, unbiased in ((chance, True), (1.0, False)):
        total, squares, times = (torch.zeros(N, dtype=torch.float64) for _ in range(3))
        for tag in range(1, draws + 1):
            S = sample_distinct((5, tag), N, size)
            A_S = induced_submatrix(A, S, S, 0, scale)
            y = torch.from_numpy(to_scipy(A_S) @ x[S].numpy())
            total[S] += y
            squares[S] += y * y
            times[S] += 1
        mean = total / times
        spread = ((squares / times - mean**2).clamp(min=1e-12) / times).sqrt()
        off = ((mean - exact).abs() / spread).amax()
        assert (off < 5) == unbiased, off
        assert ((times / draws - size / N).abs() < 5 * (size / N * (1 - size / N) / draws) ** 0.5).all()


def test_expected_sizes_equal_the_mean_of_sampled_sizes() -> None:
    A, size = make_check_graph(N).A, 40
    rows, cols = range(0, 60), range(30, N)
    mine = extract_block(A, rows, cols)
    shape = Csr(*(array.to("meta") for array in mine[:3]), mine.cols)
    drawn, expected = [], []
    for tag in range(1, 400):
        S = sample_distinct((1, tag), N, size)
        S_r, S_c = (S[(each.start <= S) & (each.stop > S)] - each.start for each in (rows, cols))
        run = partial(induced_pair, rows=S_r, cols=S_c, diagonal=-30, probability=0.4)
        drawn.append(run(mine)[0].nnz)
        expected.append(run(shape)[0].nnz)
        assert [each.shape for each in run(shape)] == [each.shape for each in run(mine)]
    assert np.mean(drawn) == pytest.approx(np.mean(expected), rel=0.03)
