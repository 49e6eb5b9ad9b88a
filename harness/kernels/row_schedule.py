"""The order in which a GPU computes the rows of a sparse product, and how it splits long rows.

A schedule depends only on the row pointers. Rows are sorted by their number of loop iterations, longest first, so that
rows computed in one tile finish together and no long row starts last. A row of more than PIECE entries is split into
pieces of PIECE entries and a shorter last one, whose sums are added in order afterwards.
Verifier (tests/kernels/test_row_schedule.py): the same in Python.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import index_dtype

ENTRIES_PER_ITERATION = 4
"""The number of entries of a row that one iteration of the kernel's loop adds."""
PIECE = 128
"""The maximum number of entries in a piece, a multiple of ENTRIES_PER_ITERATION. On an H200, no other length was faster
on both graphs that were tried, and 512 took up to 1.6 times as long (part `pieces` of benchmarks/gpu.py)."""


@dataclass(frozen=True)
class RowSchedule:
    """A row schedule on the matrix's device.

    It takes 4 bytes per row and at most 12 bytes per piece; twice as much if indices exceed 2^31.
    """

    order: Tensor
    """Row indices: long rows first, then other nonempty rows, then empty rows."""
    long_rows: int
    nonempty_rows: int
    """The numbers of long rows and of nonempty rows."""
    piece: int
    """The maximum number of entries in a piece."""
    piece_row: Tensor
    piece_number: Tensor
    """The row of each piece, and its index within the row."""
    first_piece: Tensor
    """The index of the first piece of each long row, and the total number of pieces."""

    @property
    def tensors(self) -> list[Tensor]:
        return [self.order, self.piece_row, self.piece_number, self.first_piece]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.tensors)


def schedule_rows(rowptr: Tensor, piece: int = PIECE) -> RowSchedule:
    """Return the schedule of a matrix with these row pointers. Synchronizes with the device once."""
    assert piece % ENTRIES_PER_ITERATION == 0, piece
    lengths = rowptr.diff()
    turns, order = torch.sort(
        (lengths + (ENTRIES_PER_ITERATION - 1)) // ENTRIES_PER_ITERATION, stable=True, descending=True
    )
    pieces = (lengths + (piece - 1)) // piece
    is_long = lengths > piece
    counts = torch.stack((is_long.sum(), (turns > 0).sum(), torch.where(is_long, pieces, 0).sum()))
    long, nonempty, total = (int(count) for count in counts.tolist())
    long_rows = order[:long]
    first_piece = pad(pieces.index_select(0, long_rows).cumsum(0), (1, 0))
    owner = torch.repeat_interleave(first_piece.diff(), output_size=total)
    number = torch.arange(total, device=owner.device) - first_piece.index_select(0, owner)
    return RowSchedule(
        order=order.to(index_dtype(len(order))),
        long_rows=long,
        nonempty_rows=nonempty,
        piece=piece,
        piece_row=long_rows.index_select(0, owner).to(index_dtype(len(order))),
        piece_number=number.to(index_dtype(total)),
        first_piece=first_piece.to(index_dtype(total)),
    )
