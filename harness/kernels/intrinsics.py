"""Instructions as one call inside a compiled loop, where our compiler has no word for them.

The processor's prefetch, and the upper half of a product of two words.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

TO_READ, KEEP, DATA = 0, 3, 1


def _prefetch(_typing: Any, address: Any) -> Any:
    """Begins to bring the cache line at an address. Never faults, whatever the address."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        line = builder.inttoptr(arguments[0], pointer)
        builder.call(instruction, [line, i32(TO_READ), i32(KEEP), i32(DATA)])
        return context.get_dummy_value()

    return types.void(address), emit


prefetch: Any = intrinsic(_prefetch)


def _upper_half(_typing: Any, _x: Any, _y: Any) -> Any:
    """Of x y, both unsigned, bits 64 to 127: with random x, a random number below y."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        twice = ir.IntType(128)
        x, y = (builder.zext(argument, twice) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(x, y), twice(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), emit


upper_half: Any = intrinsic(_upper_half)
"""(x y) >> 64."""
