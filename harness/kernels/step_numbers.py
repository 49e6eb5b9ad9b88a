"""Scalars that depend on the step number, such as the key of a dropout mask or Adam's bias corrections.

An eager step passes them as kernel arguments. A CUDA graph replays the arguments of its capture, so a captured step
reads these scalars from device tensors instead, which are updated before every replay.
Verifier (tests/device/test_graphs.py): the same training without a graph.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.device import upload

Compute = Callable[[int], Sequence[int] | Sequence[float]]


class StepNumbers:
    """The step-dependent scalars of one rank."""

    def __init__(self, device: torch.device) -> None:
        self.capturing = False
        """True while a step is captured in a CUDA graph."""
        self._device = device
        self._tensors: dict[tuple[int, Compute], Tensor] = {}
        self._replays = 0

    def get(self, step: int, compute: Compute) -> Sequence[int] | Sequence[float] | Tensor:
        """Return `compute(step)`, or a device tensor that holds it while a step is captured."""
        return self.get_tensor(step, compute) if self.capturing else compute(step)

    def get_tensor(self, step: int, compute: Compute) -> Tensor:
        """Return a device tensor with `compute(step)` in the first replay, and the next step's in each later one."""
        if (step, compute) not in self._tensors:
            numbers = compute(step)
            dtype = torch.int64 if isinstance(numbers[0], int) else torch.float64
            self._tensors[step, compute] = torch.empty(len(numbers), dtype=dtype, device=self._device)
        return self._tensors[step, compute]

    def advance(self) -> None:
        """Copy the scalars of the next replay to the device."""
        for (first, compute), tensor in self._tensors.items():
            numbers = torch.tensor(compute(first + self._replays), dtype=tensor.dtype)
            tensor.copy_(upload(numbers, self._device))
        self._replays += 1
