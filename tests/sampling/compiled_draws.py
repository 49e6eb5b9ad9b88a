"""Compile the Triton kernels that draw neighbours for GPUs that this machine does not have.

test_triton_sampling.py runs this file.
"""

import pytest
import torch
from triton.runtime import driver

from harness.strategies.sampling.triton_sampling import MAX_TILE_FANOUT, fill_sample, measure_rows
from tests.absent_gpus import A100, H100, MI300, Absent, compile_only, read_usage
from tests.sampling.test_vectorised import rows_of_lengths

NAMES = ["find_kept_entries", "draw_rows"]


def compile_draw(dtype, columns, fanout, key=(1, (1 << 64) - 5)):
    A, rows = rows_of_lengths([3, 1, 2], 40, dtype, loops=True), torch.arange(3)
    A = A._replace(col=A.col.to(columns))
    kept, _ = measure_rows(A, rows, rows, fanout, loops=True)
    fill_sample(A, rows, rows, kept, fanout, key, A)


@pytest.mark.parametrize("fanout", [1, 5, 15, 25, MAX_TILE_FANOUT])
def test_h100_kernels_do_not_spill_and_divide_exactly(monkeypatch, tmp_path, fanout):
    kernels = compile_only(monkeypatch)
    driver.set_active(Absent(H100))
    compile_draw(torch.float32, torch.int32, fanout)
    assert [name for name, _ in kernels] == NAMES
    for _, kernel in kernels:
        usage = read_usage(kernel, tmp_path)
        assert (usage.stack, usage.local) == (0, 0)
        assert usage.registers <= 80
    assert fanout == 1 or "div.rn.f64" in kernels[1][1].asm["ptx"]


@pytest.mark.parametrize("target", [A100, H100, MI300], ids=str)
def test_kernels_with_64_bit_columns_compile(monkeypatch, target):
    kernels = compile_only(monkeypatch)
    driver.set_active(Absent(target))
    compile_draw(torch.float64, torch.int64, 15)
    assert [kernel.metadata.target for _, kernel in kernels] == [target, target]


def test_other_keys_and_fan_outs_do_not_compile_again(monkeypatch):
    """Except that the kernel that draws is compiled for each fan-out."""
    kernels = compile_only(monkeypatch)
    driver.set_active(Absent(H100))
    compile_draw(torch.float32, torch.int32, 15, (3 << 40, 5 << 40))
    compile_draw(torch.float32, torch.int32, 15, ((1 << 63) + 16, (1 << 63) + 1))
    compile_draw(torch.float32, torch.int32, 1)
    searches, draws = ([kernel for name, kernel in kernels if name == each] for each in NAMES)
    assert searches[0] is searches[1] is searches[2]
    assert draws[0] is draws[1]
