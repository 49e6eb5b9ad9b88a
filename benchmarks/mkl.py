"""MKL's product of a sparse and a dense matrix, after its own analysis of the matrix, from a library named by MKL_RT.

The library is loaded next to torch, whose own copy of MKL it must not call, and uses the threads of GNU's OpenMP, as
torch does: threads of Intel's OpenMP would compete with them.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.kernels.csr import Csr

INSTALL = (
    "MKL is not shown: `pip install mkl` in any environment, and name its library, as in "
    "MKL_RT=ENVIRONMENT/lib/libmkl_rt.so.3."
)
GNU_THREADS, PLAIN, GENERAL, ROW_MAJOR = 3, 10, 20, 101
"""MKL_THREADING_GNU, SPARSE_OPERATION_NON_TRANSPOSE, SPARSE_MATRIX_TYPE_GENERAL and SPARSE_LAYOUT_ROW_MAJOR."""
CALLS = 100_000
"""The number of products that MKL is told to expect."""


class Description(ctypes.Structure):
    """MKL's `matrix_descr`."""

    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int))


def load_mkl() -> "Mkl | None":
    """Return MKL if MKL_RT names its library or this environment has one."""
    found = os.environ.get("MKL_RT") or next(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*")), None)
    return Mkl(found) if found else None


class Mkl:
    """The library, which numbers rows and columns in 32 bits."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        self.library.MKL_Set_Threading_Layer(GNU_THREADS)

    @property
    def version(self) -> str:
        """The version, and the OpenMP whose threads are used."""
        text = ctypes.create_string_buffer(200)
        self.library.MKL_Get_Version_String(text, len(text))
        number = text.value.decode().partition("Version ")[2].partition(" ")[0]
        return f"MKL {number}, threads of GNU's OpenMP"

    def prepare_product(
        self, A: Csr, H: Tensor, Z: Tensor, threads: int, *, optimise: bool = True
    ) -> Callable[[], object]:
        """Return a function that computes Z = A H; analyse A before, for `CALLS` products with as many columns."""
        rowptr, col, val, width = A.rowptr.int(), A.col.int(), A.val, H.shape[1]
        handle, general = ctypes.c_void_p(), Description(GENERAL, 0, 0)
        number, one, zero = ctypes.c_int, ctypes.c_float(1), ctypes.c_float(0)
        first, after = _address(rowptr), _address(rowptr[1:])
        check, library = _check, self.library
        sizes = number(A.rows), number(A.cols)
        library.MKL_Set_Num_Threads(number(threads))
        check(
            library.mkl_sparse_s_create_csr(
                ctypes.byref(handle), 0, *sizes, first, after, _address(col), _address(val)
            )
        )
        if optimise:
            check(
                library.mkl_sparse_set_mm_hint(
                    handle, PLAIN, general, ROW_MAJOR, number(width), number(CALLS)
                )
            )
            check(library.mkl_sparse_optimize(handle))
        held = rowptr, col, val, H, Z  # MKL has their addresses

        def multiply() -> object:
            """Multiply with the threads that this product was prepared for."""
            check(
                library.mkl_sparse_s_mm(
                    *(PLAIN, one, handle, general, ROW_MAJOR, _address(H), number(width), number(width)),
                    *(zero, _address(Z), number(width)),
                )
            )
            return held

        return multiply


def _address(x: Tensor) -> Any:
    return ctypes.c_void_p(x.data_ptr())


def _check(status: int) -> None:
    assert status == 0, f"MKL refused a call with status {status}"
