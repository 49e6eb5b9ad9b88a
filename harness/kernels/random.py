"""Counter-based random numbers: each is a pure function of (seed, purpose, index).

Index i gives the same bits in any order of requests and on any rank. Two rounds of the splitmix64 finaliser, keyed by a
hash of seed and purpose, map an index to 64 bits. There are three bitwise-identical implementations: torch operations
(on any device, and on meta tensors); a compiled loop for large draws on a CPU; one kernel for masks on a GPU. Normals
are computed on the CPU only, because logarithms differ between devices. Independent draws must use different purposes
or disjoint ranges of indices.
Verifier (tests/kernels/test_random.py): Python's integers.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.library import Library

from harness.base.device import GPU_KERNELS, elementwise_kernel
from harness.kernels.jit import compiled

# The constants of splitmix64 (Steele, Lea and Flood, 2014).

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


NUMBA_THRESHOLD = 1 << 18
"""The smallest draw that uses the compiled loop; for smaller ones, compilation costs more than it saves."""


class Purpose(StrEnum):
    """What a random number is used for. Draws for different purposes are independent."""

    WEIGHTS = "weights"
    FEATURES = "features"
    LABELS = "labels"
    SPLIT = "split"
    EDGES = "edges"
    PERMUTATION = "permutation"
    DROPOUT = "dropout"
    SAMPLE = "sample"
    PARTITION = "partition"
    ROUNDING = "rounding"
    TEST = "test"


UNIFORM_BITS = {torch.float64: 53, torch.float32: 24}
"""The number of random bits in a uniform number: the precision of its dtype."""

Index = Tensor | range
"""The indices of random numbers: an int64 tensor of any shape, or a range."""

Seed = int | tuple[int, ...]
"""An integer or a tuple of integers."""

LOW_HALF = (1 << 32) - 1

LANES, LANE_BITS = 4, 16
"""Masks split 64 random bits into lanes: the number of lanes, and the bits of a lane."""


def random_bits(seed: Seed, purpose: Purpose, index: Index) -> Tensor:
    """Return 64 random bits for each index, as int64."""
    first, second = derive_key(seed, purpose)
    if isinstance(index, range):
        index = torch.arange(index.start, index.stop, index.step)
    if type(index) is Tensor and index.device.type == "cpu" and index.numel() >= NUMBA_THRESHOLD:
        return torch.from_numpy(random_bits_numba(index.numpy(), first, second))
    return random_bits_torch(index, first, second)


def derive_key(seed: Seed, purpose: Purpose) -> tuple[int, int]:
    """Derive from seed and purpose the key that indices are hashed with: two 64-bit words."""
    digest = blake2b(f"{seed} {purpose}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def derive_signed_key(seed: Seed, purpose: Purpose) -> tuple[int, int]:
    """Return the key as two int64 numbers with the same bits."""
    first, second = derive_key(seed, purpose)
    return int(to_signed(first)), int(to_signed(second))


def random_bits_torch(index: Tensor, first: int | Tensor, second: int | Tensor) -> Tensor:
    """`random_bits` with torch operations, using one key or a key per index.

    int64 products wrap like unsigned ones.
    """
    return mix(mix(index * to_signed(GOLDEN) + to_signed(first)) + to_signed(second))


def uniform(seed: Seed, purpose: Purpose, index: Index, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return uniform random numbers in [0, 1), with 53 random bits for float64 and 24 for float32."""
    kept = UNIFORM_BITS[dtype]
    return shift_right(random_bits(seed, purpose, index), 64 - kept).to(dtype) * 0.5**kept


def integers(seed: Seed, purpose: Purpose, index: Index, high: int) -> Tensor:
    """Return random integers in [0, high), as int64. The probabilities of values differ by at most high / 2^53."""
    assert 0 < high < 1 << 40
    return (uniform(seed, purpose, index) * high).long()


