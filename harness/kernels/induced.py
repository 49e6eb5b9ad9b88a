"""The submatrix induced by sampled rows and columns, and its transpose (ScaleGNN, Algorithm 2, phases 2 to 4).

Off-diagonal entries are divided by the probability that their column was sampled given their row, so that products with
the submatrix are unbiased. A CPU uses compiled loops, a GPU kernels in Triton or torch operations; meta tensors get the
expected number of entries. Verifier (tests/kernels/test_induced.py): scipy's A[S][:, S].
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.base.device import can_run_triton, is_on_gpu
from harness.kernels.csr import Csr, index_dtype, row_indices, take, to_numpy, transpose
from harness.kernels.jit import compiled
from harness.kernels.parts import ONE, U, select_columns_torch, select_rows_torch, select_submatrix


def induced_submatrix(A: Csr, rows: Tensor, cols: Tensor, diagonal: int, probability: float) -> Csr:
    """Return A[rows, cols].

    `rows` and `cols` are ascending. The diagonal of the whole matrix passes through column i + `diagonal` of row i.
    `probability` is the probability that a column was sampled, given that another vertex was.
    """
    if A.val.is_meta:
        return _estimate(A, rows, cols, diagonal)
    if is_on_gpu(A.val):
        return _induce_on_gpu(A, rows, cols, diagonal, probability)
    return select_submatrix(A, rows, cols, (diagonal, 1 / probability))


def induced_pair(A: Csr, rows: Tensor, cols: Tensor, diagonal: int, probability: float) -> tuple[Csr, Csr]:
    """Return the induced submatrix and its transpose."""
    S = induced_submatrix(A, rows, cols, diagonal, probability)
    if S.val.device.type != "cpu":
        return S, transpose(S)
    S_T = Csr(
        torch.empty(len(cols) + 1, dtype=torch.int64),
        torch.empty(S.nnz, dtype=index_dtype(len(rows))),
        torch.empty_like(S.val),
        len(rows),
    )
    write_transpose(to_numpy(S), to_numpy(S_T))
    return S, S_T


def _induce_on_gpu(A: Csr, rows: Tensor, cols: Tensor, diagonal: int, probability: float) -> Csr:
    """Use Triton's kernels if they can run and have the type of A's values, else tensor operations."""
    if can_run_triton():
        from harness.kernels import triton_induced

        if A.val.dtype in triton_induced.VALUES:
            return triton_induced.induced_submatrix(A, rows, cols, diagonal, 1 / probability)
    return induced_submatrix_torch(A, rows, cols, diagonal, probability)


def induced_submatrix_torch(A: Csr, rows: Tensor, cols: Tensor, diagonal: int, probability: float) -> Csr:
    """`induced_submatrix` on any device."""
    S = select_columns_torch(select_rows_torch(A, rows), cols, ascending=True)
    on_diagonal = take(rows, row_indices(S)) + diagonal == take(cols, S.col)
    scaled = (S.val.double() * (1 / probability)).to(S.val.dtype)  # as the compiled loop rounds
    return S._replace(val=torch.where(on_diagonal, S.val, scaled))


def _estimate(A: Csr, rows: Tensor, cols: Tensor, diagonal: int) -> Csr:
    """Return the expected shape, assuming a self-loop at every vertex and uniformly distributed other nonzeros."""
    loops = max(min(A.rows, A.cols - diagonal) - max(0, -diagonal), 0)
    on_diagonal = _count_common(rows + diagonal, cols)
    off_diagonal, places = max(A.nnz - loops, 0), A.rows * A.cols - loops
    nnz = on_diagonal + (
        round(off_diagonal * (len(rows) * len(cols) - on_diagonal) / places) if places else 0
    )
    col = A.col.new_empty(nnz, dtype=index_dtype(len(cols)))
    return Csr(A.rowptr.new_empty(len(rows) + 1), col, A.val.new_empty(nnz), len(cols))


def _count_common(x: Tensor, y: Tensor) -> int:
    """Count the elements of x that are in y. y is ascending."""
    return int((torch.searchsorted(y, x, right=True) - torch.searchsorted(y, x)).sum())


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
