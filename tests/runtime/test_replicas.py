"""A checksum changes with any bit and any exchange; replicas that differ are found, with the epoch."""

import pytest
import torch

from harness.runtime.checksums import bit_checksums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_checksum_sees_one_bit_and_one_exchange(dtype: torch.dtype) -> None:
    weight = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    first = bit_checksums([weight])
    assert torch.equal(first, bit_checksums([weight.clone()]))
    other = weight.clone()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
    other.view(bits)[3, 2] ^= 1
    assert not torch.equal(first, bit_checksums([other]))
    swapped = weight.clone()
    swapped[0, 0], swapped[4, 4] = weight[4, 4], weight[0, 0]
    assert not torch.equal(first, bit_checksums([swapped]))


def test_an_empty_weight_has_a_checksum() -> None:
    assert bit_checksums([torch.zeros(0, 3)]).tolist() == [0]
