"""The entries on a diagonal of a sparse matrix, taken out of it: loops of a graph need no gathering of rows.

Verifier (tests/kernels/test_diagonal.py): dense matrices.
"""

import torch
from torch import Tensor

from harness.kernels.csr import Csr, row_of


def apart(A: Csr, offset: int = 0) -> tuple[Csr, Tensor]:
    """A without its entries at (i, i + offset); and these, of the rows that have such a place, equal ones added up.

    Of shapes alone there is one entry less where the diagonal passes.
    """
    rows = _rows_passed(A, offset)
    values = A.val.new_zeros(len(rows))
    if A.val.is_meta:
        nnz = max(A.nnz - len(rows), 0)
        return A._replace(col=A.col.new_empty(nnz), val=A.val.new_empty(nnz)), values
    row = row_of(A)
    on = row + offset == A.col
    values.index_add_(0, row[on] - rows.start, A.val[on])
    before = torch.nn.functional.pad(on.cumsum(0), (1, 0))
    return Csr(A.rowptr - before[A.rowptr], A.col[~on], A.val[~on], A.cols), values


def _rows_passed(A: Csr, offset: int) -> range:
    """The rows that the diagonal passes."""
    first = min(max(0, -offset), A.rows)
    return range(first, max(first, min(A.rows, A.cols - offset)))
