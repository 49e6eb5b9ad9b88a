"""A checksum changes with any bit and any exchange; replicas that differ are found, with the epoch."""

import pytest
import torch

from harness.run.fault import first_fault, status_of, write_fault
from harness.run.replicas import checksum


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_checksum_sees_one_bit_and_one_exchange(dtype: torch.dtype) -> None:
    weight = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    first = checksum([weight])
    assert torch.equal(first, checksum([weight.clone()]))
    other = weight.clone()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
    other.view(bits)[3, 2] ^= 1
    assert not torch.equal(first, checksum([other]))
    swapped = weight.clone()
    swapped[0, 0], swapped[4, 4] = weight[4, 4], weight[0, 0]
    assert not torch.equal(first, checksum([swapped]))


def test_an_empty_weight_has_a_checksum() -> None:
    assert checksum([torch.zeros(0, 3)]).tolist() == [0]


def test_the_fault_that_came_first_is_the_cause(tmp_path) -> None:
    assert first_fault(tmp_path) is None
    write_fault(tmp_path, 3, MemoryError("no room"))
    write_fault(tmp_path, 0, RuntimeError("Connection closed by peer"))
    cause = first_fault(tmp_path)
    assert cause is not None
    assert (cause["rank"], cause["type"], cause["status"]) == (3, "MemoryError", "oom")
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "oom"),
        (TimeoutError("late"), "timeout"),
        (ZeroDivisionError("x"), "failed"),
        (KeyboardInterrupt(), "failed"),
    ],
)
def test_how_a_rank_ended_is_a_status(error: BaseException, status: str) -> None:
    assert status_of(error) == status
