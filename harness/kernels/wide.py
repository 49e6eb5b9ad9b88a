"""The upper half of a product of two words, as one call inside a compiled loop: our compiler has no word for it."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic


def _upper_half(_typing: Any, _x: Any, _y: Any) -> Any:
    """Of x y, both unsigned, bits 64 to 127: with random x, a random number below y."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        twice = ir.IntType(128)
        x, y = (builder.zext(argument, twice) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(x, y), twice(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), emit


upper_half: Any = intrinsic(_upper_half)
"""(x y) >> 64."""
