"""The choice of the kernel for a product on a GPU: which kernels are measured, which one is chosen, what is cached.

The library and the fake kernels run on the CPU here, as they do on fake GPUs (tests/device/test_kernels.py).
"""

import warnings
from collections.abc import Callable, Mapping

import pytest
import torch

from harness.base.device import NO_FIXED_ORDER, prefer_determinism
from harness.kernels import spmm
from harness.kernels.csr import Csr, from_coo
from harness.kernels.spmm import (
    BLOCK,
    CACHED_PRODUCTS,
    LIBRARY,
    PRODUCT_KERNELS,
    TRITON,
    cache_for_products,
    multiply_library,
)
from harness.strategy.context import Measurements

IN_BLOCKS = f"library, {BLOCK} columns at a time"
Product = Callable[[Csr, torch.Tensor, torch.Tensor | None], torch.Tensor]


def matrix() -> Csr:
    return from_coo(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]), torch.tensor([1.0, 2.0, 3.0]), (3, 3))


def multiply(A: Csr, width: int) -> torch.Tensor:
    H = torch.arange(3.0 * width).reshape(3, width)
    return spmm._select_gpu_kernel(A, H)(A, H, None)


class Chooser:
    """Chooses the last kernel, and records the names of the candidates."""

    def __init__(self) -> None:
        self.offered: dict[str, list[str]] = {}

    def __call__(self, what: str, ways: Mapping[str, Callable[[], object]]) -> str:
        for way in ways.values():
            way()
        self.offered[what] = list(ways)
        return list(ways)[-1]


@pytest.fixture(autouse=True)
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmm, "can_run_triton", lambda: False)


def right(A: Csr, H: torch.Tensor, add_to: torch.Tensor | None) -> torch.Tensor:
    return multiply_library(A, H, add_to)


def raises(_A: Csr, _H: torch.Tensor, _add_to: torch.Tensor | None) -> torch.Tensor:
    raise RuntimeError("out of resource: shared memory\nand many more lines")


def altered(change: Callable[[torch.Tensor], object]) -> Product:
    """Return a kernel with wrong results."""

    def way(A: Csr, H: torch.Tensor, add_to: torch.Tensor | None) -> torch.Tensor:
        Z = multiply_library(A, H, add_to)
        change(Z)
        return Z

    return way


def test_correct_kernels_are_measured_and_the_choice_is_cached(monkeypatch):
    monkeypatch.setitem(PRODUCT_KERNELS, "third", right)
    choose = Chooser()
    A = cache_for_products(matrix(), choose)
    for _ in range(2):
        for width in (4, BLOCK + 1):
            expected = multiply_library(A, torch.arange(3.0 * width).reshape(3, width), None)
            assert torch.equal(multiply(A, width), expected)
    what = "product of 3 x 3 with 3 entries by {} columns"
    assert choose.offered == {
        what.format(4): [LIBRARY, "third"],
        what.format(BLOCK + 1): [LIBRARY, IN_BLOCKS, "third"],
    }
    assert set(CACHED_PRODUCTS[A.rowptr].kernels.values()) == {"third"}


def test_uncached_matrices_use_the_library(monkeypatch):
    monkeypatch.setitem(PRODUCT_KERNELS, "third", raises)
    A = matrix()
    assert spmm._select_gpu_kernel(A, torch.ones(3, 4)) is multiply_library
    assert spmm._select_gpu_kernel(cache_for_products(A), torch.ones(3, 4)) is multiply_library


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (raises, "RuntimeError: out of resource: shared memory$"),
        (altered(lambda Z: Z[0, 0].add_(0.5)), "differs from the library by 5.0e-01 in numbers up to"),
        (altered(lambda Z: Z[0, 0].fill_(torch.nan)), "differs from the library by nan"),
        (altered(lambda Z: Z[0, 0].fill_(torch.inf)), "differs from the library by inf"),
    ],
    ids=["raises", "other number", "nan", "inf"],
)
def test_failing_kernel_is_disabled_with_a_warning(monkeypatch, way, reason):
    monkeypatch.setitem(PRODUCT_KERNELS, "third", way)
    choose = Chooser()
    A = cache_for_products(matrix(), choose)
    with pytest.warns(UserWarning, match=f"kernel 'third' is disabled on this GPU: .*{reason}"):
        multiply(A, 4)
    assert choose.offered == {}, "the library alone need not be measured"
    multiply(A, 4)  # does not warn again


def test_recorded_choice_is_reused_if_the_kernel_is_available(monkeypatch):
    monkeypatch.setitem(PRODUCT_KERNELS, "third", right)
    what = "product of 3 x 3 with 3 entries by 4 columns"
    for name, taken in ((LIBRARY, LIBRARY), ("third", "third"), (TRITON, LIBRARY), ("of old", LIBRARY)):
        measured = Measurements(torch.device("cpu"), {what: name})
        A = cache_for_products(matrix(), measured.choose_fastest)
        multiply(A, 4)
        assert CACHED_PRODUCTS[A.rowptr].kernels == {(4, False): taken}
        assert measured.chosen == {what: name}


def test_deterministic_products_use_the_kernel_with_a_fixed_order(monkeypatch):
    """This also holds for uncached matrices. The choice by time is kept."""
    monkeypatch.setitem(PRODUCT_KERNELS, TRITON, right)
    monkeypatch.setitem(PRODUCT_KERNELS, "third", right)
    A = cache_for_products(matrix(), Chooser())
    with prefer_determinism() as without:
        for each in (A, matrix()):
            assert spmm._select_gpu_kernel(each, torch.ones(3, 4)) is PRODUCT_KERNELS[TRITON]
    assert not without
    assert spmm._select_gpu_kernel(A, torch.ones(3, 4)) is PRODUCT_KERNELS["third"]


def test_library_products_are_reported_as_nondeterministic():
    with prefer_determinism() as without:
        multiply(matrix(), 4)
    assert without == {"The library's sparse product"}


def test_prefer_determinism_collects_nondeterministic_operations_and_restores_the_setting(recwarn):
    """`put_` has no deterministic implementation on any device."""
    with prefer_determinism() as without:
        assert torch.are_deterministic_algorithms_enabled()
        for _ in range(2):
            torch.zeros(4).put_(torch.tensor([1]), torch.ones(1))
        warnings.warn("another matter", stacklevel=1)
    assert without == {"put_"}
    assert not torch.are_deterministic_algorithms_enabled()
    warnings.warn(f"put_ {NO_FIXED_ORDER}", stacklevel=1)
    assert [str(each.message) for each in recwarn] == ["another matter", f"put_ {NO_FIXED_ORDER}"]
