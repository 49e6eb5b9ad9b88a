"""Measures links with a single GPU: copies to and from its host, and the minimum time of an NCCL call.

A world of one rank sends no data, so the time of its calls is the overhead of the host and of NCCL: a lower bound.
"""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from harness.base.device import reset_memory
from harness.base.formatting import GB
from harness.comm import collectives, engine
from harness.comm.collectives import Reduction, StartedCall
from harness.comm.engine import Engine
from harness.comm.launchers import RankPlace
from harness.prediction.calibration.links import ASSUMED, make_constant
from harness.prediction.calibration.measurements import Calibrator, KernelTime
from harness.prediction.calibration.stopwatch import time_work
from harness.prediction.calibration.term_fit import (
    compute_factor,
    compute_held_out_ratios,
    compute_median_and_factor,
    fit_terms,
)
from harness.prediction.pricing import MICRO
from harness.runtime.launch.worker_pool import Pool

COPIED = tuple(1 << power for power in range(10, 29, 3))
"""The sizes in bytes of the copies between host and GPU."""
SMALL, LARGE = 1 << 16, 1 << 20
"""Latency dominates copies of at most SMALL bytes, and bandwidth copies of at least LARGE bytes."""


def measure_host_constants(calibrator: Calibrator) -> dict[str, Any]:
    """Return the bandwidth and the latency of copies to and from pinned memory of the host, one copy at a time."""
    sizes, seconds = list[int](), list[float]()
    for done, size in enumerate(COPIED):
        calibrator.on_step(done, len(COPIED), f"copies of {size:,} bytes between host and GPU")
        both = (
            calibrator.try_stage(f"copies of {size:,} bytes", partial(_time_copies, calibrator, size)) or []
        )
        sizes += [size] * len(both)
        seconds += both
    terms, taken = np.array([(size, 1.0) for size in sizes]), np.array(seconds)
    per_byte, latency = fit_terms(terms, taken).tolist()
    ratios, moved = compute_held_out_ratios(terms, taken, [sizes]), np.array(sizes)
    remark = "one GPU copies, from or to pinned memory"
    return {
        "host_gbs": calibrator.make_constant(
            1 / per_byte / GB, compute_factor(ratios[moved >= LARGE]), remark
        ),
        "host_latency_us": calibrator.make_constant(
            latency / MICRO, compute_factor(ratios[moved <= SMALL]), remark
        ),
    }


def _time_copies(calibrator: Calibrator, size: int) -> list[float]:
    """Return the seconds of a copy to the GPU and of a copy back."""
    here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=calibrator.device)
    return [
        calibrator.time_kernel("copy up", lambda: there.copy_(here, non_blocking=True), moved=size).seconds,
        calibrator.time_kernel("copy down", lambda: here.copy_(there, non_blocking=True), moved=size).seconds,
    ]


# The minimum time of a call.

FEW, MANY = 4, 1 << 26
"""The sizes in bytes of the calls."""
LEAST_WITHIN = 2.0
"""The minimum factor of the interval: calls between GPUs take longer, by an amount that one GPU cannot measure."""
EXCHANGE = "all_to_all"
"""The name of the call that has its own minimum time."""
PATIENCE = 60.0
"""The time limit of the measurement in seconds."""


def measure_call_constants(calibrator: Calibrator) -> dict[str, Any]:
    """Return the minimum times of an NCCL call and of an all-to-all, measured in a process that may hang."""
    reset_memory(calibrator.device)  # the other process needs GPU memory too
    with Pool(engine=Engine.NCCL, patience=PATIENCE) as pool:
        (times,) = pool.run(1, time_calls)
    calibrator.times += times
    small = [each for each in times if each.bytes == FEW]
    return {
        name: make_call_constant(calibrator, [each.seconds for each in small if is_of_kind(each.kernel)])
        for name, is_of_kind in (("call_us", EXCHANGE.__ne__), ("exchange_us", EXCHANGE.__eq__))
    }


def make_call_constant(calibrator: Calibrator, seconds: Sequence[float]) -> dict[str, Any]:
    """Return a constant for the minimum time of calls."""
    value, within = compute_median_and_factor(seconds, LEAST_WITHIN)
    remark = "a floor: calls of a world of one over NCCL, which send nothing"
    return calibrator.make_constant(value / MICRO, max(within, LEAST_WITHIN), remark)


def time_calls() -> list[KernelTime]:
    """Time each collective with FEW and MANY bytes, in a world of one rank that has a process group."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("default")  # the ranks of a pool turn warnings into errors
        meet = Path(folder) / "meeting"
        device = engine.join_world(Engine.NCCL, RankPlace(), rendezvous=meet, group_of_one=True)
        try:
            return [
                KernelTime(name, time_work(call, device).seconds, bytes=size)
                for size in (FEW, MANY)
                for name, call in list_calls(torch.ones(size // 4, device=device)).items()
            ]
        finally:
            engine.leave_world()
            engine.read_network()  # removes the log of NCCL


def list_calls(x: Tensor) -> dict[str, Callable[[], object]]:
    """Return the collectives of a world of one rank on a buffer, by name."""
    group, sizes = dist.group.WORLD, [len(x)]
    assert group is not None
    started: dict[str, Callable[[], StartedCall[Tensor]]] = {
        "all_reduce": partial(collectives.all_reduce, group, x, Reduction.SUM, None, later=False),
        "all_gather": partial(collectives.all_gather, group, x, sizes, None, None, later=False),
        "reduce_scatter": partial(collectives.reduce_scatter, group, x, sizes, None, later=False),
        EXCHANGE: partial(collectives.all_to_all, group, x, sizes, sizes, None, later=False),
        "broadcast": partial(collectives.broadcast_send, group, x, None, later=False),
    }
    return {name: partial(_wait_for_call, start) for name, start in started.items()}


def _wait_for_call(start: Callable[[], StartedCall[Tensor]]) -> Tensor:
    call = start()
    for work in call.works:
        work.wait()
    return call.result()


def make_unmeasured_links(devices_per_node: int) -> dict[str, Any]:
    """Return the links of an unmeasured machine. Their intervals cover PCIe, NVLink, Ethernet and InfiniBand."""
    return {
        "devices_per_node": devices_per_node,
        "intra_gbs": make_constant(80.0, 4.0, f"{ASSUMED}: PCIe 4.0 to NVLink 4"),
        "node_gbs": make_constant(12.0, 10.0, f"{ASSUMED}: 10 Gbit/s Ethernet to four NICs of 200 Gbit/s"),
        "intra_latency_us": make_constant(3.0, 2.0, ASSUMED),
        "latency_us": make_constant(8.0, 4.0, ASSUMED),
        "all_to_all_share": make_constant(0.5, 2.0, ASSUMED),
    }
