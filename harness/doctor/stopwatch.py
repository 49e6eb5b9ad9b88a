"""Times calls for a calibration: back to back, as in training."""

import time
from collections.abc import Callable

import numpy as np
import torch

from harness.device import is_gpu, synchronize

ROUNDS, MOST_ROUNDS, SECONDS = 7, 50, 1.0
"""The minimum and maximum number of rounds, and the seconds after which no round starts."""
ROUND_SECONDS, MOST_CALLS = 2e-3, 50
"""On a GPU: the minimum seconds and the maximum calls of a round. The host synchronizes once per round."""


def time_work(work: Callable[[], object], device: torch.device) -> float:
    """Return the lower quartile of the seconds of a call, because others may use the machine.

    The first call is not timed.
    """
    work()
    calls, most_rounds = 1, MOST_ROUNDS
    if is_gpu(device):  # rarely shared with others
        calls, most_rounds = (
            min(MOST_CALLS, max(1, round(ROUND_SECONDS / _time_round(work, 1, device)))),
            ROUNDS,
        )
    taken: list[float] = []
    while len(taken) < ROUNDS or (sum(taken) < SECONDS / 10 and len(taken) < most_rounds):
        taken.append(_time_round(work, calls, device))
        if sum(taken) > SECONDS:
            break
    return float(np.quantile(taken, 0.25)) / calls


def _time_round(work: Callable[[], object], calls: int, device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return time.perf_counter() - started
