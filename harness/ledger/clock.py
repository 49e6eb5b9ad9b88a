"""Clocks that never make a device wait: a mark is taken now and turned into seconds after the epoch."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the vocabularies are read by commands that must start without torch
    import torch


class Clock(Protocol):
    def mark(self) -> Any:
        """A point in time, cheap to take."""

    def settle(self) -> None:
        """Wait until every mark taken so far can be read."""

    def between(self, earlier: Any, later: Any) -> float:
        """Seconds from one mark to another; only after `settle`."""


class HostClock:
    """The host's monotonic clock: for devices whose kernels return when they are done."""

    mark = staticmethod(perf_counter)

    def settle(self) -> None:
        """Host marks can always be read."""

    def between(self, earlier: float, later: float) -> float:
        return later - earlier


class DeviceClock:
    """Events on the current compute stream of a GPU, read once after the epoch."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def mark(self) -> torch.cuda.Event:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        self._cuda.synchronize()

    def between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        return float(earlier.elapsed_time(later)) / 1e3


def clock_for(device: torch.device) -> Clock:
    """The clock that tells the truth about work on this device."""
    return DeviceClock() if device.type == "cuda" else HostClock()
