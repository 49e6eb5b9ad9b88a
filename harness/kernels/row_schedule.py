"""The order in which a GPU computes the rows of a sparse product, and how it splits long rows.

A schedule depends on the row pointers alone. Rows that take the same number of turns of the kernel's loop are adjacent,
the longest first, so that rows computed side by side end together and no long row begins last. A row of more than PIECE
entries is split into pieces of PIECE entries and a shorter last one: their sums are added in order afterwards.
Verifier (tests/kernels/test_row_schedule.py): the same in Python.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import index_dtype

ENTRIES_PER_ITERATION = 4
"""The entries of a row that one turn of the kernel's loop adds."""
PIECE = 512
"""The most entries of a row that are added without a break: whole turns."""


@dataclass(frozen=True)
class RowSchedule:
    """Takes 4 bytes for each row and at most 12 for each piece, on the device of the matrix; twice that beyond 2^31."""

    order: Tensor
    """The rows: long ones, other rows with entries, empty rows."""
    long: int
    filled: int
    """The number of long rows, and of rows with entries."""
    piece: int
    """The most entries of a piece."""
    piece_row: Tensor
    piece_number: Tensor
    """For each piece its row, and its place among the pieces of the row."""
    first_piece: Tensor
    """For each long row the number of pieces before it; then the number of all pieces."""

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.order, self.piece_row, self.piece_number, self.first_piece))


def schedule_rows(rowptr: Tensor, piece: int = PIECE) -> RowSchedule:
    """Return the schedule of a matrix with these row pointers. The host waits once, for three counts."""
    assert piece % ENTRIES_PER_ITERATION == 0, piece
    lengths = rowptr.diff()
    turns, order = torch.sort(
        (lengths + (ENTRIES_PER_ITERATION - 1)) // ENTRIES_PER_ITERATION, stable=True, descending=True
    )
    pieces = (lengths + (piece - 1)) // piece
    is_long = lengths > piece
    counts = torch.stack((is_long.sum(), (turns > 0).sum(), torch.where(is_long, pieces, 0).sum()))
    long, filled, total = (int(count) for count in counts.tolist())
    long_rows = order[:long]
    first_piece = pad(pieces.index_select(0, long_rows).cumsum(0), (1, 0))
    owner = torch.repeat_interleave(first_piece.diff(), output_size=total)
    number = torch.arange(total, device=owner.device) - first_piece.index_select(0, owner)
    return RowSchedule(
        order=order.to(index_dtype(len(order))),
        long=long,
        filled=filled,
        piece=piece,
        piece_row=long_rows.index_select(0, owner).to(index_dtype(len(order))),
        piece_number=number.to(index_dtype(total)),
        first_piece=first_piece.to(index_dtype(total)),
    )
