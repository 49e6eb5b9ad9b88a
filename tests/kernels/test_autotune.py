"""Autotuning chooses the fastest variant, or the first if none can be measured; dense products are correct."""

import time

import numpy as np
import pytest
import torch

from harness.kernels.random import Purpose, uniform
from harness.kernels.recorded import TIMED_CALLS, WARMUP_CALLS, autotune, matmul


def test_slower_variant_is_not_chosen() -> None:
    calls = {"slow": 0, "quick": 0}

    def slow() -> None:
        calls["slow"] += 1
        time.sleep(0.01)

    def quick() -> None:
        calls["quick"] += 1

    assert autotune({"slow": slow, "quick": quick}, torch.device("cpu")) == "quick"
    assert set(calls.values()) == {WARMUP_CALLS + TIMED_CALLS}


def test_variants_are_not_measured_on_meta_tensors() -> None:
    assert autotune({"first": lambda: 1 / 0, "second": lambda: 1 / 0}, torch.device("meta")) == "first"


SHAPES = [(50, 7, 3), (50, 3, 7), (50, 4, 4), (3, 7, 2), (0, 3, 2), (5, 0, 2)]


@pytest.mark.parametrize(("rows", "width", "columns"), SHAPES)
def test_product_of_tall_matrices_equals_torch(rows: int, width: int, columns: int) -> None:
    T = uniform(0, Purpose.TEST, range(rows * width)).view(rows, width)
    G = uniform(1, Purpose.TEST, range(rows * columns)).view(rows, columns)
    result = matmul(T.T, G)
    assert result.is_contiguous()
    assert np.allclose(result, T.numpy().T @ G.numpy(), rtol=1e-14, atol=1e-14)
