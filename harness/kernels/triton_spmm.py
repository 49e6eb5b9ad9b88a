"""Sparse-dense products on GPUs, in Triton. Needs the package `triton`: import this module only on a GPU.

    Z_i = sum_j a_ij H_j, or added to Z_i

A program computes a tile of Z: some columns of one row or of several rows. An element of Z is one chain of FMAs in
entry order; bf16 is summed in float32 and rounded once. A long row (`harness.kernels.row_schedule`) has one chain for
each piece, and a last chain over the sums of the pieces. There are no atomics, so the result does not depend on the
order in which programs run. If the width is not a multiple of the widest vector, H may be copied into padded rows,
which changes no chain. Verifier (tests/kernels/test_triton_spmm.py): scipy; the chains in Python, bit by bit; the
machine code for two GPUs.
"""

from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr
from harness.kernels.row_schedule import ENTRIES_PER_ITERATION, RowSchedule

WARPS = 4
THREADS = 32 * WARPS
VECTOR_BYTES = 16
"""The widest load of a thread."""
LEAST_ENTRIES, LEAST_ENTRIES_PER_ROW = 1 << 19, 4
"""The fewest entries of A, in total and per row of H, for which H is copied into padded rows.

They are estimates from times of an H200: with fewer entries in total, launching the copy takes longer than it saves.
"""
SUMS = {torch.float32: torch.float32, torch.float64: torch.float64, torch.bfloat16: torch.float32}
"""The dtype of sums."""
TRITON = {torch.float32: tl.float32, torch.float64: tl.float64}

assert ENTRIES_PER_ITERATION == 4, "an iteration of the loop below adds four entries"


class TileShape(NamedTuple):
    """Compile-time constants of a kernel."""

    rows: int
    cols: int
    vector: int
    """The number of adjacent elements that a thread loads at once."""


