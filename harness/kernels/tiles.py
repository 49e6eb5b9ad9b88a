"""Compiled CPU loops over the entries of a sparse matrix, with a tile of a dense row in vector registers.

    Z_i = sum_j a_ij H_j, or added to Z_i      (multiply_rows)
    p_ij = X_i Y_j                             (dot_rows)

The loops are numba's. A tile is a type of its own, a few vectors of the processor, because numba keeps the sums of a
row in memory and loads and stores them at every entry (docs/develop/adr/0020-tiles-are-a-type-of-numba.md).

An element of Z is one chain of additions, in entry order and on one thread, so its bits depend neither on the number of
threads nor on other rows. Products are fused into additions (FMA), except in rows of one vector, whose time is the
latency of the chain: an addition is faster than an FMA.
Verifier (tests/kernels/test_multiply.py): scipy, and one chain of additions in Python for the bits.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.jit import compiled, emit_prefetch, run_over_rows

WIDE = llvmlite.binding.get_host_cpu_features().get("avx512f", False)
VECTOR_BYTES, MOST_VECTORS = (64, 16) if WIDE else (32, 8)
"""The size of a vector of sums, and the maximum number of vectors in a tile: half of the registers."""
LINE_BYTES = 64
FAR_BYTES = 8 << 20
"""The size from which a dense matrix does not stay in cache, so that its rows are prefetched."""
LINES_AHEAD = 192
"""The prefetch distance in cache lines of the dense matrix."""

KINDS = {
    torch.int32: np.int32(0),
    torch.int64: np.int64(0),
    torch.float32: np.float32(0),
    torch.float64: np.float64(0),
}
"""A value of each type, from which numba infers the type. No run on CPUs computes in other types."""
U = np.uint64
ONE = U(1)

Numbers = tuple[int, ...]


class TileColumns(NamedTuple):
    """The columns of one tile."""

    start: int
    tail: int
    """The first column of the last vector, counted from the start. It may overlap the vector before, so that no column
    is left over and no vector reads past its row."""
    lanes: Numbers
    vectors: Numbers
    """The numbers in a vector and the vectors, each as the length of a tuple: a compile-time constant."""


def multiply_into(A: Csr, H: Tensor, Z: Tensor, *, add: bool) -> None:
    """Compute Z = A H, or Z += A H. All operands are contiguous and on the CPU; A and H are not empty."""
    assert A.val.dtype == H.dtype == Z.dtype
    assert H.shape[0] == A.cols and Z.shape == (A.rows, H.shape[1])
    _run(multiply_rows, multiply_rows_parallel, A, (A.val, H, Z), add=add)


def inner_products_into(A: Csr, X: Tensor, Y: Tensor, products: Tensor) -> None:
    """Compute x_i y_j for every entry (i, j). Operands are as for `multiply_into`."""
    assert (len(X), len(Y), X.shape[1]) == (A.rows, A.cols, Y.shape[1])
    assert X.dtype == Y.dtype == products.dtype and products.shape == A.col.shape
    _run(dot_rows, dot_rows_parallel, A, (X, Y, products))


def _run(
    kernel: Any, parallel_kernel: Any, A: Csr, dense: tuple[Tensor, Tensor, Tensor], *, add: bool = False
) -> None:
    """Run a kernel for each tile of columns. The column indices of A select rows of the second dense operand."""
    gathered, operands = dense[1], (A.rowptr, A.col, *dense)
    assert all(map(Tensor.is_contiguous, operands))
    width, dtype = gathered.shape[1], gathered.dtype
    lines = -(-width * dtype.itemsize // LINE_BYTES)
    ahead = max(LINES_AHEAD // lines, 1) if gathered.nbytes >= FAR_BYTES else 0
    kinds = tuple([KINDS[operand.dtype] for operand in operands])
    adds, prefetches = (0,) * add, (0,) * (ahead > 0)
    for start, tail, lanes, vectors in tile_columns(width, dtype):
        numbers = (*map(Tensor.data_ptr, operands), A.nnz, width, start, tail, ahead)
        run_over_rows(kernel, parallel_kernel, A.rowptr, kinds, lanes, vectors, adds, prefetches, numbers)


@cache
def tile_columns(width: int, dtype: torch.dtype) -> list[TileColumns]:
    """Return the fewest tiles that cover a row; their widths differ by at most one vector."""
    lanes = min(VECTOR_BYTES // dtype.itemsize, 1 << width.bit_length() - 1)
    vectors = -(-width // lanes)
    tiles = -(-vectors // MOST_VECTORS)
    bounds = [vectors * tile // tiles for tile in range(tiles + 1)]
    return [
        TileColumns(
            first * lanes, min(end * lanes, width) - (first + 1) * lanes, (0,) * lanes, (0,) * (end - first)
        )
        for first, end in pairwise(bounds)
    ]


# Tiles as a type of numba, and operations on them in LLVM's instructions. They must be in the file of the loops,
# because numba's cache only watches the file itself.

I32, I64 = ir.IntType(32), ir.IntType(64)


class Tile(types.Type):
    """Some columns of a row in registers: `count` vectors of sums."""

    def __init__(self, number: Any, lanes: int, count: int) -> None:
        super().__init__(f"Tile({number}, {lanes}, {count})")
        self.number, self.lanes, self.count = number, lanes, count


@register_model(Tile)
class TileModel(models.PrimitiveModel):
    """An array of vectors, which LLVM keeps in registers."""

    def __init__(self, manager: Any, tile: Tile) -> None:
        vector = ir.VectorType(manager[tile.number].get_value_type(), tile.lanes)
        super().__init__(manager, tile, ir.ArrayType(vector, tile.count))  # type: ignore[no-untyped-call]


def emit_tile(builder: Any, vectors: list[Any]) -> Any:
    """Emit the tile of some vectors."""
    tile = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for place, vector in enumerate(vectors):
        tile = builder.insert_value(tile, vector, place)
    return tile


def emit_vectors(builder: Any, tile: Any) -> list[Any]:
    """Emit the vectors of a tile."""
    return [builder.extract_value(tile, place) for place in range(tile.type.count)]


def emit_addresses(builder: Any, target: Any, tile: Tile) -> list[Any]:
    """Emit the addresses of a tile's vectors, given the matrix, the place where the tile begins, and the tail."""
    matrix, place, tail = target
    first, vector = builder.gep(matrix, [place]), ir.VectorType(matrix.type.pointee, tile.lanes)
    columns = [*(I64(tile.lanes * number) for number in range(tile.count - 1)), tail]
    return [builder.bitcast(builder.gep(first, [column]), vector.as_pointer()) for column in columns]