def normal(seed: Seed, purpose: Purpose, index: Index, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal numbers, by the inverse CDF at the midpoints of 2^52 intervals."""
    from scipy.special import ndtri

    midpoints = (shift_right(random_bits(seed, purpose, index), 12).to(torch.float64) + 0.5) * 0.5**52
    return torch.from_numpy(ndtri(midpoints.numpy())).to(dtype)


def rectangle_index(rows: Index, cols: range, total_cols: int, start: int = 0) -> Tensor:
    """Return the indices of a rectangle of a matrix whose elements are numbered row by row from `start`."""
    assert cols.step == 1
    if isinstance(rows, range):
        assert start + rows.stop * total_cols < 1 << 63
        rows = torch.arange(rows.start, rows.stop, rows.step)
    return start + rows[:, None] * total_cols + torch.arange(cols.start, cols.stop)


def uniform_rectangle(
    seed: int,
    purpose: Purpose,
    rows: Index,
    cols: range,
    total_cols: int,
    start: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return a rectangle of a uniform random matrix, without generating the rest of the matrix."""
    shape = len(rows), len(cols)
    if isinstance(rows, range):
        assert start + rows.stop * total_cols < 1 << 63
        if rows.step == 1 and cols == range(total_cols):  # contiguous indices: generate them as one row
            start, rows, cols = start + rows.start * total_cols, range(1), range(len(rows) * total_cols)
        rows = torch.arange(rows.start, rows.stop, rows.step)
    if type(rows) is Tensor and rows.device.type == "cpu" and len(rows) * len(cols) >= NUMBA_THRESHOLD:
        drawn = torch.empty(len(rows), len(cols), dtype=dtype)
        corner = rows.numpy(), total_cols, start + cols.start
        fill_uniform(corner, UNIFORM_BITS[dtype], derive_key(seed, purpose), drawn.numpy())
        return drawn.view(shape)
    return uniform(seed, purpose, rectangle_index(rows, cols, total_cols, start), dtype).view(shape)


def random_mask(seed: Seed | Tensor, purpose: Purpose, rows: Tensor, cols: range, threshold: int) -> Tensor:
    """Return a rectangle of a random boolean matrix, true with probability `threshold` / 2^16, on the device of `rows`.

    Four columns share 64 bits, and the matrix may have up to 2^22 columns. The rectangle is one operator, so a replay
    counts one kernel, as a GPU launches. On a GPU, `seed` may be a tensor that holds the key (`derive_signed_key`).
    """
    assert cols.step == 1 and cols.stop <= 1 << 22 and 0 < threshold <= 1 << LANE_BITS
    if isinstance(seed, Tensor):
        first_1, second_1 = seed.split(1)
        return mask_gpu(rows, cols.start, cols.stop, first_1, second_1, threshold)
    first, second = derive_signed_key(seed, purpose)
    drawn: Tensor = MASK(rows, cols.start, cols.stop, first, second, threshold)
    return drawn


def random_order(seed: Seed, purpose: Purpose, index: range) -> Tensor:
    """Return the permutation of 0 .. len(index) - 1 that sorts the random bits of these indices."""
    return torch.argsort(random_bits(seed, purpose, index), stable=True)


def mix(z: Tensor) -> Tensor:
    """Apply the splitmix64 finaliser: each input bit affects each output bit."""
    z = (z ^ shift_right(z, 30)) * to_signed(MIX_1)
    z = (z ^ shift_right(z, 27)) * to_signed(MIX_2)
    return z ^ shift_right(z, 31)


def shift_right(z: Tensor, by: int) -> Tensor:
    """Shift right logically. `>>` would repeat the sign bit."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def to_signed(word: int | Tensor) -> int | Tensor:
    """Return the int64 with the same 64 bits. A tensor is returned unchanged."""
    return word - (1 << 64) if isinstance(word, int) and word >> 63 > 0 else word


def multiply_high(x: Tensor, y: Tensor) -> Tensor:
    """Return bits 64 to 127 of the unsigned product x y, from four products of halves, as `jit.multiply_high` does."""
    high_x, low_x, high_y, low_y = shift_right(x, 32), x & LOW_HALF, shift_right(y, 32), y & LOW_HALF
    middle = high_x * low_y + shift_right(low_x * low_y, 32)
    return high_x * high_y + shift_right(middle, 32) + shift_right(low_x * high_y + (middle & LOW_HALF), 32)


# Implementations of masks. All generate whole words and drop the columns outside start .. stop - 1.


def mask_cpu(rows: Tensor, start: int, stop: int, first: int, second: int, threshold: int) -> Tensor:
    """`random_mask` on a CPU. Large masks use a compiled loop."""
    if len(rows) * (stop - start) < NUMBA_THRESHOLD:
        return mask_torch(rows, start, stop, first, second, threshold)
    first, second = first % (1 << 64), second % (1 << 64)
    return torch.from_numpy(mask_numba(rows.numpy(), start, stop, first, second, threshold))


def mask_torch(rows: Tensor, start: int, stop: int, first: int, second: int, threshold: int) -> Tensor:
    """`random_mask` with torch operations, on any device."""
    blocks = torch.arange(start // LANES, -(-stop // LANES), device=rows.device)
    words = random_bits_torch(rows[:, None] * (1 << 20) + blocks, first, second)
    # On a little-endian machine the lanes are in memory in order, from the lowest bits up. Flip their sign bits.
    half = 1 << (LANE_BITS - 1)
    drawn = words.contiguous().view(torch.int16).bitwise_xor_(-half)
    skipped = start % LANES
    return drawn[:, skipped : skipped + stop - start].le(threshold - half - 1)


def mask_gpu(
    rows: Tensor, start: int, stop: int, first: int | Tensor, second: int | Tensor, threshold: int
) -> Tensor:
    """`random_mask` on a GPU in one pass: each thread computes eight one-byte booleans and stores them as one int64."""
    bytes_of_row = torch.arange(start // BOOLS_PER_WORD, -(-stop // BOOLS_PER_WORD), device=rows.device)
    if isinstance(first, Tensor):
        drawn = _mask_kernel_with_device_key()(
            rows[:, None], bytes_of_row, first, second, threshold=threshold
        )
    else:
        drawn = _mask_kernel()(rows[:, None], bytes_of_row, first=first, second=second, threshold=threshold)
    skipped = start % BOOLS_PER_WORD
    return drawn.view(torch.bool)[:, skipped : skipped + stop - start]


@cache
def _mask_kernel() -> Callable[..., Tensor]:
    return elementwise_kernel(MASK_SOURCE, first=0, second=0, threshold=0)


@cache
def _mask_kernel_with_device_key() -> Callable[..., Tensor]:
    """Return the same kernel, reading its key from device memory."""
    return elementwise_kernel(MASK_SOURCE, threshold=0)


BOOLS_PER_WORD = 8
"""The number of one-byte booleans in 64 bits."""
MASK_SOURCE = f"""
template <typename T> T eight_truths(T row, T column, T first, T second, T threshold) {{
  unsigned long long truths = 0;
  for (int word = 0; word < 2; ++word) {{
    unsigned long long z = (unsigned long long)row * 1048576u + 2u * (unsigned long long)column + word;
    z = z * {GOLDEN}ull + (unsigned long long)first;
    for (int round = 0; round < 2; ++round) {{
      z = (z ^ (z >> 30)) * {MIX_1}ull;
      z = (z ^ (z >> 27)) * {MIX_2}ull;
      z = z ^ (z >> 31);
      if (round == 0) z += (unsigned long long)second;
    }}
    for (int lane = 0; lane < 4; ++lane)
      if (((z >> (16 * lane)) & 65535u) < (unsigned long long)threshold) truths |= 1ull << (8 * (4 * word + lane));
  }}
  return (T)truths;
}}
"""
"""C++ for eight adjacent booleans: `random_bits_torch` of two blocks of four lanes, compared with the threshold."""


def _mask_meta(rows: Tensor, start: int, stop: int, *_key: int) -> Tensor:
    """Allocate as much memory as the mask takes on a GPU, where rows are padded to whole words."""
    skipped = start % BOOLS_PER_WORD
    words = -(-stop // BOOLS_PER_WORD) - start // BOOLS_PER_WORD
    drawn = rows.new_empty((len(rows), BOOLS_PER_WORD * words), dtype=torch.bool)
    return drawn[:, skipped : skipped + stop - start]


OPERATORS = Library("harness", "FRAGMENT")
OPERATORS.define("mask(Tensor rows, int start, int stop, int first, int second, int threshold) -> Tensor")
OPERATORS.impl("mask", mask_cpu, "CPU")
OPERATORS.impl("mask", mask_gpu, GPU_KERNELS)
OPERATORS.impl("mask", _mask_meta, "Meta")
MASK = torch.ops.harness.mask.default


# The compiled version of `random_bits_torch`: one pass over the indices, a nanosecond each.

G, M1, M2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
S20, LANE = np.uint64(20), np.uint64(0xFFFF)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def random_bits_numba(index: Any, first: int, second: int) -> Any:
    """Return 64 random bits for each element of an int64 array, as int64."""
    flat = np.ascontiguousarray(index).reshape(-1).view(np.uint64)
    return _hash_indices(flat, np.uint64(first), np.uint64(second)).view(np.int64).reshape(index.shape)


def mask_numba(rows: Any, start: int, stop: int, first: int, second: int, threshold: int) -> Any:
    """Return the mask of `random_mask`."""
    rows = np.ascontiguousarray(rows).view(np.uint64)
    return _fill_mask(rows, start, stop, np.uint64(first), np.uint64(second), np.uint64(threshold))


def fill_uniform(corner: tuple[Any, int, int], kept: int, key: tuple[int, int], out: Any) -> None:
    """Fill `out` with the numbers of `uniform_rectangle`, without temporaries.

    `corner` is the rows, the width of the whole matrix, and the index of the first column in row 0.
    """
    rows, total_cols, start = corner
    rows = np.ascontiguousarray(rows).view(np.uint64)
    first, second = (np.uint64(word) for word in key)
    form = np.uint64(64 - kept), out.dtype.type(0.5**kept)
    _fill_uniform((rows, np.uint64(total_cols), np.uint64(start)), form, (first, second), out)


@compiled(nogil=True)
def hash_index(index: Any, first: Any, second: Any) -> Any:
    """Return the random bits of one index. All arguments are unsigned."""
    return mix_word(mix_word(index * G + first) + second)


@compiled(nogil=True)
def mix_word(z: Any) -> Any:
    """Apply the splitmix64 finaliser to one word."""
    z = (z ^ (z >> S30)) * M1
    z = (z ^ (z >> S27)) * M2
    return z ^ (z >> S31)


@compiled(nogil=True)
def _hash_indices(index: Any, first: Any, second: Any) -> Any:
    out = np.empty_like(index)
    for i in range(index.size):
        out[i] = hash_index(index[i], first, second)
    return out


@compiled(nogil=True)
def _fill_uniform(
    corner: tuple[Any, Any, Any], form: tuple[Any, Any], key: tuple[Any, Any], out: Any
) -> None:
    rows, total_cols, start = corner
    (shift, unit), (first, second) = form, key
    for i in range(np.uint64(rows.size)):
        index = start + rows[i] * total_cols
        row = out[i]
        for k in range(np.uint64(row.size)):
            row[k] = type(unit)(np.int64(hash_index(index + k, first, second) >> shift)) * unit


@compiled(nogil=True)
def _fill_mask(rows: Any, start: int, stop: int, first: Any, second: Any, threshold: Any) -> Any:
    out = np.empty((rows.size, stop - start), dtype=np.bool_)
    for i in range(rows.size):
        row = rows[i] << S20
        for block in range(start // 4, (stop + 3) // 4):
            word = hash_index(row + np.uint64(block), first, second)
            for lane in range(max(start - 4 * block, 0), min(stop - 4 * block, 4)):
                out[i, 4 * block + lane - start] = ((word >> np.uint64(16 * lane)) & LANE) < threshold
    return out
