"""Just-in-time compilation of kernels with numba: each kernel is compiled once per machine, not once per process.

Ranks call the same kernels at the same time. The first compiles, and the others wait for its code.

Apart from this module only tiles.py and attention.py import numba. Two rules for callers: the cache of compiled code
identifies functions by name and ignores options, so compile each name with one set of options; and numba may miscompile
a function that has several parallel loops of equal length, so write one such loop per function.
"""

import gc
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.core.event import Listener, register
from numba.extending import intrinsic
from torch import Tensor

from harness.base.device import gpu_build

F = TypeVar("F", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[F], F]:
    """Compile the decorated function at its first call; cache the code on disk if a cache folder is writable."""

    def compile_later(function: F) -> F:
        try:
            kernel = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            return numba.njit(**options)(function)  # type: ignore[no-any-return]
        if isinstance(kernel, Dispatcher):  # numba can be told not to compile
            _compile_in_one_process(kernel)
        return kernel  # type: ignore[no-any-return]

    return compile_later


_on_compilation: list[Callable[[str], None]] = []


def report_compilations(report: Callable[[str], None]) -> None:
    """Call `report` with the name of each function that this process compiles, or waits for, before it does."""
    _on_compilation.append(report)


def _compile_in_one_process(kernel: Any) -> None:
    """Let one process at a time compile a function: the others wait, and load its code."""
    compile_now, cache = kernel.compile, _LockedCache(kernel)

    def compile_alone(signature: Any) -> Any:
        try:
            return compile_now(signature)
        finally:
            cache.release()

    kernel.compile, kernel._cache = compile_alone, cache


class _LockedCache:
    """Numba's cache of a function, with a lock that is held from a miss until the code is saved."""

    def __init__(self, kernel: Any) -> None:
        self._cache, self._held, self._name = kernel._cache, ExitStack(), kernel.py_func.__name__
        self._lock = (
            Path(self._cache.cache_path) / f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}.lock"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the code of a signature. If it is not cached, wait for a process that compiles it, and look again."""
        if (code := self._cache.load_overload(signature, target)) is None:
            from harness.base.locks import acquire_lock

            for report in _on_compilation:
                report(self._name)
            self.release()
            with suppress(OSError):
                self._held.enter_context(acquire_lock(self._lock))
            code = self._cache.load_overload(signature, target)
        return code

    def release(self) -> None:
        self._held.close()


class _CompilerGarbage(Listener):
    """Collects the garbage that a compilation leaves, and only this, which takes little time.

    Numba tries signatures, and the errors of those that fail are in cycles with the frames of all callers. Tensors in
    the frames would stay in memory until a later collection.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._is_older_frozen = False

    def on_start(self, _event: Any) -> None:
        """Set aside all older objects, except within the compilation of a caller."""
        self._depth += 1
        if self._depth == 1 and not gc.get_freeze_count():
            gc.freeze()
            self._is_older_frozen = True

    def on_end(self, _event: Any) -> None:
        """Collect the garbage of the outermost compilation."""
        self._depth -= 1
        if self._depth == 0:
            gc.collect()
            if self._is_older_frozen:
                gc.unfreeze()
                self._is_older_frozen = False


register("numba:compile", _CompilerGarbage())  # type: ignore[no-untyped-call]


def warm_up_compiler() -> None:
    """Initialise numba's registries, and import Triton if torch is built for GPUs; each takes a third of a second.

    Processes forked afterwards inherit both.
    """
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    if gpu_build():
        with suppress(ImportError):
            import_module("triton.runtime")


# Multithreading: each thread processes a contiguous share of the rows of a sparse matrix.


def run_over_rows(kernel: Any, parallel_kernel: Any, rowptr: Tensor, *operands: Any) -> None:
    """Call `kernel(*operands, (first, end))` for all rows; on several threads, `parallel_kernel(*operands, bounds)`."""
    threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if threads == 1:
        kernel(*operands, (0, len(rowptr) - 1))
    else:
        numba.set_num_threads(threads)
        parallel_kernel(*operands, balance_rows(rowptr.numpy(), threads))


@compiled()
def balance_rows(rowptr: Any, shares: int) -> Any:
    """Return the bounds of shares of the rows that have about equal numbers of rows plus entries."""
    rows = rowptr.size - 1
    bounds = np.empty(shares + 1, np.int64)
    for share in range(shares + 1):
        target = (rows + rowptr[rows]) * share // shares
        low, high = 0, rows
        while low < high:
            middle = (low + high) // 2
            if middle + rowptr[middle] < target:
                low = middle + 1
            else:
                high = middle
        bounds[share] = low
    return bounds


# Processor instructions that numba does not expose: prefetch, the upper half of a 128-bit product, and popcount.

TO_READ, KEEP, DATA = 0, 3, 1
BYTES, I32 = ir.IntType(8).as_pointer(), ir.IntType(32)


def emit_prefetch(builder: Any, place: Any) -> None:
    """Emit a prefetch of the cache line at a pointer. An invalid pointer does not fault."""
    kind = ir.FunctionType(ir.VoidType(), [BYTES, I32, I32, I32])
    instruction = builder.module.declare_intrinsic("llvm.prefetch", (BYTES,), kind)
    builder.call(instruction, [builder.bitcast(place, BYTES), I32(TO_READ), I32(KEEP), I32(DATA)])


def _prefetch(_typing: Any, address: Any) -> Any:
    """Prefetch the cache line at an address."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, builder.inttoptr(arguments[0], BYTES))
        return context.get_dummy_value()

    return types.void(address), emit


prefetch: Any = intrinsic(_prefetch)


def _multiply_high(_typing: Any, _x: Any, _y: Any) -> Any:
    """Return bits 64 to 127 of the unsigned product x y: a random number below y if x is random."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        uint128 = ir.IntType(128)
        x, y = (builder.zext(argument, uint128) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(x, y), uint128(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), emit


multiply_high: Any = intrinsic(_multiply_high)
"""(x y) >> 64."""


def _popcount(_typing: Any, _word: Any) -> Any:
    """Return the number of set bits in a 64-bit word."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), emit


popcount: Any = intrinsic(_popcount)
