"""The cost of a job on the pool: milliseconds of an empty job, and of a job that builds a grid and reduces a number.

    python benchmarks/pool.py

The first job pays for starting the server that imports torch, and the first of each size for starting ranks. Later jobs
are medians.
"""

import time
from collections.abc import Callable
from statistics import median

import torch

from harness.comm import engine
from harness.comm.grid import Grid
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName, Ledger, TensorName

JOBS = 9


def nothing() -> None: ...


def reduce() -> float:
    grid = Grid.build({AxisName.P: engine.world_size()}, Ledger())
    return float(grid.world.all_reduce(torch.ones(1), tensor=TensorName.COUNT))


def milliseconds(pool: Pool, ranks: int, job: Callable[[], object]) -> float:
    begun = time.perf_counter()
    pool.run(ranks, job)
    return 1e3 * (time.perf_counter() - begun)


def main() -> None:
    with Pool() as pool:
        print(f"first job, one rank: {milliseconds(pool, 1, nothing):.0f} ms")
        for ranks in (1, 2, 4, 8):
            first = milliseconds(pool, ranks, reduce)
            empty = median(milliseconds(pool, ranks, nothing) for _ in range(JOBS))
            reducing = median(milliseconds(pool, ranks, reduce) for _ in range(JOBS))
            print(f"{ranks} ranks: first {first:.0f} ms, later {empty:.0f} empty, {reducing:.0f} reducing")
        begun = time.perf_counter()
    print(f"close: {1e3 * (time.perf_counter() - begun):.0f} ms")


if __name__ == "__main__":
    main()