def emit_repeated(builder: Any, x: Any, lanes: int) -> Any:
    """Emit a vector of equal numbers."""
    undefined = ir.Constant(ir.VectorType(x.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, x, I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, lanes), None))


def operation(define: Callable[..., Any]) -> Any:
    """Return the operation of compiled loops that a function defines by its types and by a function that emits it."""
    return intrinsic(define)


@operation
def to_pointers(_typing: Any, addresses: Any, kinds: Any) -> Any:
    """Return addresses as pointers to the kinds."""
    pointers = types.Tuple([types.CPointer(kind) for kind in kinds])  # type: ignore[no-untyped-call]

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(pointers)
        values = ir.Constant(kind, ir.Undefined)
        for place, pointer in enumerate(kind.elements):
            address = builder.extract_value(arguments[0], place)
            values = builder.insert_value(values, builder.inttoptr(address, pointer), place)
        return values

    return pointers(addresses, kinds), emit


@operation
def to_unsigned(_typing: Any, numbers: Any) -> Any:
    """Return non-negative numbers as indices, which numba does not count from the end."""
    indices = types.UniTuple(types.uint64, numbers.count)  # type: ignore[no-untyped-call]
    return indices(numbers), lambda _context, _builder, _signature, arguments: arguments[0]


@operation
def zero_tile(_typing: Any, number: Any, lanes: Any, vectors: Any) -> Any:
    """Return a tile of zeros for matrices of a type."""
    tile = Tile(number, lanes.count, vectors.count)
    return tile(number, lanes, vectors), lambda context, *_: ir.Constant(context.get_value_type(tile), None)


@operation
def load(_typing: Any, matrix: Any, place: Any, tail: Any, tile: Any) -> Any:
    """Return a tile like another one from a place of a matrix."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        addresses, align = emit_addresses(builder, arguments[:3], tile), matrix.dtype.bitwidth // 8
        return emit_tile(builder, [builder.load(address, align=align) for address in addresses])

    return tile(matrix, place, tail, tile), emit


@operation
def store(_typing: Any, matrix: Any, place: Any, tail: Any, tile: Any) -> Any:
    """Store a tile at a place of a matrix."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        addresses, align = emit_addresses(builder, arguments[:3], tile), matrix.dtype.bitwidth // 8
        for address, vector in zip(addresses, emit_vectors(builder, arguments[3]), strict=True):
            builder.store(vector, address, align=align)
        return context.get_dummy_value()

    return types.void(matrix, place, tail, tile), emit


@operation
def prefetch(_typing: Any, matrix: Any, place: Any, tail: Any, tile: Any) -> Any:
    """Prefetch all cache lines of a tile at a place of a matrix, whatever its alignment."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        first = builder.gep(arguments[0], [arguments[1]])
        for column in range(0, tile.count * tile.lanes, LINE_BYTES * 8 // matrix.dtype.bitwidth):
            emit_prefetch(builder, builder.gep(first, [I64(column)]))
        emit_prefetch(builder, builder.gep(first, [builder.add(arguments[2], I64(tile.lanes - 1))]))
        return context.get_dummy_value()

    return types.void(matrix, place, tail, tile), emit


@operation
def add_product(_typing: Any, total: Any, a: Any, x: Any) -> Any:
    """Return total + a x."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sums, vectors = emit_vectors(builder, arguments[0]), emit_vectors(builder, arguments[2])
        factor = emit_repeated(builder, arguments[1], total.lanes)
        flags = ("contract",) if total.count > 1 else ()
        added = [
            builder.fadd(each, builder.fmul(factor, vector, flags=flags), flags=flags)
            for each, vector in zip(sums, vectors, strict=True)
        ]
        return emit_tile(builder, added)

    return total(total, a, x), emit