def tile_shape(width: int, dtype: torch.dtype) -> TileShape:
    """Return the tile for an H of this width. The vector divides the width, so that every row is aligned."""
    vector = widest_vector(width, dtype)
    # With at least two threads per row, the compiler passes columns and values without shared memory.
    cols = max(triton.next_power_of_2(width), 2 * vector)
    cols = min(cols, 32 * VECTOR_BYTES // dtype.itemsize)
    return TileShape(max(THREADS * vector // cols, 1), cols, vector)


def widest_vector(width: int, dtype: torch.dtype) -> int:
    """Return the number of adjacent elements that can be accessed at once in every row of this width."""
    return gcd(width, VECTOR_BYTES // dtype.itemsize)


def pad_rows(H: Tensor, entries: int) -> Tensor:
    """Return H, or a copy whose rows are padded with zeros to whole vectors, if this saves time in a product."""
    width, widest = H.shape[1], VECTOR_BYTES // H.itemsize
    loads, fewest_loads = width // widest_vector(width, H.dtype), triton.cdiv(width, widest)
    if loads == fewest_loads or entries < max(LEAST_ENTRIES, LEAST_ENTRIES_PER_ROW * len(H)):
        return H
    return pad(H, (0, fewest_loads * widest - width))


def multiply_into(A: Csr, H: Tensor, Z: Tensor, schedule: RowSchedule, *, add: bool) -> None:
    """Compute Z = A H, or Z += A H. All operands are contiguous and on one GPU.

    Allocates a temporary row of sums for each piece of a long row, and the copy of H that `pad_rows` may make.
    """
    width = H.shape[1]
    assert A.val.dtype == H.dtype == Z.dtype
    assert H.shape[0] == A.cols and Z.shape == (A.rows, width)
    assert all(x.is_contiguous() for x in (*A[:3], H, Z))
    if A.nnz * width == 0:
        if not add:
            Z.zero_()
        return
    H = pad_rows(H, A.nnz)
    tile, vector = tile_shape(H.shape[1], H.dtype), widest_vector(width, H.dtype)
    stride, vectors, blocks = H.shape[1] // tile.vector, width // vector, triton.cdiv(width, tile.cols)
    options = {"COLS": tile.cols, "VECTOR": vector, "SUM": TRITON[SUMS[H.dtype]]}
    options |= {"num_warps": WARPS, "num_stages": 1}

    def launch(result: Tensor, rows: Tensor, *, pieces: bool) -> None:
        sum_rows[triton.cdiv(len(rows), tile.rows), blocks](
            *(A.rowptr, A.col, A.val, H, result, rows, schedule.piece_number),
            *(len(rows), A.nnz, stride, vectors),
            ROWS=tile.rows,
            H_VECTOR=tile.vector,
            PIECE=schedule.piece if pieces else 0,
            ADD=add and not pieces,
            **options,
        )

    if schedule.long_rows:
        sums = H.new_empty((len(schedule.piece_row), width), dtype=SUMS[H.dtype])
        launch(sums, schedule.piece_row, pieces=True)
        operands = sums, Z, schedule.order, schedule.first_piece, vectors
        join_pieces[schedule.long_rows, blocks](*operands, ADD=add, **options)
    end = schedule.nonempty_rows if add else None  # an empty row adds 0
    others = schedule.order[schedule.long_rows : end]
    if len(others):
        launch(Z, others, pieces=False)


# The kernels. Widths are counted in vectors, which tells the compiler the alignment of loads and stores.


@triton.jit
def row_bounds(
    rowptr: tl.tensor, rows: tl.tensor, numbers: tl.tensor, task: tl.tensor, PIECE: tl.constexpr
) -> tl.tensor:
    """Return the row of a task, its first entry, and the number of entries to add: of the row, or of a piece of it."""
    row = tl.load(rows + task).to(tl.int64)
    first = tl.load(rowptr + row).to(tl.int64)
    length = tl.load(rowptr + row + 1).to(tl.int64) - first
    if PIECE > 0:
        skipped = tl.load(numbers + task).to(tl.int64) * PIECE
        first += skipped
        length = tl.minimum(length - skipped, PIECE)
    return row, first, length.to(tl.int32)


@triton.jit
def read_entries(
    col: tl.tensor,
    val: tl.tensor,
    H: tl.tensor,
    stride: tl.tensor,
    e: tl.tensor,
    inside: tl.tensor,
    f: tl.tensor,
    SUM: tl.constexpr,
) -> tl.tensor:
    """Load one entry's value for each row of the tile and the row of H that it selects; zeros unless `inside`."""
    selected = tl.load(col + e).to(tl.int64)
    value = tl.load(val + e).to(SUM)
    h = tl.load(H + selected[:, None] * stride + f, mask=inside & (f < stride), other=0.0).to(SUM)
    return tl.where(inside, value[:, None], 0.0), h


@triton.jit
def sum_rows(
    rowptr: tl.tensor,
    col: tl.tensor,
    val: tl.tensor,
    H: tl.tensor,
    result: tl.tensor,
    rows: tl.tensor,
    numbers: tl.tensor,
    tasks: tl.tensor,
    entries: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    H_VECTOR: tl.constexpr,
    VECTOR: tl.constexpr,
    PIECE: tl.constexpr,
    ADD: tl.constexpr,
    SUM: tl.constexpr,
) -> None:
    """Compute rows of Z; or, with PIECE > 0, the sum of each piece into a separate row.

    `stride` is the width of H.
    """
    f = (tl.program_id(1) * COLS + tl.arange(0, COLS))[None, :]
    within = f < width * VECTOR
    task = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = (task < tasks)[:, None]
    task = tl.minimum(task, tasks - 1)
    # Called twice, because Triton 3.7 does not compile a vector that both addresses loads and masks a tile.
    _, first, _ = row_bounds(rowptr, rows, numbers, task, PIECE)
    row, _, length = row_bounds(rowptr, rows, numbers, task[:, None], PIECE)
    place = result + (task[:, None] if PIECE > 0 else row) * width * VECTOR + f
    total = tl.load(place, mask=valid & within, other=0.0).to(SUM) if ADD else tl.full((ROWS, COLS), 0.0, SUM)
    stride *= H_VECTOR
    last = entries - 1
    for k in range(0, tl.max(length), 4):
        # All reads come before the first sum, which waits for them.
        e0 = tl.minimum(first + k, last)
        e1 = tl.minimum(first + k + 1, last)
        e2 = tl.minimum(first + k + 2, last)
        e3 = tl.minimum(first + k + 3, last)
        a0, h0 = read_entries(col, val, H, stride, e0, k < length, f, SUM)
        a1, h1 = read_entries(col, val, H, stride, e1, k + 1 < length, f, SUM)
        a2, h2 = read_entries(col, val, H, stride, e2, k + 2 < length, f, SUM)
        a3, h3 = read_entries(col, val, H, stride, e3, k + 3 < length, f, SUM)
        total += a0 * h0
        total += a1 * h1
        total += a2 * h2
        total += a3 * h3
    tl.store(place, total.to(result.dtype.element_ty), mask=valid & within)


@triton.jit
def join_pieces(
    sums: tl.tensor,
    Z: tl.tensor,
    rows: tl.tensor,
    first_piece: tl.tensor,
    width: tl.tensor,
    COLS: tl.constexpr,
    VECTOR: tl.constexpr,
    ADD: tl.constexpr,
    SUM: tl.constexpr,
) -> None:
    """Compute the long rows of Z by adding the sums of their pieces in order."""
    number = tl.program_id(0)
    f = tl.program_id(1) * COLS + tl.arange(0, COLS)
    within = f < width * VECTOR
    place = Z + tl.load(rows + number).to(tl.int64) * width * VECTOR + f
    total = tl.load(place, mask=within, other=0.0).to(SUM) if ADD else tl.full((COLS,), 0.0, SUM)
    first = tl.load(first_piece + number).to(tl.int64)
    end = tl.load(first_piece + number + 1).to(tl.int64)
    for piece in range(first, end):
        total += tl.load(sums + piece * width * VECTOR + f, mask=within, other=0.0)
    tl.store(place, total.to(Z.dtype.element_ty), mask=within)
