"""Numbers that a training step computes from its own number: the key of a dropout mask, the corrections of Adam.

A step that is issued kernel by kernel passes them as arguments. A CUDA graph keeps the arguments with which its kernels
were captured, so a step inside a graph reads these numbers from the device, where they are renewed before every replay.
Verifier (tests/device/test_graphs.py): the same training without a graph.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.device import upload

Compute = Callable[[int], Sequence[int] | Sequence[float]]


class StepNumbers:
    """The numbers of the steps of one rank."""

    def __init__(self, device: torch.device) -> None:
        self.capturing = False
        """True while a step is captured in a CUDA graph."""
        self._device = device
        self._tensors: dict[tuple[int, Compute], Tensor] = {}
        self._replays = 0

    def get(self, step: int, compute: Compute) -> Sequence[int] | Sequence[float] | Tensor:
        """Return `compute(step)`, or its tensor in a step that is captured."""
        return self.get_tensor(step, compute) if self.capturing else compute(step)

    def get_tensor(self, step: int, compute: Compute) -> Tensor:
        """Return a tensor that holds `compute(step)` in the first replay, and the next numbers in each later one."""
        if (step, compute) not in self._tensors:
            numbers = compute(step)
            dtype = torch.int64 if isinstance(numbers[0], int) else torch.float64
            self._tensors[step, compute] = torch.empty(len(numbers), dtype=dtype, device=self._device)
        return self._tensors[step, compute]

    def advance(self) -> None:
        """Copy the numbers of the next replay to the device."""
        for (first, compute), tensor in self._tensors.items():
            numbers = torch.tensor(compute(first + self._replays), dtype=tensor.dtype)
            tensor.copy_(upload(numbers, self._device))
        self._replays += 1
