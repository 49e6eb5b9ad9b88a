"""The submatrix induced by sampled rows and columns, and its transpose (ScaleGNN, Algorithm 2, phases 2 to 4).

Off-diagonal entries are divided by the probability that their column was sampled given their row, so that products with
the submatrix are unbiased. A CPU uses compiled loops, a GPU torch operations; meta tensors get the expected number of
entries. Verifier (tests/kernels/test_induced.py): scipy's A[S][:, S].
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.device import is_on_gpu
from harness.kernels.csr import Csr, index_dtype, row_indices, take, to_numpy, transpose_torch
from harness.kernels.jit import compiled
from harness.kernels.parts import ONE, U, select_columns_torch, select_rows_torch, select_submatrix


def induced_pair(A: Csr, rows: Tensor, cols: Tensor, diagonal: int, probability: float) -> tuple[Csr, Csr]:
    """Return A[rows, cols] and its transpose.

    `rows` and `cols` are ascending. The diagonal of the whole matrix passes through column i + `diagonal` of row i.
    `probability` is the probability that a column was sampled, given that another vertex was.
    """
    if A.val.is_meta:
        return _estimate_pair(A, rows, cols, diagonal)
    if is_on_gpu(A.val):
        return induced_pair_torch(A, rows, cols, diagonal, probability)
    S = select_submatrix(A, rows, cols, (diagonal, 1 / probability))
    S_T = Csr(
        torch.empty(len(cols) + 1, dtype=torch.int64),
        torch.empty(S.nnz, dtype=index_dtype(len(rows))),
        torch.empty_like(S.val),
        len(rows),
    )
    write_transpose(to_numpy(S), to_numpy(S_T))
    return S, S_T


def induced_pair_torch(
    A: Csr, rows: Tensor, cols: Tensor, diagonal: int, probability: float
) -> tuple[Csr, Csr]:
    """`induced_pair` on any device."""
    S = select_columns_torch(select_rows_torch(A, rows), cols, ascending=True)
    on_diagonal = take(rows, row_indices(S)) + diagonal == take(cols, S.col)
    S = S._replace(val=torch.where(on_diagonal, S.val, S.val * (1 / probability)))
    return S, transpose_torch(S)


def _estimate_pair(A: Csr, rows: Tensor, cols: Tensor, diagonal: int) -> tuple[Csr, Csr]:
    """Return the expected shapes, assuming a self-loop at every vertex and uniformly distributed other nonzeros."""
    loops = max(min(A.rows, A.cols - diagonal) - max(0, -diagonal), 0)
    on_diagonal = _count_common(rows + diagonal, cols)
    off_diagonal, places = max(A.nnz - loops, 0), A.rows * A.cols - loops
    nnz = on_diagonal + (
        round(off_diagonal * (len(rows) * len(cols) - on_diagonal) / places) if places else 0
    )
    return _empty_csr(A, len(rows), len(cols), nnz), _empty_csr(A, len(cols), len(rows), nnz)


def _count_common(x: Tensor, y: Tensor) -> int:
    """Count the elements of x that are in y. y is ascending."""
    return int((torch.searchsorted(y, x, right=True) - torch.searchsorted(y, x)).sum())


def _empty_csr(A: Csr, rows: int, cols: int, nnz: int) -> Csr:
    col = A.col.new_empty(nnz, dtype=index_dtype(cols))
    return Csr(A.rowptr.new_empty(rows + 1), col, A.val.new_empty(nnz), cols)


@compiled(nogil=True)
def write_transpose(S: tuple[Any, Any, Any], S_T: tuple[Any, Any, Any]) -> None:
    """Write the transpose of S to S_T."""
    rowptr, col, val = S
    colptr, out_row, out_val = S_T
    free = np.zeros(colptr.size, dtype=np.uint64)
    for e in range(U(col.size)):
        free[U(col[e]) + ONE] += ONE
    colptr[U(0)] = 0
    for j in range(ONE, U(colptr.size)):
        free[j] += free[j - ONE]
        colptr[j] = free[j]
    for i in range(U(rowptr.size - 1)):
        for e in range(U(rowptr[i]), U(rowptr[i + ONE])):
            column = U(col[e])
            at = free[column]
            out_row[at], out_val[at] = i, val[e]
            free[column] = at + ONE
