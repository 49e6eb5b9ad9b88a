"""The load of a rank over time: its seconds of computing and sending in every window of an epoch, and its GPU's load.

The ledger knows the current op at every instant, so windows are cut out of an epoch when it is over: nothing is
sampled, and training is not disturbed. Only the driver of a GPU has to be sampled, by a thread of its own.
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

from harness.device import is_gpu, utilisation
from harness.ledger import COMPUTING, MOVING, Key, Op

Ask = Callable[[], float]
DEVICE_SECONDS = 0.1
"""The interval of readings; the driver's own samples are longer."""


class Window(NamedTuple):
    """A part of an epoch: its seconds, and those in ops that compute and in ops that send. The rest is in neither."""

    seconds: float
    computing: float
    communicating: float


class Reading(NamedTuple):
    """A utilisation in percent that a driver gave, and the time of the answer by `perf_counter`."""

    at: float
    percent: float


def windows(slices: Sequence[tuple[Key, float]], seconds: float) -> list[Window]:
    """Cuts an epoch, given as slices of the ledger, into windows of so many seconds; the last one may be shorter."""
    lengths = np.array([length for _, length in slices])
    ends = np.append(0.0, lengths.cumsum())
    edges = np.minimum(seconds * np.arange(ceil(ends[-1] / seconds) + 1), ends[-1])

    def within(ops: frozenset[Op]) -> NDArray[np.float64]:
        chosen = np.array([key.op in ops for key, _ in slices], bool)
        spent = np.append(0.0, (lengths * chosen).cumsum())
        return np.diff(np.interp(edges, ends, spent))

    return [Window(*row) for row in zip(np.diff(edges), within(COMPUTING), within(MOVING), strict=True)]


def driver_of(device: torch.device) -> Ask | None:
    """A function that asks a GPU's driver for the utilisation in percent; None without a GPU or an answer."""

    def ask() -> float:
        return utilisation(device)

    if not is_gpu(device):
        return None
    try:
        ask()
    except Exception:  # no nvidia-ml-py, no right to ask, a slice of a GPU: each has an error of its own
        return None
    return ask


@contextmanager
def read_beside(ask: Ask | None, every: float = DEVICE_SECONDS) -> Iterator[list[Reading]]:
    """A list of readings that grows until the context is left."""
    readings: list[Reading] = []
    if ask is None:
        yield readings
        return
    over = threading.Event()

    def read() -> None:
        while not over.wait(every):
            readings.append(Reading(perf_counter(), ask()))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        over.set()
        thread.join()


def last_percent(readings: Sequence[Reading], at: float) -> float | None:
    """The percentage of the last reading before a time."""
    before = bisect_right(readings, at, key=lambda reading: reading.at)
    return readings[before - 1].percent if before else None
