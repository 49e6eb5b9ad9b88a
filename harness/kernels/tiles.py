"""Compiled CPU loops over the entries of a sparse matrix, with a tile of a dense row in vector registers.

    Z_i = sum_j a_ij H_j, or added to Z_i      (multiply_rows)
    p_ij = X_i Y_j                             (dot_rows)

A tile is a few vectors wide. The last vector ends at the tile's last column and may overlap the one before, so no
column is left over and no vector reads past its row. The loops are emitted as LLVM vector instructions, because numba's
own loop over columns would load and store the sums of a row at every entry.

An element of Z is one chain of additions, in entry order and on one thread, so its bits depend neither on the number of
threads nor on other rows. Products are fused into additions (FMA), except in rows of one vector, whose time is the
latency of the chain: an addition is faster than an FMA. Both are exact for bf16.
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
from numba.extending import intrinsic
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
    torch.bfloat16: np.int16(0),
}
"""A value of each type, from which numba infers the type; numpy has no bf16."""

Numbers = tuple[int, ...]
Emitted = list[Any]
"""LLVM values."""
Body = Callable[[Any, Emitted], Emitted]
"""A loop body: maps the index and the loop-carried values to the next loop-carried values."""


class TileColumns(NamedTuple):
    """The columns of one tile. `lanes` and `vectors` are compile-time constants, as the lengths of two tuples."""

    start: int
    tail: int
    """The first column of the last vector, counted from the start."""
    lanes: Numbers
    vectors: Numbers


def multiply_into(A: Csr, H: Tensor, Z: Tensor, *, add: bool) -> None:
    """Compute Z = A H, or Z += A H. All operands are contiguous and on the CPU; A and H are not empty."""
    assert A.val.dtype == H.dtype == Z.dtype
    assert H.shape[0] == A.cols and Z.shape == (A.rows, H.shape[1])
    _run(multiply_rows, multiply_rows_parallel, A, (A.val, H, Z), add)


def inner_products_into(A: Csr, X: Tensor, Y: Tensor, products: Tensor) -> None:
    """Compute x_i y_j for every entry (i, j), in the dtype of the sums. Operands are as for `multiply_into`."""
    assert (len(X), len(Y), X.shape[1]) == (A.rows, A.cols, Y.shape[1])
    assert X.dtype == Y.dtype and products.shape == A.col.shape
    _run(dot_rows, dot_rows_parallel, A, (X, Y, products), False)


def _run(kernel: Any, parallel_kernel: Any, A: Csr, dense: tuple[Tensor, Tensor, Tensor], add: bool) -> None:
    """Run a kernel for each tile of columns. The column indices of A select rows of the second dense operand."""
    kinds, addresses, sizes = _describe_operands(A.rowptr, A.col, dense, add)
    for start, tail, lanes, vectors in tile_columns(dense[1].shape[1], dense[1].dtype):
        run_over_rows(
            kernel, parallel_kernel, A.rowptr, kinds, lanes, vectors, addresses, sizes, (start, tail)
        )


def _describe_operands(
    rows: Tensor, col: Tensor, dense: tuple[Tensor, Tensor, Tensor], add: bool
) -> tuple[tuple[Any, ...], Numbers, Numbers]:
    """Return the kinds, the addresses and the sizes that the compiled functions take."""
    gathered = dense[1]
    width, dtype = gathered.shape[1], gathered.dtype
    operands = (rows, col, *dense)
    assert all(map(Tensor.is_contiguous, operands))
    lines = -(-width * dtype.itemsize // LINE_BYTES)
    ahead = max(LINES_AHEAD // lines, 1) if gathered.nbytes >= FAR_BYTES else 0
    kinds = KINDS[rows.dtype], KINDS[col.dtype], KINDS[dtype]
    return kinds, tuple(map(Tensor.data_ptr, operands)), (col.numel(), width, ahead, int(add))


@cache
def tile_columns(width: int, dtype: torch.dtype) -> list[TileColumns]:
    """Return the fewest tiles that cover a row; their widths differ by at most one vector."""
    lanes = min(VECTOR_BYTES // max(dtype.itemsize, 4), 1 << width.bit_length() - 1)
    vectors = -(-width // lanes)
    tiles = -(-vectors // MOST_VECTORS)
    bounds = [vectors * tile // tiles for tile in range(tiles + 1)]
    return [
        TileColumns(
            first * lanes, min(end * lanes, width) - (first + 1) * lanes, (0,) * lanes, (0,) * (end - first)
        )
        for first, end in pairwise(bounds)
    ]


# Code generation.

I16, I32, I64, F32, F64 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
LLVM = {types.int16: I16, types.int32: I32, types.int64: I64, types.float32: F32, types.float64: F64}


class LoopMetadata(ir.values.MDValue):  # type: ignore[misc]
    """Loop metadata. LLVM requires a distinct node whose first operand is the node itself, which llvmlite lacks."""

    def __init__(self, module: Any, options: list[Any]) -> None:
        nodes = [
            module.add_metadata([ir.MetaDataString(module, name), *map(I32, values)])
            for name, *values in options
        ]
        super().__init__(module, nodes, name=str(len(module.metadata)))

    def descr(self, buf: list[str]) -> None:
        """Append the node's text."""
        nodes = ", ".join(node.get_reference() for node in (self, *self.operands))
        buf += ("distinct !{ ", nodes, " }\n")


