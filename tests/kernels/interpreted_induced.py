"""Run the Triton kernels that induce submatrices in Triton's interpreter, on the CPU.

test_triton_induced.py runs this file. The results must be bitwise equal to the results of the compiled loops.
"""

import pytest
import torch

from harness.conformance.case import make_check_graph
from harness.kernels import Csr, triton_induced
from harness.kernels.induced import induced_submatrix
from harness.kernels.random import Purpose, integers, uniform
from harness.kernels.shuffle import sample_distinct

TILE = 16
"""Rows have fewer entries than a tile, and more."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_induced, "TILE", TILE)


def assert_equal(A: Csr, rows: torch.Tensor, cols: torch.Tensor, diagonal: int, chance: float) -> Csr:
    expected = induced_submatrix(A, rows, cols, diagonal, chance)
    found = triton_induced.induced_submatrix(A, rows, cols, diagonal, 1 / chance)
    assert found.cols == expected.cols
    for mine, theirs in zip(found[:3], expected[:3], strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    return found


@pytest.mark.parametrize("programs", [1, 3, 4096])
@pytest.mark.parametrize("size", [1, 2, 40, 97])
def test_samples_of_a_graph_are_equal(monkeypatch, size, programs):
    monkeypatch.setattr(triton_induced, "MAX_PROGRAMS", programs)
    A, S = make_check_graph(97).A, sample_distinct((1, size), 97, size)
    assert_equal(A, S, S, 0, 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_blocks_beside_the_diagonal_are_equal(dtype):
    """1 / 0.3 has more digits than float32."""
    A = make_check_graph(97).A
    A = A._replace(val=uniform(1, Purpose.TEST, range(A.nnz)).to(dtype))
    S = sample_distinct((2, 0), 97, 50)
    for diagonal in (-30, 0, 7):
        assert_equal(A, S, S, diagonal, 0.3)


@pytest.mark.parametrize("column", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("lengths", [[], [0, 0], [0, 40, 0, 0, 1, 16, 0, 17, 33, 0]], ids=str)
def test_empty_long_and_all_rows_are_equal(column, lengths):
    cols = 50
    rowptr = torch.tensor([0, *lengths]).cumsum(0)
    nnz = int(rowptr[-1])
    A = Csr(
        rowptr, integers(1, Purpose.EDGES, range(nnz), high=cols).to(column), torch.arange(1.0, nnz + 1), cols
    )
    all_rows, all_cols, none = torch.arange(len(lengths)), torch.arange(cols), torch.arange(0)
    for rows in (all_rows, all_rows[1::2].contiguous(), none):
        for kept in (all_cols, all_cols[3:20].contiguous(), none):
            assert_equal(A, rows, kept, 0, 0.5)


def test_packed_matrices_are_equal():
    A, S = make_check_graph(97).A, sample_distinct((3, 0), 97, 30)
    assert_equal(A._replace(rowptr=A.rowptr.int()), S, S, 0, 0.5)


def test_operands_with_gaps_are_refused():
    A, S = make_check_graph(97).A, torch.arange(0, 97)[::2]
    with pytest.raises(AssertionError):
        triton_induced.induced_submatrix(A, S, S, 0, 1.0)
