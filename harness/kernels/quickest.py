"""Which of several ways to compute the same is the quickest here: a short measurement, on the shapes of the run."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch

WARM, TURNS = 2, 7


def quickest(ways: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """The name of the way whose median time is the least; they take turns. On shapes alone, the first."""
    if device.type == "meta" or len(ways) == 1:
        return next(iter(ways))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-WARM, TURNS):
        for name, way in ways.items():
            begun = perf_counter()
            way()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn >= 0:
                seconds[name].append(perf_counter() - begun)
    return min(ways, key=lambda name: median(seconds[name]))
