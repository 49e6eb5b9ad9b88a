"""Run the Triton kernels that draw neighbours in Triton's interpreter, on the CPU.

test_triton_sampling.py runs this file. The samples must have the same bits as those of the compiled loops.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from harness.conformance.case import make_check_graph
from harness.kernels import Csr
from harness.strategies.sampling import sampler, vectorised
from harness.strategies.sampling.sampler import sample_neighbours
from harness.strategies.sampling.triton_sampling import MAX_TILE_FANOUT, TILE
from tests.sampling.test_vectorised import rows_of_lengths, same

LENGTHS = [0, 3, 12, 34, 33, 1, 16, 17, 15, 25]


@contextmanager
def by_triton() -> Iterator[None]:
    """Make the sampler use the Triton kernels on the host, and nothing else."""
    with (
        patch.object(sampler, "is_on_gpu", return_value=True),
        patch.object(sampler, "can_run_triton", return_value=True),
        patch.object(vectorised, "draw_entries", side_effect=AssertionError("drawn by tensor operations")),
    ):
        yield


def assert_equal_draws(A: Csr, rows: torch.Tensor, vertices: torch.Tensor, fanout: int, loops: bool) -> None:
    compiled = sample_neighbours(A, rows, vertices, fanout, (7, fanout), loops=loops)
    with by_triton():
        drawn = sample_neighbours(A, rows, vertices, fanout, (7, fanout), loops=loops)
    assert same(drawn, compiled)


@pytest.mark.parametrize(
    ("dtype", "loops"), [(torch.float32, True), (torch.float32, False), (torch.float64, True)], ids=str
)
@pytest.mark.parametrize("fanout", [1, 2, 7, 15, 33])
def test_draws_from_short_and_long_rows_are_equal(dtype, loops, fanout):
    """Every second row has a loop; some have exactly as many entries as draws, or one more."""
    A = rows_of_lengths(LENGTHS, 40, dtype, loops=True)
    rows = torch.tensor([3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert_equal_draws(A, rows, rows, fanout, loops)


def test_the_largest_tiles_are_equal_and_larger_fan_outs_use_tensor_operations():
    A, rows = rows_of_lengths([127, 129], 300, torch.float32, loops=True), torch.arange(2)
    assert_equal_draws(A, rows, rows, MAX_TILE_FANOUT, True)
    with by_triton(), pytest.raises(AssertionError, match="tensor operations"):
        sample_neighbours(A, rows, rows, MAX_TILE_FANOUT + 1, (7,), loops=True)


def test_values_in_other_types_use_tensor_operations():
    A, rows = rows_of_lengths(LENGTHS, 40, torch.bfloat16, loops=True), torch.arange(3)
    with by_triton(), pytest.raises(AssertionError, match="tensor operations"):
        sample_neighbours(A, rows, rows, 3, (7,), loops=True)


def test_draws_from_more_rows_than_a_tile_are_equal():
    A, rows = make_check_graph(TILE + 9).A, torch.arange(TILE + 9)
    assert_equal_draws(A, rows, rows, 1, True)


def test_draws_from_a_range_of_rows_with_64_bit_columns_are_equal():
    """A rank has the rows from 40 on, and loops are in the columns of the full graph."""
    A, rows = make_check_graph(97).A, torch.arange(20)
    mine = Csr(A.rowptr[40:61] - A.rowptr[40], A.col[A.rowptr[40] :].long(), A.val[A.rowptr[40] :], 97)
    assert_equal_draws(mine, rows, rows + 40, 2, True)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("lengths", [[], [0, 0], [2]], ids=str)
def test_draws_from_empty_matrices_and_of_no_rows_are_equal(lengths, loops):
    A = rows_of_lengths(lengths, 9, torch.float32, loops=True)
    for rows in (torch.arange(len(lengths)), torch.arange(0)):
        assert_equal_draws(A, rows, rows, 3, loops)


def test_operands_with_gaps_are_refused():
    A, rows = rows_of_lengths(LENGTHS, 40, torch.float32, loops=True), torch.arange(10)
    with by_triton(), pytest.raises(AssertionError):
        sample_neighbours(A, rows[::2], rows[::2], 3, (7,), loops=True)
