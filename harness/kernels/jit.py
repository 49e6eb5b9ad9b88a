"""How kernels are compiled: once a machine, not once a process. Nothing else imports the compiler.

Two things to know. The store of compiled code tells functions apart by name, not by options: one name, one set
of options. Parallel loops of equal length in one function may be fused into nonsense: one loop, one function.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[F], F]:
    """Compiles a function at its first call, and keeps it on disk if any folder for that can be written."""

    def compile_later(function: F) -> F:
        try:
            return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            return numba.njit(**options)(function)  # type: ignore[no-any-return]

    return compile_later