@operation
def inner_product(_typing: Any, x: Any, y: Any, tail: Any) -> Any:
    """Return x y. Columns of the last vector that overlap the one before count once."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pairs = list(zip(*(emit_vectors(builder, tile) for tile in arguments[:2]), strict=True))
        overlap = builder.sub(I64(x.lanes * (x.count - 1)), arguments[2])
        lanes = ir.Constant(ir.VectorType(I64, x.lanes), [I64(lane) for lane in range(x.lanes)])
        own = builder.icmp_unsigned(">=", lanes, emit_repeated(builder, overlap, x.lanes))
        last = builder.fmul(*pairs.pop())
        total = builder.select(own, last, ir.Constant(last.type, None))
        for pair in pairs:
            total = builder.fadd(total, builder.fmul(*pair, flags=("contract",)), flags=("contract",))
        while total.type.count > 1:
            half = total.type.count // 2
            low, high = (
                ir.Constant(ir.VectorType(I32, half), [I32(first + lane) for lane in range(half)])
                for first in (0, half)
            )
            total = builder.fadd(*(builder.shuffle_vector(total, total, part) for part in (low, high)))
        return builder.extract_element(total, I32(0))

    return x.number(x, y, tail), emit


@operation
def keep_rolled(_typing: Any) -> Any:
    """Do nothing, in a loop that must not be unrolled because it often ends early: LLVM copies no convergent call."""

    def emit(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        nothing = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "", side_effect=True)
        builder.call(nothing, [], attrs=("convergent",))
        return context.get_dummy_value()

    return types.void(), emit


# The compiled loops.
#
# `kinds` are values of the types of the five operands. The lengths of the next four tuples are compile-time constants:
# the numbers in a vector, the vectors of a tile, 1 to add to Z, and 1 to prefetch. `numbers` are the addresses of the
# operands, the number of entries, the width of a row, the start and the tail of the tile, and the prefetch distance in
# entries. Tuples are flat, because numba's parallel loops reject nested ones.


@compiled(nogil=True)
def multiply_rows(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    adds: Numbers,
    prefetches: Numbers,
    numbers: Numbers,
    rows: Numbers,
) -> None:
    """Compute one tile of columns of Z, in rows first .. end - 1."""
    rowptr, col, val, H, Z = to_pointers(numbers[:5], kinds)
    entries, width, start, tail, ahead = to_unsigned(numbers[5:])
    zero = zero_tile(kinds[3], lanes, vectors)
    for i in range(U(rows[0]), U(rows[1])):
        e, end, place = U(rowptr[i]), U(rowptr[i + ONE]), i * width + start
        if e < end or len(adds) == 0:  # most rows of a small block are empty
            sums = load(Z, place, tail, zero) if len(adds) else zero
            while e < end:
                keep_rolled()
                if len(prefetches):
                    prefetch(H, U(col[min(e + ahead, entries - ONE)]) * width + start, tail, zero)
                sums = add_product(sums, val[e], load(H, U(col[e]) * width + start, tail, zero))
                e += ONE
            store(Z, place, tail, sums)


@compiled(nogil=True)
def dot_rows(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    _adds: Numbers,
    prefetches: Numbers,
    numbers: Numbers,
    rows: Numbers,
) -> None:
    """Compute one tile's part of the inner products of rows first .. end - 1. Tiles other than the first add."""
    rowptr, col, X, Y, products = to_pointers(numbers[:5], kinds)
    entries, width, start, tail, ahead = to_unsigned(numbers[5:])
    zero = zero_tile(kinds[3], lanes, vectors)
    for i in range(U(rows[0]), U(rows[1])):
        e, end, x = U(rowptr[i]), U(rowptr[i + ONE]), load(X, i * width + start, tail, zero)
        while e < end:
            keep_rolled()
            if len(prefetches):
                prefetch(Y, U(col[min(e + ahead, entries - ONE)]) * width + start, tail, zero)
            y = load(Y, U(col[e]) * width + start, tail, zero)
            products[e] = (products[e] if start else kinds[4]) + inner_product(x, y, tail)
            e += ONE


@compiled(parallel=True)
def multiply_rows_parallel(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    adds: Numbers,
    prefetches: Numbers,
    numbers: Numbers,
    bounds: Any,
) -> None:
    """`multiply_rows` with the rows divided among threads."""
    for share in numba.prange(bounds.size - 1):
        rows = bounds[share], bounds[share + 1]
        multiply_rows(kinds, lanes, vectors, adds, prefetches, numbers, rows)


@compiled(parallel=True)
def dot_rows_parallel(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    adds: Numbers,
    prefetches: Numbers,
    numbers: Numbers,
    bounds: Any,
) -> None:
    """`dot_rows` with the rows divided among threads."""
    for share in numba.prange(bounds.size - 1):
        rows = bounds[share], bounds[share + 1]
        dot_rows(kinds, lanes, vectors, adds, prefetches, numbers, rows)
