"""The draw of `compiled.draw_neighbours` in Triton. Needs the package `triton`: import this module only on a GPU.

One kernel finds the self-loop of each row, one draws, and the host waits once, for the number of entries. Samples have
the same bits as those of the compiled loops. Verifier (tests/sampling/test_triton_sampling.py): the compiled loops, bit
by bit, in Triton's interpreter; the machine code for three GPUs.

Legend: R rows, E entries. A tile has a row of the sample in each row, and a draw in each column.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.random import GOLDEN, MIX_1, MIX_2, to_signed
from harness.strategies.sampling.vectorised import HALF, NEIGHBOUR_BITS

MAX_TILE_FANOUT = 127
"""The largest fan-out whose draws, with the kept entry, fit in a row of a tile."""
TILE = 128
"""The number of elements of a tile: one warp holds four in each thread, and exchanges them without a barrier."""
ROWS_PER_SEARCH = 128
VALUES = (torch.float32, torch.float64)
"""The types of values that the kernel rescales."""


def can_draw(A: Csr, fanout: int) -> bool:
    """Return True if `draw_neighbours` handles this fan-out and the type of A's values."""
    return fanout <= MAX_TILE_FANOUT and A.val.dtype in VALUES


def draw_neighbours(
    A: Csr, rows: Tensor, vertices: Tensor, fanout: int, key: tuple[int, int], *, loops: bool
) -> Csr:
    """Draw `fanout` neighbours of each vertex, as `sampler.sample_neighbours` does. All operands are on one GPU.

    `key` holds the two words that random bits are hashed with.
    """
    assert all(x.is_contiguous() for x in (*A[:3], rows, vertices))
    kept_R, rowptr = measure_rows(A, rows, vertices, fanout, loops=loops)
    entries = int(rowptr[-1])
    sample = Csr(rowptr, A.col.new_empty(entries), A.val.new_empty(entries), A.cols)
    if entries:
        fill_sample(A, rows, vertices, kept_R, fanout, key, sample)
    return sample


def measure_rows(
    A: Csr, rows: Tensor, vertices: Tensor, fanout: int, *, loops: bool
) -> tuple[Tensor, Tensor]:
    """Return the entry of each row that is always kept, else the row's end; and the row pointers of the sample."""
    kept_R, lengths = torch.empty_like(rows), rows.new_zeros(len(rows) + 1)
    bits = A.nnz.bit_length() if loops else 0
    if len(rows):
        find_kept_entries[(triton.cdiv(len(rows), ROWS_PER_SEARCH),)](
            *(A.rowptr, A.col, rows, vertices, kept_R, lengths, len(rows), fanout, bits),
            ROWS=ROWS_PER_SEARCH,
        )
    return kept_R, lengths.cumsum(0)


def fill_sample(
    A: Csr, rows: Tensor, vertices: Tensor, kept_R: Tensor, fanout: int, key: tuple[int, int], sample: Csr
) -> None:
    """Draw the entries of each row of the sample, and write their columns and rescaled values."""
    width = triton.next_power_of_2(fanout + 1)
    tile_rows = TILE // width
    draw_rows[(triton.cdiv(len(rows), tile_rows),)](
        *(*A[:3], rows, vertices, kept_R, *sample[:3], len(rows), *map(to_signed, key)),
        FANOUT=fanout,
        ROWS=tile_rows,
        WIDTH=width,
        num_warps=1,
    )


# The kernels. Numbers that change from step to step are not specialised, so that each kernel compiles once.

C_GOLDEN, C_MIX_1, C_MIX_2 = tl.constexpr(GOLDEN), tl.constexpr(MIX_1), tl.constexpr(MIX_2)
C_HALF, C_NEIGHBOUR_BITS = tl.constexpr(HALF), tl.constexpr(NEIGHBOUR_BITS)


