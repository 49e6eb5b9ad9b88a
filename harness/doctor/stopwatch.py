"""The stopwatch of a calibration: the seconds of one call, where calls follow each other as in training."""

import time
from collections.abc import Callable

import numpy as np
import torch

from harness.device import is_gpu, synchronize

TURNS, MOST_TURNS, SECONDS = 7, 50, 1.0
"""The fewest and the most turns, and the seconds after which no turn begins."""
TURN, MOST_CALLS = 2e-3, 50
"""On a GPU: the least seconds of a turn, and the most calls in it. The host waits once in a turn."""


def time_work(work: Callable[[], object], device: torch.device) -> float:
    """The lower quartile of the seconds of a call, after one that is not timed: others may use the machine too."""
    work()
    calls, most_turns = 1, MOST_TURNS
    if is_gpu(device):  # which few others use at the same time
        calls, most_turns = min(MOST_CALLS, max(1, round(TURN / _time_turn(work, 1, device)))), TURNS
    taken: list[float] = []
    while len(taken) < TURNS or (sum(taken) < SECONDS / 10 and len(taken) < most_turns):
        taken.append(_time_turn(work, calls, device))
        if sum(taken) > SECONDS:
            break
    return float(np.quantile(taken, 0.25)) / calls


def _time_turn(work: Callable[[], object], calls: int, device: torch.device) -> float:
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return time.perf_counter() - begun
