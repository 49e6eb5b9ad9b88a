"""Scalars that depend on the step number, such as the key of a dropout mask or Adam's bias corrections.

An eager step passes them as kernel arguments. A CUDA graph replays the arguments of its capture, so a captured step
reads these scalars from device tensors instead, which are updated before every replay.
Verifier (tests/device/test_graphs.py): the same training without a graph.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from harness.base.device import upload

Compute = Callable[[int], Sequence[int] | Sequence[float]]

SLOTS = 4096
"""The most numbers of 8 bytes that a captured epoch may read."""


class StepNumbers:
    """The step-dependent scalars of one rank."""

    def __init__(self, device: torch.device) -> None:
        self.capturing = False
        """True while a step is captured in a CUDA graph."""
        self._device = device
        self._slots = torch.empty(0, dtype=torch.int64)
        """Memory outside of the graph: a replay may overwrite what was written into the graph's own memory before."""
        self._used = 0
        self._tensors: dict[tuple[int, Compute], Tensor] = {}
        self._replays = 0

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Hand out device tensors instead of numbers in this block, in which a step is captured."""
        self._slots = torch.empty(SLOTS, dtype=torch.int64, device=self._device)
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def get(self, step: int, compute: Compute) -> Sequence[int] | Sequence[float] | Tensor:
        """Return `compute(step)`, or a device tensor that holds it while a step is captured."""
        return self.get_tensor(step, compute) if self.capturing else compute(step)

    def get_tensor(self, step: int, compute: Compute) -> Tensor:
        """Return a device tensor with `compute(step)` in the first replay, and the next step's in each later one."""
        if (step, compute) not in self._tensors:
            numbers = _make_tensor(compute(step))
            if self._used + len(numbers) > SLOTS:
                raise RuntimeError(f"more than {SLOTS:,} numbers change from step to step")
            slots = self._slots[self._used : self._used + len(numbers)]
            self._tensors[step, compute] = slots.view(numbers.dtype)
            self._used += len(numbers)
        return self._tensors[step, compute]

    def advance(self) -> None:
        """Copy the scalars of the next replay to the device."""
        steps = [(first + self._replays, compute) for first, compute in self._tensors]
        numbers = [_make_tensor(compute(step)).view(torch.int64) for step, compute in steps]
        if numbers:
            self._slots[: self._used].copy_(upload(torch.cat(numbers), self._device))
        self._replays += 1


def _make_tensor(numbers: Sequence[int] | Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64 if isinstance(numbers[0], int) else torch.float64)
