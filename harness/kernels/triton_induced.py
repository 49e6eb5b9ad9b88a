"""A[rows, cols] on GPUs, in Triton. Needs the package `triton`: import this module only on a GPU.

The entries of the selected rows are divided equally among programs, wherever the rows begin. One kernel counts the kept
entries of each program, one writes them, and the host waits once, for their number. There are no atomics. Verifier
(tests/kernels/test_triton_induced.py): the compiled loops, bit by bit, in Triton's interpreter; the machine code for
three GPUs.

Legend: a tile is some consecutive entries of the selected rows; `starts` has the number of entries before each row.
"""

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr, index_dtype, take

TILE = 1024
MAX_PROGRAMS = 4096
"""About twice as many as the largest GPUs run at once."""
VALUES = (torch.float32, torch.float64)
"""The types of values that the kernels rescale."""


def induced_submatrix(A: Csr, rows: Tensor, cols: Tensor, diagonal: int, scale: float) -> Csr:
    """Return A[rows, cols], with entries that are not on the diagonal multiplied by `scale`.

    All operands are contiguous and on one GPU.
    """
    assert all(x.is_contiguous() for x in (*A[:3], rows, cols))
    programs = min(triton.cdiv(max(A.nnz, 1), TILE), MAX_PROGRAMS)
    place = A.col.new_full((A.cols,), -1, dtype=index_dtype(len(cols)))
    place.scatter_(0, cols, torch.arange(len(cols), dtype=place.dtype, device=cols.device))
    first = take(A.rowptr, rows)
    starts = pad((take(A.rowptr, rows + 1) - first).cumsum(0), (1, 0))
    selected = A.col, first, starts, place
    options = {"bits": len(rows).bit_length(), "TILE": TILE}
    counts = starts.new_empty(programs)
    count_kept[(programs,)](*selected, counts, len(rows), **options)
    ends = counts.cumsum(0)
    kept = int(ends[-1])
    row, col = (torch.empty(kept, dtype=index_dtype(n), device=rows.device) for n in (len(rows), len(cols)))
    val = A.val.new_empty(kept)
    if kept:
        (bits_of_scale,) = struct.unpack("q", struct.pack("d", scale))  # Triton passes numbers as float32
        write_kept[(programs,)](
            *(*selected, rows, A.val, ends - counts, row, col, val),
            *(len(rows), diagonal, bits_of_scale),
            **options,
        )
    rowptr = torch.searchsorted(row, torch.arange(len(rows) + 1, dtype=row.dtype, device=row.device))
    return Csr(rowptr, col, val, len(cols))


# The kernels. Numbers that change from step to step are not specialised, so that each kernel compiles once.


@triton.jit(do_not_specialize=["count", "bits"])
def count_kept(
    all_col: tl.tensor,
    first: tl.tensor,
    starts: tl.tensor,
    place: tl.tensor,
    counts: tl.tensor,
    count: tl.tensor,
    bits: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Write the number of entries that a program keeps. `count` is the number of rows."""
    begin, end = entries_of_program(starts, count, TILE)
    found = tl.zeros((TILE,), tl.int64)
    for tile in range(begin, end, TILE):
        n = tile + tl.arange(0, TILE)
        _, e = find_entries(first, starts, n, count, bits)
        j = tl.load(all_col + e, mask=n < end, other=0)
        found += (tl.load(place + j, mask=n < end, other=-1) >= 0).to(tl.int64)
    tl.store(counts + tl.program_id(0), tl.sum(found, 0))


@triton.jit(do_not_specialize=["count", "diagonal", "bits_of_scale", "bits"])
def write_kept(
    all_col: tl.tensor,
    first: tl.tensor,
    starts: tl.tensor,
    place: tl.tensor,
    rows: tl.tensor,
    all_val: tl.tensor,
    offsets: tl.tensor,
    row: tl.tensor,
    col: tl.tensor,
    val: tl.tensor,
    count: tl.tensor,
    diagonal: tl.tensor,
    bits_of_scale: tl.tensor,
    bits: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Write the kept entries of a program, from its offset on."""
    begin, end = entries_of_program(starts, count, TILE)
    offset = tl.load(offsets + tl.program_id(0))
    scale = bits_of_scale.to(tl.float64, bitcast=True)
    for tile in range(begin, end, TILE):
        n = tile + tl.arange(0, TILE)
        i, e = find_entries(first, starts, n, count, bits)
        j = tl.load(all_col + e, mask=n < end, other=0)
        new_j = tl.load(place + j, mask=n < end, other=-1)
        is_kept = new_j >= 0
        is_loop = tl.load(rows + i, mask=is_kept, other=0) + diagonal == j
        value = tl.load(all_val + e, mask=is_kept, other=0.0)
        at = offset + tl.cumsum(is_kept.to(tl.int64), 0) - 1
        tl.store(row + at, i, mask=is_kept)
        tl.store(col + at, new_j, mask=is_kept)
        scaled = (value.to(tl.float64) * scale).to(value.dtype)
        tl.store(val + at, tl.where(is_loop, value, scaled), mask=is_kept)
        offset += tl.sum(is_kept.to(tl.int64), 0)


@triton.jit
def entries_of_program(starts: tl.tensor, count: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    """Return the first entry of this program, and the end of its entries: whole tiles, except at the last end."""
    total = tl.load(starts + count)
    span = tl.cdiv(tl.cdiv(total, TILE), tl.num_programs(0)) * TILE
    begin = tl.program_id(0) * span
    return begin, tl.minimum(begin + span, total)


@triton.jit
def find_entries(
    first: tl.tensor, starts: tl.tensor, n: tl.tensor, count: tl.tensor, bits: tl.tensor
) -> tl.tensor:
    """Return the selected row that the n-th entry is in, by `bits` steps of a binary search, and its place in A."""
    low = tl.zeros_like(n)
    high = low + count - 1
    for _ in range(bits):
        middle = (low + high + 1) >> 1
        is_reached = tl.load(starts + middle) <= n
        low = tl.where(is_reached, middle, low)
        high = tl.where(is_reached, high, middle - 1)
    return low, tl.load(first + low) + n - tl.load(starts + low)