def emit_loop(
    builder: Any, first: Any, end: Any, carried: Emitted, body: Body, *, tight: bool = False
) -> Emitted:
    """Emit `for i in range(first, end): carried = body(i, carried)`. Not unrolled, because most rows are short.

    A tight loop has few instructions and is aligned to a cache line.
    """
    before, module = builder.block, builder.module
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    states = [builder.phi(value.type) for value in (first, *carried)]
    builder.cbranch(builder.icmp_unsigned("<", states[0], end), inside, after)
    builder.position_at_end(inside)
    results = body(states[0], states[1:])
    following = builder.add(states[0], I64(1), flags=("nuw",))
    for state, value, result in zip(states, (first, *carried), (following, *results), strict=True):
        state.add_incoming(value, before)
        state.add_incoming(result, builder.block)
    options = [["llvm.loop.unroll.disable"], *([["llvm.loop.align", LINE_BYTES]] if tight else [])]
    builder.branch(head).set_metadata("llvm.loop", LoopMetadata(module, options))
    builder.position_at_end(after)
    return states[1:]


def emit_if_else(
    builder: Any, condition: Any, one: Callable[[], Emitted], other: Callable[[], Emitted]
) -> Emitted:
    """Emit `one() if condition else other()`."""
    with builder.if_else(condition) as (holds, fails):
        with holds:
            values, block = one(), builder.block
        with fails:
            others, other_block = other(), builder.block
    merged = [builder.phi(value.type) for value in values]
    for phi, value, another in zip(merged, values, others, strict=True):
        phi.add_incoming(value, block)
        phi.add_incoming(another, other_block)
    return merged


class Vectors:
    """Loads, stores and arithmetic on vectors. bf16 is stored as int16 and summed in float32."""

    def __init__(self, builder: Any, stored: Any, lanes: int) -> None:
        self.builder, self.lanes, self.is_bf16 = builder, lanes, stored == I16
        self.bytes = {I16: 2, F32: 4, F64: 8}[stored]
        self.sum, self.sum_bytes = (F32, 4) if self.is_bf16 else (stored, self.bytes)
        self.sums, self.words = ir.VectorType(self.sum, lanes), ir.VectorType(I32, lanes)
        self.stored = ir.VectorType(stored, lanes)
        self.zero = ir.Constant(self.sums, None)

    def read(self, place: Any) -> Any:
        """Load a vector from an address."""
        build = self.builder
        x = build.load(build.bitcast(place, self.stored.as_pointer()), align=self.bytes)
        if self.is_bf16:
            x = build.bitcast(build.shl(build.zext(x, self.words), self.repeat(I32(16))), self.sums)
        return x

    def read_one(self, place: Any) -> Any:
        """Load one number and broadcast it to a vector."""
        build = self.builder
        x = build.load(place)
        if self.is_bf16:
            x = build.bitcast(build.shl(build.zext(x, I32), I32(16)), F32)
        return self.repeat(x)

    def write(self, x: Any, place: Any) -> None:
        """Store a vector. bf16 is rounded to nearest, ties to even, and keeps NaN."""
        build = self.builder
        if self.is_bf16:
            bits, sixteen = build.bitcast(x, self.words), self.repeat(I32(16))
            odd = build.and_(build.lshr(bits, sixteen), self.repeat(I32(1)))
            rounded = build.lshr(build.add(bits, build.add(odd, self.repeat(I32(0x7FFF)))), sixteen)
            nan = build.fcmp_unordered("uno", x, x)
            x = build.trunc(build.select(nan, self.repeat(I32(0x7FC0)), rounded), self.stored)
        build.store(x, build.bitcast(place, self.stored.as_pointer()), align=self.bytes)

    def add_product(self, total: Any, x: Any, y: Any, *, fused: bool) -> Any:
        """Return total + x y."""
        flags = ("contract",) if fused else ()
        return self.builder.fadd(total, self.builder.fmul(x, y, flags=flags), flags=flags)

    def fold(self, x: Any) -> Any:
        """Sum a vector by adding one half to the other until one number is left."""
        while x.type.count > 1:
            half = x.type.count // 2
            low, high = (
                ir.Constant(ir.VectorType(I32, half), [I32(first + lane) for lane in range(half)])
                for first in (0, half)
            )
            x = self.builder.fadd(*(self.builder.shuffle_vector(x, x, lanes) for lanes in (low, high)))
        return self.builder.extract_element(x, I32(0))

    def repeat(self, x: Any) -> Any:
        """Broadcast a number to a vector."""
        undefined = ir.Constant(ir.VectorType(x.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, x, I32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self.words, None))


