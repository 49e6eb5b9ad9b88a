"""A schedule contains every row and entry once, sorted by work, with pieces in order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.kernels.row_schedule import ENTRIES_PER_ITERATION, schedule_rows


@given(
    st.lists(st.integers(0, 40), max_size=25), st.integers(1, 4), st.sampled_from([torch.int32, torch.int64])
)
def test_schedule_equals_a_loop_over_rows(lengths, turns, dtype):
    piece = turns * ENTRIES_PER_ITERATION
    rowptr = torch.tensor([0, *np.cumsum(lengths)], dtype=dtype)
    schedule = schedule_rows(rowptr, piece)
    by_work = sorted(
        range(len(lengths)), key=lambda row: -(-lengths[row] // ENTRIES_PER_ITERATION), reverse=True
    )
    pieces = [(row, k) for row in by_work for k in range(-(-lengths[row] // piece)) if lengths[row] > piece]
    long = [row for row in by_work if lengths[row] > piece]
    before = [sum(owner in long[:number] for owner, _ in pieces) for number in range(len(long) + 1)]
    assert schedule.order.tolist() == by_work
    assert (schedule.long_rows, schedule.piece) == (len(long), piece)
    assert schedule.nonempty_rows == sum(length > 0 for length in lengths)
    assert list(zip(schedule.piece_row.tolist(), schedule.piece_number.tolist(), strict=True)) == pieces
    assert schedule.first_piece.tolist() == before


@pytest.mark.parametrize("piece", [ENTRIES_PER_ITERATION, 2 * ENTRIES_PER_ITERATION, 512])
def test_long_rows_come_first(piece):
    lengths = torch.tensor([3, piece + 1, piece, 0, piece - 1, 5 * piece])
    rowptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    schedule = schedule_rows(rowptr, piece)
    assert sorted(schedule.order[: schedule.long_rows].tolist()) == [1, 5]
    assert schedule.order[schedule.nonempty_rows :].tolist() == [3]


def test_schedule_takes_the_documented_memory():
    lengths = torch.tensor([0, 1, 3] * 1000 + [5000, 6000])
    schedule = schedule_rows(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), 512)
    pieces = 10 + 12
    assert len(schedule.piece_row) == pieces
    assert schedule.nbytes <= 4 * len(lengths) + 12 * pieces
