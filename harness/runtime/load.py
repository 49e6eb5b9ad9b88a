"""The load of a rank over time: the seconds that it computes and communicates in windows of an epoch, and GPU load.

The ledger knows the current op at every instant, so an epoch is cut into windows after it ends, without sampling, which
would disturb training. Only the driver of a GPU has to be sampled, by a background thread.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from harness.base.device import gpu_utilisation, is_gpu
from harness.ledger import COMPUTING, MOVING, Key, Op

ReadPercent = Callable[[], float]
DEVICE_SECONDS = 0.1
"""The interval of readings; the driver's own samples are longer."""


class Window(NamedTuple):
    """A part of an epoch: its length, and the seconds spent in ops that compute and in ops that communicate."""

    seconds: float
    computing: float
    communicating: float


class Reading(NamedTuple):
    """A utilization in percent reported by the driver, and the time of the reading (`perf_counter`)."""

    at: float
    percent: float


def split_into_windows(slices: Sequence[tuple[Key, float]], seconds: float) -> list[Window]:
    """Cut an epoch, given as slices of the ledger, into windows of `seconds`; the last window may be shorter."""
    lengths = np.array([length for _, length in slices])
    ends = np.append(0.0, lengths.cumsum())
    edges = np.minimum(seconds * np.arange(ceil(ends[-1] / seconds) + 1), ends[-1])

    def sum_in_windows(ops: frozenset[Op]) -> NDArray[np.float64]:
        chosen = np.array([key.op in ops for key, _ in slices], bool)
        spent = np.append(0.0, (lengths * chosen).cumsum())
        return np.diff(np.interp(edges, ends, spent))

    columns = np.diff(edges), sum_in_windows(COMPUTING), sum_in_windows(MOVING)
    return [Window(*row) for row in zip(*columns, strict=True)]


def make_utilisation_reader(device: torch.device) -> ReadPercent | None:
    """Return a function that reads the utilization of a GPU in percent, or None if there is no GPU or no answer."""

    def read_percent() -> float:
        return gpu_utilisation(device)

    if not is_gpu(device):
        return None
    try:
        read_percent()
    except Exception:  # no nvidia-ml-py, no permission, a MIG slice: each raises a different error
        return None
    return read_percent


@contextmanager
def read_in_background(
    read_percent: ReadPercent | None, every: float = DEVICE_SECONDS
) -> Iterator[list[Reading]]:
    """Yield a list of readings that grows until the context exits."""
    readings: list[Reading] = []
    if read_percent is None:
        yield readings
        return
    over = threading.Event()

    def read() -> None:
        while not over.wait(every):
            readings.append(Reading(perf_counter(), read_percent()))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        over.set()
        thread.join()


def last_percent(readings: Sequence[Reading], at: float) -> float | None:
    """Return the percentage of the last reading before a time, or None."""
    before = bisect_right(readings, at, key=lambda reading: reading.at)
    return readings[before - 1].percent if before else None
