"""Blocks of a matrix put together, and the ranges they are cut by. `harness.kernels.csr.block` cuts them out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype, row_of


def ceil_blocks(n: int, blocks: int) -> list[range]:
    """0 .. n cut into this many ranges of ceil(n / blocks); the last ones may be shorter or empty."""
    size = -(-n // blocks)
    return [range(min(b * size, n), min((b + 1) * size, n)) for b in range(blocks)]


def beside(pieces: Sequence[Csr]) -> Csr:
    """Matrices of the same rows, from left to right, as one."""
    if pieces[0].val.is_meta:
        return _shape_beside(pieces)
    lengths = torch.stack([piece.rowptr.diff() for piece in pieces])
    rowptr = _rowptr(lengths.sum(0))
    starts = rowptr[:-1] + lengths.cumsum(0) - lengths
    width = sum(piece.cols for piece in pieces)
    col = torch.empty(int(rowptr[-1]), dtype=index_dtype(width))
    val = torch.empty(int(rowptr[-1]), dtype=pieces[0].val.dtype)
    left = 0
    for piece, start in zip(pieces, starts, strict=True):
        place = (start - piece.rowptr[:-1])[row_of(piece)] + torch.arange(piece.nnz)
        col[place] = (piece.col + left).to(col.dtype)
        val[place] = piece.val
        left += piece.cols
    return Csr(rowptr, col, val, width)


def _shape_beside(pieces: Sequence[Csr]) -> Csr:
    rowptr, col, val, _ = pieces[0]
    nnz, width = sum(piece.nnz for piece in pieces), sum(piece.cols for piece in pieces)
    return Csr(rowptr, col.new_empty(nnz, dtype=index_dtype(width)), val.new_empty(nnz), width)


def below(pieces: Sequence[Csr]) -> Csr:
    """Matrices of the same columns, from top to bottom, as one."""
    rowptr = _rowptr(torch.cat([piece.rowptr.diff() for piece in pieces]))
    col = torch.cat([piece.col for piece in pieces])
    val = torch.cat([piece.val for piece in pieces])
    return Csr(rowptr, col, val, pieces[0].cols)


def _rowptr(lengths: Tensor) -> Tensor:
    """Where each row begins, and the end."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
