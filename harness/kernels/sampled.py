"""Some of the rows of a sparse matrix, drawn at random: the same as any selection, but that shapes alone are enough.

Of shapes alone nobody knows how many nonzeros the rows have: as many as their share of all.
Verifier (tests/kernels/test_sampled.py): dense matrices.
"""

from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.spgemm import select_rows


def drawn_rows(A: Csr, rows: Tensor, scale: float) -> Csr:
    """A[rows] times a number."""
    if not A.val.is_meta:
        drawn = select_rows(A, rows)
        return drawn._replace(val=drawn.val * scale)
    nnz = round(A.nnz * len(rows) / max(A.rows, 1))
    return Csr(A.rowptr.new_empty(len(rows) + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)
