"""Blocks of a matrix put together, and the ranges they are cut by. `harness.kernels.csr.block` cuts them out."""

from collections.abc import Sequence
from itertools import accumulate

from harness.kernels.assemble import Part, assemble
from harness.kernels.csr import Csr, index_dtype


def ceil_blocks(n: int, blocks: int) -> list[range]:
    """0 .. n cut into this many ranges of ceil(n / blocks); the last ones may be shorter or empty."""
    size = -(-n // blocks)
    return [range(min(b * size, n), min((b + 1) * size, n)) for b in range(blocks)]


def beside(pieces: Sequence[Csr]) -> Csr:
    """Matrices of the same rows, from left to right, as one."""
    if pieces[0].val.is_meta:
        return _shape_beside(pieces)
    lefts = accumulate((piece.cols for piece in pieces), initial=0)
    parts = [
        Part(piece, range(piece.rows), range(piece.cols), 0, left)
        for piece, left in zip(pieces, lefts, strict=False)
    ]
    return assemble(parts, (pieces[0].rows, sum(piece.cols for piece in pieces)))


def _shape_beside(pieces: Sequence[Csr]) -> Csr:
    rowptr, col, val, _ = pieces[0]
    nnz, width = sum(piece.nnz for piece in pieces), sum(piece.cols for piece in pieces)
    return Csr(rowptr, col.new_empty(nnz, dtype=index_dtype(width)), val.new_empty(nnz), width)