class Tile:
    """The arguments of a compiled function as LLVM values, and the loops over its rows and their entries."""

    def __init__(self, builder: Any, code: Any, arguments: Emitted) -> None:
        self.builder = builder
        (pointer, column, number), self.lanes, self.count = code[0], code[1].count, code[2].count
        addresses, sizes, (self.start, tail), self.rows = (
            [builder.extract_value(pack, place) for place in range(pack.type.count)] for pack in arguments
        )
        self.vectors = Vectors(builder, LLVM[number], self.lanes)
        kinds = [LLVM[kind] for kind in (pointer, column, number, number, number)]
        self.rowptr, self.col, *self.operands = map(self._to_pointer, addresses, kinds)
        self.entries, width, self.ahead, self.add = sizes
        self.width = I64(1) if self.lanes == 1 else width
        self.columns = [*(I64(self.lanes * vector) for vector in range(self.count - 1)), tail]

    def for_each_row(self, body: Callable[[Any, Any, Any], None]) -> None:
        """Emit a loop over the rows that calls body(i, first, end); first .. end - 1 are the entries of row i."""

        def step(row: Any, ends: Emitted) -> Emitted:
            (first,), end = ends, self._load_index(self.rowptr, self.builder.add(row, I64(1)))
            body(row, first, end)
            return [end]

        begin, end = self.rows
        emit_loop(
            self.builder, begin, end, [self._load_index(self.rowptr, begin)], step, tight=self.count == 1
        )

    def for_each_entry(self, first: Any, end: Any, carried: Emitted, body: Body) -> Emitted:
        """Emit a loop over entries first .. end - 1, once with prefetching and once without."""

        def body_with_prefetch(entry: Any, carried: Emitted) -> Emitted:
            self._prefetch(entry)
            return body(entry, carried)

        prefetches = self.builder.icmp_unsigned(">", self.ahead, I64(0))

        def over_entries(body: Body) -> Emitted:
            return emit_loop(self.builder, first, end, carried, body, tight=self.count == 1)

        return emit_if_else(
            self.builder, prefetches, lambda: over_entries(body_with_prefetch), lambda: over_entries(body)
        )

    def operand_addresses(self, entry: Any) -> Emitted:
        """Return the addresses of the tile's vectors in the row selected by an entry's column index."""
        return self.vector_addresses(self.operands[1], self._load_index(self.col, entry))

    def vector_addresses(self, operand: Any, row: Any) -> Emitted:
        """Return the addresses of the tile's vectors in this row of a dense operand."""
        first = self._row_address(operand, row)
        return [self.builder.gep(first, [column]) for column in self.columns]

    def _row_address(self, operand: Any, row: Any) -> Any:
        return self.builder.gep(operand, [self.builder.add(self.builder.mul(row, self.width), self.start)])

    def _prefetch(self, entry: Any) -> None:
        """Prefetch all cache lines of the tile in the row selected by a later entry, whatever the row's alignment."""
        later, last = self.builder.add(entry, self.ahead), self.builder.sub(self.entries, I64(1))
        later = self.builder.select(self.builder.icmp_unsigned("<", later, last), later, last)
        first = self._row_address(self.operands[1], self._load_index(self.col, later))
        for column in range(0, self.count * self.lanes, LINE_BYTES // self.vectors.bytes):
            emit_prefetch(self.builder, self.builder.gep(first, [I64(column)]))
        last_column = self.builder.add(self.columns[-1], I64(self.lanes - 1))
        emit_prefetch(self.builder, self.builder.gep(first, [last_column]))

    def _to_pointer(self, address: Any, kind: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def _load_index(self, array: Any, place: Any) -> Any:
        """Load a non-negative integer as 64 bits."""
        return self.builder.zext(self.builder.load(self.builder.gep(array, [place])), I64)


def _multiply(_typing: Any, code: Any, addresses: Any, sizes: Any, strip: Any, rows: Any) -> Any:
    """Emit Z_i = sum_j a_ij H_j, or Z_i += the same, for one tile of some rows."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        tile = Tile(builder, code, arguments[1:])
        tile.for_each_row(_make_row_product(tile))
        return context.get_dummy_value()

    return types.void(code, addresses, sizes, strip, rows), emit


def _make_row_product(tile: Tile) -> Callable[[Any, Any, Any], None]:
    """Return the function that emits the product of one row, given the row, its first entry and its end."""
    builder, vectors, (val, _H, Z) = tile.builder, tile.vectors, tile.operands
    fused = tile.count > 1 or (vectors.is_bf16 and tile.lanes * vectors.sum_bytes == VECTOR_BYTES)
    adds = builder.icmp_unsigned(">", tile.add, I64(0))

    def entry(e: Any, sums: Emitted) -> Emitted:
        a = vectors.read_one(builder.gep(val, [e]))
        h = map(vectors.read, tile.operand_addresses(e))
        return [vectors.add_product(total, a, x, fused=fused) for total, x in zip(sums, h, strict=True)]

    def row(i: Any, first: Any, end: Any) -> None:
        filled = builder.icmp_unsigned("<", first, end)  # most rows of a small block are empty
        with builder.if_then(builder.or_(filled, builder.not_(adds))):
            places = tile.vector_addresses(Z, i)
            sums = emit_if_else(
                builder, adds, lambda: [*map(vectors.read, places)], lambda: [vectors.zero] * tile.count
            )
            for place, total in zip(places, tile.for_each_entry(first, end, sums, entry), strict=True):
                vectors.write(total, place)

    return row


def _dot(_typing: Any, code: Any, addresses: Any, sizes: Any, strip: Any, rows: Any) -> Any:
    """Emit p_ij = X_i Y_j for one tile of some rows. Tiles other than the first add to p_ij."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        tile = Tile(builder, code, arguments[1:])
        vectors, (X, _Y, products) = tile.vectors, tile.operands
        products = builder.bitcast(products, vectors.sum.as_pointer())
        overlap = builder.sub(I64(tile.lanes * (tile.count - 1)), tile.columns[-1])
        lanes = ir.Constant(ir.VectorType(I64, tile.lanes), [I64(lane) for lane in range(tile.lanes)])
        own = builder.icmp_unsigned(">=", lanes, vectors.repeat(overlap))
        later = builder.icmp_unsigned(">", tile.start, I64(0))

        def row(i: Any, first: Any, end: Any) -> None:
            x = [*map(vectors.read, tile.vector_addresses(X, i))]

            def entry(e: Any, _: Emitted) -> Emitted:
                y = [*map(vectors.read, tile.operand_addresses(e))]
                total = builder.select(own, builder.fmul(x[-1], y[-1]), vectors.zero)
                for each, other in zip(x[:-1], y[:-1], strict=True):
                    total = vectors.add_product(total, each, other, fused=True)
                place = builder.gep(products, [e])
                before = builder.select(later, builder.load(place), ir.Constant(vectors.sum, 0.0))
                builder.store(builder.fadd(before, vectors.fold(total)), place)
                return []

            tile.for_each_entry(first, end, [], entry)

        tile.for_each_row(row)
        return context.get_dummy_value()

    return types.void(code, addresses, sizes, strip, rows), emit


multiply_tile: Any = intrinsic(_multiply)
dot_tile: Any = intrinsic(_dot)


# The compiled functions. Their intrinsics must be in this file, because numba's cache only watches the file itself.
#
# `kinds` are values of the types of row pointers, columns and values. `sizes` are the number of entries, the width, the
# prefetch distance in entries, and 1 to add to Z. Tuples are flat, because numba's parallel loops reject nested ones.


@compiled(nogil=True)
def multiply_rows(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    addresses: Numbers,
    sizes: Numbers,
    strip: Numbers,
    rows: Numbers,
) -> None:
    """Compute one tile of columns of Z, in rows first .. end - 1."""
    multiply_tile((kinds, lanes, vectors), addresses, sizes, strip, rows)


@compiled(parallel=True)
def multiply_rows_parallel(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    addresses: Numbers,
    sizes: Numbers,
    strip: Numbers,
    bounds: Any,
) -> None:
    """`multiply_rows` with the rows divided among threads."""
    for share in numba.prange(bounds.size - 1):
        rows = bounds[share], bounds[share + 1]
        multiply_tile((kinds, lanes, vectors), addresses, sizes, strip, rows)


@compiled(nogil=True)
def dot_rows(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    addresses: Numbers,
    sizes: Numbers,
    strip: Numbers,
    rows: Numbers,
) -> None:
    """Compute one tile's part of the inner products of rows first .. end - 1. Tiles other than the first add."""
    dot_tile((kinds, lanes, vectors), addresses, sizes, strip, rows)


@compiled(parallel=True)
def dot_rows_parallel(
    kinds: Any,
    lanes: Numbers,
    vectors: Numbers,
    addresses: Numbers,
    sizes: Numbers,
    strip: Numbers,
    bounds: Any,
) -> None:
    """`dot_rows` with the rows divided among threads."""
    for share in numba.prange(bounds.size - 1):
        rows = bounds[share], bounds[share + 1]
        dot_tile((kinds, lanes, vectors), addresses, sizes, strip, rows)
