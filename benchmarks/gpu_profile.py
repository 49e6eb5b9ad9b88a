"""Where the time of an epoch goes on a GPU, by torch's profiler: operators of the host, and kernels of the device."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu_common import Row, Size, asked_of, device
from benchmarks.measuring import spec_of, trainer_of

SHOWN = 12
"""The rows of the host and of the device."""
MODELS, SAMPLERS = ("gcn", "sage", "gat"), ("graphsage", "bulk-ladies")
"""The models that are trained serially on the smallest dataset, and the strategies that train on mini-batches."""


def ask_profile(item: str, size: Size) -> Iterator[Row]:
    asked = asked_of(item if item in SAMPLERS else "serial", size)
    if item in MODELS:
        asked |= {"dataset": size.epochs[0], "model": {"kind": item, "order": "aggregate_first"}}
    trainer = trainer_of(spec_of(asked), device=device())
    for _ in range(3):
        seconds = trainer.epoch().seconds
    activities = torch.profiler.supported_activities()
    with torch.profiler.profile(activities=activities) as profiler:
        trainer.epoch()
        torch.cuda.synchronize()
    averages = profiler.key_averages()
    on_host = [each for each in averages if "cpu" in str(each.device_type).lower()]
    on_device = [each for each in averages if "cpu" not in str(each.device_type).lower()]
    yield item, f"an epoch of {1e3 * seconds:.2f} ms, {trainer.steps} steps", "", "", ""
    yield from _top(item, "host", on_host, lambda each: each.self_cpu_time_total)
    yield from _top(item, "device", on_device, lambda each: each.self_device_time_total)


def _top(item: str, where: str, events: list[Any], time_of: Callable[[Any], float]) -> Iterator[Row]:
    """Yield the sum of all events, and the events that take longest."""
    total, calls = sum(map(time_of, events)), sum(each.count for each in events)
    yield item, "all", where, calls, f"{total / 1e3:.3f}"
    for each in sorted(events, key=time_of, reverse=True)[:SHOWN]:
        yield item, each.key, where, each.count, f"{time_of(each) / 1e3:.3f}"
