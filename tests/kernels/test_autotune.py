"""Autotuning chooses the fastest variant, or the first if none can be measured; dense products are correct."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.kernels.random import Purpose, uniform
from harness.kernels.recorded import HAS_ONEDNN, TIMED_CALLS, WARMUP_CALLS, Kernels, autotune, matmul
from harness.ledger import Ledger


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


@pytest.mark.parametrize(("width", "columns"), [(40, 1), (40, 7), (64, 15), (64, 16)])
def test_product_with_few_columns_equals_numpy(width: int, columns: int) -> None:
    X = uniform(0, Purpose.TEST, range(2 * 1000 * width)).view(1000, 2 * width)[:, ::2].float()
    X_view = torch.cat([X, X], dim=1)[:, :width]
    W = uniform(1, Purpose.TEST, range(width * columns)).view(columns, width).T.float()
    expected = X.double().numpy() @ W.double().numpy()
    total = torch.ones(1000, columns)
    kernels = Kernels(Ledger())
    for result in (matmul(X, W), matmul(X_view, W), kernels.gemm(X, W, add_to=total) - 1):
        assert result.is_contiguous()
        assert np.allclose(result, expected, rtol=1e-5, atol=1e-5)


class LayoutsOfOneDnn(TorchDispatchMode):
    """Notes whether oneDNN gets matrices that are whole in memory: with others it takes a hundred times as long."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.mkldnn._linear_pointwise.default:
            self.whole.append(all(x.is_contiguous() for x in args[:2]))
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not HAS_ONEDNN, reason="this torch has no oneDNN")
def test_onednn_gets_no_parts_of_matrices() -> None:
    X, W = torch.ones(1000, 50), torch.ones(60, 60)
    with LayoutsOfOneDnn() as layouts:
        matmul(X, W[3:53, 5:12])
        matmul(X, W[5:12, 3:53].T)
        matmul(X[:, :40], W[:40, :7])
    assert layouts.whole == [True, True]


def test_product_with_few_columns_is_differentiable() -> None:
    X = uniform(0, Purpose.TEST, range(1000 * 40)).view(1000, 40).float().requires_grad_()
    W = uniform(1, Purpose.TEST, range(40 * 7)).view(40, 7).float().requires_grad_()
    matmul(X, W).sum().backward()
    assert X.grad is not None and W.grad is not None
    assert torch.allclose(X.grad, W.detach().sum(dim=1).expand(1000, 40))
    assert torch.allclose(W.grad, X.detach().sum(dim=0)[:, None].expand(40, 7))


SHAPES = [(50, 7, 3), (50, 3, 7), (50, 4, 4), (3, 7, 2), (0, 3, 2), (5, 0, 2)]


@pytest.mark.parametrize(("rows", "width", "columns"), SHAPES)
def test_product_of_tall_matrices_equals_torch(rows: int, width: int, columns: int) -> None:
    T = uniform(0, Purpose.TEST, range(rows * width)).view(rows, width)
    G = uniform(1, Purpose.TEST, range(rows * columns)).view(rows, columns)
    result = matmul(T.T, G)
    assert result.is_contiguous()
    assert np.allclose(result, T.numpy().T @ G.numpy(), rtol=1e-14, atol=1e-14)
