"""Drawn rows against a dense matrix, and of shapes alone."""

import torch

from harness.kernels.csr import from_coo, to_scipy
from harness.kernels.parts import drawn_rows


def test_drawn_rows_are_those_of_the_dense_matrix() -> None:
    dense = torch.arange(35.0).view(7, 5) * (torch.arange(35).view(7, 5) % 3 == 0)
    row, col = dense.nonzero().T
    A, rows = from_coo(row, col, dense[row, col], (7, 5)), torch.tensor([1, 4, 6])
    drawn = torch.from_numpy(to_scipy(drawn_rows(A, rows, 0.5)).toarray())
    assert torch.equal(drawn, dense[rows] / 2)
    shapes = drawn_rows(_on_nothing(A), rows, 0.5)
    assert shapes.shape == (3, 5)
    assert shapes.nnz == round(A.nnz * 3 / 7)


def _on_nothing(A):
    return A._replace(rowptr=A.rowptr.to("meta"), col=A.col.to("meta"), val=A.val.to("meta"))
