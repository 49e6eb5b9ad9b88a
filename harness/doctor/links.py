"""One rank of the measurement of links: `python -m harness.doctor.links`, under any launcher.

All-reduces over every axis that the world can have: so many members, so many ranks apart, all groups at once, as in
training. A GB is 2^30 bytes of what a ring brings to a member, as in the cards.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch

from harness.comm import engine, traffic
from harness.comm.axis import Axis
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName

LARGE = 1 << 24
"""Bytes of a buffer where bandwidth is all that counts."""
SECONDS = 15.0
"""For all axes together."""
ROUNDS, WARM, SMALL_ROUNDS = 20, 2, 100
GB = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="harness.doctor.links")
    parser.add_argument("--engine", type=Engine, required=True)
    parser.add_argument("--meeting", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    engine.add_interfaces(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    at = engine.place(os.environ)
    engine.choose_interface(options, at)
    device = engine.start(options.engine, at, meeting=options.meeting)
    try:
        told = measured(at.world, device)
    finally:
        engine.stop()
    if at.rank == 0:
        options.out.write_text(json.dumps(told))
    return 0


def measured(world: int, device: torch.device) -> dict[str, object]:
    """GB a second of every axis, and microseconds of the smallest all-reduce of all."""
    shapes = axes(world)
    rows = []
    for before, size in shapes:
        grid = _grid(world, before, size, device)
        seconds = _seconds(grid, grid[AxisName.Y], LARGE, SECONDS / len(shapes), ROUNDS)
        received = traffic.all_reduce(LARGE, size).received
        rows.append({"before": before, "size": size, "gbs": received / seconds / GB})
    grid = _grid(world, 1, world, device)
    latency = _seconds(grid, grid[AxisName.Y], 4, SECONDS / len(shapes), SMALL_ROUNDS)
    return {"rows": rows, "latency_us": 1e6 * latency}


def axes(world: int) -> list[tuple[int, int]]:
    """How far apart the members of an axis can be, and how many they can be, where groups of them fill the world."""
    parts = [number for number in range(1, world + 1) if world % number == 0]
    return [
        (before, size) for before in parts for size in parts if size > 1 and (world // before) % size == 0
    ]


def _grid(world: int, before: int, size: int, device: torch.device) -> Grid:
    shape = {AxisName.X: world // (before * size), AxisName.Y: size, AxisName.Z: before}
    return Grid.build(shape, Ledger(recording=False), device)


def _seconds(grid: Grid, axis: Axis, size: int, patience: float, rounds: int) -> float:
    """The median of rounds, each as long as on the slowest rank; fewer rounds where they take long."""
    buffer, taken = torch.ones(size // 4, device=axis.device), []
    begun = time.perf_counter()
    for number in range(-WARM, rounds):
        grid.world.barrier()
        start = time.perf_counter()
        axis.all_reduce(buffer, tensor=TensorName.H)
        if axis.device.type == "cuda":
            torch.cuda.synchronize(axis.device)
        seconds = torch.tensor(
            [time.perf_counter() - start, time.perf_counter() - begun], dtype=torch.float64
        )
        everyone = grid.world.all_gather(seconds[None].to(axis.device), tensor=TensorName.COUNT)
        buffer.fill_(1.0)
        if number >= 0:
            taken.append(float(everyone[:, 0].max()))
        if taken and float(everyone[:, 1].max()) > patience:
            break
    return median(taken)


if __name__ == "__main__":
    sys.exit(main())
