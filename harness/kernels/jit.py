"""How kernels are compiled: once a machine, not once a process. Nothing else imports the compiler.

Two things to know. The store of compiled code tells functions apart by name, not by options: one name, one set
of options. Parallel loops of equal length in one function may be fused into nonsense: one loop, one function.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[F], F]:
    """Compiles a function at its first call, and keeps it on disk if any folder for that can be written."""

    def compile_later(function: F) -> F:
        try:
            return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            return numba.njit(**options)(function)  # type: ignore[no-any-return]

    return compile_later


# Instructions as one call inside a compiled loop, where our compiler has no word for them.
#
# The processor's prefetch, and the upper half of a product of two words.

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
