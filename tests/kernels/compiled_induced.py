"""Compile the Triton kernels that induce submatrices for GPUs that this machine does not have.

test_triton_induced.py runs this file.
"""

import pytest
import torch
from triton.runtime import driver

from harness.conformance.case import make_check_graph
from harness.kernels.triton_induced import induced_submatrix
from tests.absent_gpus import A100, H100, MI300, Absent, compile_only, read_usage

NAMES = ["count_kept", "write_kept"]


@pytest.fixture
def kernels(monkeypatch):
    """The kernels that are compiled but not run, by name. The host reads that some entries are kept."""
    monkeypatch.setattr(torch.Tensor, "__int__", lambda _: 5)
    return compile_only(monkeypatch)


def compile_induced(dtype, column, rows=20, scale=2.0):
    A, S = make_check_graph(40).A, torch.arange(rows)
    A = A._replace(val=A.val.to(dtype), col=A.col.to(column))
    induced_submatrix(A, S, S, -3, scale)


def test_h100_kernels_do_not_spill(kernels, tmp_path):
    driver.set_active(Absent(H100))
    compile_induced(torch.float32, torch.int32)
    assert [name for name, _ in kernels] == NAMES
    for _, kernel in kernels:
        usage = read_usage(kernel, tmp_path)
        assert (usage.stack, usage.local) == (0, 0)
        assert usage.registers <= 128


@pytest.mark.parametrize("target", [A100, H100, MI300], ids=str)
def test_kernels_with_64_bit_columns_compile(kernels, target):
    driver.set_active(Absent(target))
    compile_induced(torch.float64, torch.int64)
    assert [kernel.metadata.target for _, kernel in kernels] == [target, target]


def test_other_samples_do_not_compile_again(kernels):
    driver.set_active(Absent(H100))
    for rows, scale in ((20, 2.0), (16, 1.0), (1, 1 / 3)):
        compile_induced(torch.float32, torch.int32, rows, scale)
    for name in NAMES:
        first, *others = [kernel for each, kernel in kernels if each == name]
        assert all(kernel is first for kernel in others)
