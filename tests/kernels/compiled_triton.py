"""Compile the Triton kernels for GPUs that this machine does not have, and check their machine code.

test_triton_spmm.py runs this file."""

import re
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from harness.kernels import triton_spmm
from harness.kernels.csr import cast, from_coo
from harness.kernels.row_schedule import schedule_rows
from harness.kernels.triton_spmm import multiply_into
from tests.absent_gpus import A100, H100, MI300, Absent, compile_only, read_usage


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Return the kernels that a product compiles, by name, without running them."""
    return compile_only(monkeypatch)


def compile_product(target: GPUTarget, dtype: torch.dtype, width: int, *, wide: bool, add: bool) -> None:
    driver.set_active(Absent(target))
    row, col = torch.tensor([0] * 40 + [2, 2]), torch.arange(42)
    A = cast(from_coo(row, col, torch.ones(42), (4, 64)), dtype)
    A = A._replace(col=A.col.long()) if wide else A._replace(rowptr=A.rowptr.int())
    H, Z = torch.ones(64, width, dtype=dtype), torch.ones(4, width, dtype=dtype)
    multiply_into(A, H, Z, schedule_rows(A.rowptr, 16), add=add)


NAMES = ["sum_rows", "join_pieces", "sum_rows"]
READS = {
    (torch.float32, 1, False): "b32",
    (torch.float32, 16, False): "v4.b32",
    (torch.float32, 41, False): "b32",
    (torch.float32, 41, True): "v4.b32",
    (torch.float32, 100, False): "v4.b32",
    (torch.float64, 128, False): "v2.b64",
    (torch.bfloat16, 47, True): "v4.b32",
    (torch.bfloat16, 256, False): "v4.b32",
}
"""How a thread reads a row of H, by type, width, and whether H is padded: 16 bytes at once, or single numbers if the
width is odd and H is not padded."""


@pytest.mark.parametrize(("dtype", "width", "is_padded"), READS, ids=str)
def test_h100_kernels_load_16_bytes_at_once_and_do_not_spill(
    kernels, tmp_path, monkeypatch, dtype, width, is_padded
):
    if is_padded:
        monkeypatch.setattr(triton_spmm, "LEAST_ENTRIES", 0)
        monkeypatch.setattr(triton_spmm, "LEAST_ENTRIES_PER_ROW", 0)
    compile_product(H100, dtype, width, wide=False, add=width != 16)
    assert [name for name, _ in kernels] == NAMES
    for name, kernel in kernels:
        code, usage = kernel.asm["ptx"], read_usage(kernel, tmp_path)
        assert (usage.stack, usage.local) == (0, 0)
        assert usage.registers <= 64
        assert not re.search(r"\b(atom|red)\.", code)
        if name == "sum_rows":
            assert code.count(f"ld.global.{READS[dtype, width, is_padded]} ") >= 4
            assert "fma.rn" in code
            assert not re.search(r"\bmul(\.rn)?\.f(32|64)", code)
    if dtype == torch.bfloat16:
        assert all("cvt.rn.bf16" in kernel.asm["ptx"] for _, kernel in kernels[1:])


@pytest.mark.parametrize(
    ("target", "dtype"), [(A100, torch.float32), (H100, torch.bfloat16), (MI300, torch.bfloat16)], ids=str
)
def test_kernels_with_64_bit_indices_compile_for_other_gpus(kernels, target, dtype):
    compile_product(target, dtype, 64, wide=True, add=True)
    assert [(name, kernel.metadata.target) for name, kernel in kernels] == [(name, target) for name in NAMES]