@triton.jit(do_not_specialize=["count", "fanout", "bits"])
def find_kept_entries(
    rowptr: tl.tensor,
    col: tl.tensor,
    rows: tl.tensor,
    vertices: tl.tensor,
    kept: tl.tensor,
    lengths: tl.tensor,
    count: tl.tensor,
    fanout: tl.tensor,
    bits: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    """Write the entry of each row that is its self-loop, else the end of the row; and the length of its sample.

    `bits` steps of a binary search find the loop; without steps, no loop is kept.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = i < count
    row = tl.load(rows + i, mask=valid, other=0)
    vertex = tl.load(vertices + i, mask=valid, other=0)
    start = tl.load(rowptr + row, mask=valid, other=0).to(tl.int64)
    stop = tl.load(rowptr + row + 1, mask=valid, other=0).to(tl.int64)
    low = start
    high = stop
    for _ in range(bits):
        middle = (low + high) >> 1
        is_open = low < high
        reached = tl.load(col + middle, mask=is_open, other=0) >= vertex
        low = tl.where(is_open & (reached == 0), middle + 1, low)
        high = tl.where(is_open & reached, middle, high)
    is_loop = (low < stop) & (bits > 0)
    is_loop = is_loop & (tl.load(col + low, mask=is_loop, other=0) == vertex)
    tl.store(kept + i, tl.where(is_loop, low, stop), mask=valid)
    length = tl.minimum(stop - start, is_loop.to(tl.int64) + fanout)
    tl.store(lengths + i + 1, length, mask=valid)


@triton.jit(do_not_specialize=["count", "first", "second"])
def draw_rows(
    rowptr: tl.tensor,
    col: tl.tensor,
    val: tl.tensor,
    rows: tl.tensor,
    vertices: tl.tensor,
    kept: tl.tensor,
    out_rowptr: tl.tensor,
    out_col: tl.tensor,
    out_val: tl.tensor,
    count: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    FANOUT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Write the entries of each row of the sample: all entries of a short row; else the drawn ones and the kept one."""
    i = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    k = tl.arange(0, WIDTH)[None, :]
    valid = i < count
    row = tl.load(rows + i, mask=valid, other=0)
    start = tl.load(rowptr + row, mask=valid, other=0).to(tl.int64)
    stop = tl.load(rowptr + row + 1, mask=valid, other=0).to(tl.int64)
    loop = tl.load(kept + i, mask=valid, other=0)
    others = stop - start - (loop < stop).to(tl.int64)
    counter = tl.load(vertices + i, mask=valid, other=0) << C_NEIGHBOUR_BITS
    drawn = start + choose_by_floyd(counter, others, k, first, second, FANOUT)
    drawn += (drawn >= loop).to(tl.int64)
    drawn = tl.where(k < FANOUT, drawn, tl.where(k == FANOUT, loop, stop))
    is_long = others > FANOUT
    entry = tl.where(is_long, tl.sort(drawn, 1), start + k)
    inside = valid & (entry < stop)
    scale = tl.where(is_long & (entry != loop), others.to(tl.float64) / FANOUT, 1.0)
    value = tl.load(val + entry, mask=inside, other=0.0).to(tl.float64) * scale
    place = tl.load(out_rowptr + i, mask=valid, other=0) + k
    tl.store(out_col + place, tl.load(col + entry, mask=inside, other=0), mask=inside)
    tl.store(out_val + place, value.to(out_val.dtype.element_ty), mask=inside)


@triton.jit
def choose_by_floyd(
    counter: tl.tensor,
    of: tl.tensor,
    k: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    FANOUT: tl.constexpr,
) -> tl.tensor:
    """Choose FANOUT of the numbers 0 .. of - 1 for each row, unordered, in the first FANOUT columns of a tile."""
    last = of - FANOUT + k
    word = hash_index((counter + k).to(tl.uint64), first.to(tl.uint64), second.to(tl.uint64)) >> C_HALF
    chosen = ((word * (last + 1).to(tl.uint64)) >> C_HALF).to(tl.int64)
    for step in range(1, FANOUT):
        drawn = tl.sum(tl.where(k == step, chosen, 0), 1)[:, None]
        is_taken = tl.max(((chosen == drawn) & (k < step)).to(tl.int32), 1)[:, None]
        chosen = tl.where((k == step) & (is_taken > 0), last, chosen)
    return chosen


@triton.jit
def hash_index(index: tl.tensor, first: tl.tensor, second: tl.tensor) -> tl.tensor:
    """Return `random_bits` of indices. All operands are unsigned."""
    return mix_word(mix_word(index * C_GOLDEN + first) + second)


@triton.jit
def mix_word(z: tl.tensor) -> tl.tensor:
    """Apply the splitmix64 finaliser to words. Shifts of unsigned words are logical."""
    z = (z ^ (z >> 30)) * C_MIX_1
    z = (z ^ (z >> 27)) * C_MIX_2
    return z ^ (z >> 31)
