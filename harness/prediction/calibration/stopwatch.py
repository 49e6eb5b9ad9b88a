"""Times calls for a calibration: back to back, as in training."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from harness.base.device import is_gpu, synchronize

ROUNDS, MOST_ROUNDS, SECONDS = 7, 50, 1.0
"""The minimum and maximum number of rounds, and the seconds after which no round starts."""
ROUND_SECONDS, MOST_CALLS = 2e-3, 50
"""On a GPU: the minimum seconds and the maximum calls of a round. The host synchronizes once per round."""


class CallTime(NamedTuple):
    """The seconds of a call."""

    seconds: float
    issue: float
    """The part in which the host issues it, while the GPU may still execute earlier calls; 0 without a GPU."""


def time_work(work: Callable[[], object], device: torch.device) -> CallTime:
    """Return the lower quartiles of the seconds of a call and of its issue, because others may use the machine.

    The first call is not timed.
    """
    work()
    calls, most_rounds = 1, MOST_ROUNDS
    if is_gpu(device):  # rarely shared with others
        calls, most_rounds = (
            min(MOST_CALLS, max(1, round(ROUND_SECONDS / _time_round(work, 1, device).seconds))),
            ROUNDS,
        )
    rounds, total = list[CallTime](), 0.0
    while len(rounds) < ROUNDS or (total < SECONDS / 10 and len(rounds) < most_rounds):
        rounds.append(_time_round(work, calls, device))
        total += rounds[-1].seconds
        if total > SECONDS:
            break
    return CallTime(*(np.quantile(rounds, 0.25, axis=0) / calls).tolist())


def _time_round(work: Callable[[], object], calls: int, device: torch.device) -> CallTime:
    synchronize(device)
    started = time.perf_counter()
    for _ in range(calls):
        work()
    issued = time.perf_counter()
    synchronize(device)
    return CallTime(time.perf_counter() - started, issued - started if is_gpu(device) else 0.0)
