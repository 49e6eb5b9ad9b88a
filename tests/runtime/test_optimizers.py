"""The optimizers are those of torch, to the bit."""

import pytest
import torch

from harness.kernels.random import Purpose, uniform
from harness.runtime.trainer import OPTIMIZERS, FoldedAdam
from harness.spec.spec import Training

TORCHS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_steps_are_those_of_torch(name: str, decay: float, dtype: torch.dtype) -> None:
    ours, theirs = (
        [uniform(k, Purpose.TEST, range(35)).to(dtype).view(5, 7).requires_grad_() for k in range(3)]
        for _ in range(2)
    )
    training = Training(optimizer=name, lr=0.02, weight_decay=decay)
    optimizer, reference = OPTIMIZERS[name](ours, training), TORCHS[name](theirs, lr=0.02, weight_decay=decay)
    for step in range(10):
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = uniform(100 + 3 * step + number, Purpose.TEST, range(35)).to(dtype).view(5, 7) - 0.5
            absent = number == 2 and step % 3 == 0
            mine.grad, other.grad = (None, None) if absent else (gradient, gradient.clone())
        optimizer.step()
        reference.step()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_of_a_gpu_differs_by_rounding_alone(decay: float) -> None:
    """In float64, over enough steps for both corrections to leave their start."""
    ours, theirs = (
        [uniform(k, Purpose.TEST, range(35)).view(5, 7).requires_grad_() for k in range(3)] for _ in range(2)
    )
    training = Training(lr=0.02, weight_decay=decay)
    optimizer, reference = FoldedAdam(ours, training), TORCHS["adam"](theirs, lr=0.02, weight_decay=decay)
    for step in range(50):
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = uniform(100 + 3 * step + number, Purpose.TEST, range(35)).view(5, 7) - 0.5
            absent = number == 2 and step % 3 == 0
            mine.grad, other.grad = (None, None) if absent else (gradient, gradient.clone())
        optimizer.step()
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-13, atol=1e-13)
