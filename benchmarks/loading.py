"""What loading takes: each rank its own blocks of the store, or each rank the whole graph to cut them out of.

    harness data build rmat-21
    python benchmarks/loading.py --dataset rmat-21 --strategy plexus --grid 2x2x2

For the rank that needs most: the anonymous memory it had at most while it loaded, above what it had before (pages of
mapped files can be dropped and do not count), beside the bytes of its blocks of A and A^T, which stay; and its seconds.
All ranks load at once. Plexus says of ogbn-papers100M on 64 GPUs, the whole dataset against 16 x 16 shards: 146 GB and
139 s against 9 GB and 7 s (PLX-103 to PLX-107).
"""

import argparse
import os
import threading
from collections.abc import Callable
from functools import cached_property
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from torch import Tensor

from harness.comm.grid import Grid
from harness.experiment.request import make_spec
from harness.kernels import Csr
from harness.kernels.csr import block
from harness.launch.worker_pool import Pool
from harness.ledger import Ledger, TensorName
from harness.run.opening import opened
from harness.spec.root import project_root
from harness.strategy import Context

EVERY = 0.002
"""Seconds between two looks at the memory."""


class Whole:
    """The same blocks, cut out of a graph that was loaded whole."""

    def __init__(self, blocks: Any) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    @cached_property
    def _A(self) -> Csr:
        return self._blocks.adjacency(range(self.n), range(self.n))

    @cached_property
    def _X(self) -> Tensor:
        return self._blocks.feature_block(range(self.n), range(self.features))

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        assert self.permutation != "double", "one order is loaded"
        A = block(self._A, rows, cols)
        return Csr(A.rowptr.clone(), A.col.clone(), A.val.clone(), A.cols)

    def feature_block(self, rows: range, cols: range) -> Tensor:
        return self._X[rows.start : rows.stop, cols.start : cols.stop].clone()


def load(asked: dict[str, Any], whole: bool) -> tuple[int, float, int]:
    """Of one rank: peak, seconds, and the bytes of its blocks of A."""
    strategy, blocks = opened(project_root(), make_spec(project_root(), asked, "loading"))
    grid = Grid.build(strategy.grid, Ledger())
    ctx = Context(strategy.spec, strategy.facts, grid, Whole(blocks) if whole else blocks)
    grid.world.barrier()
    peak, seconds = watched(lambda: strategy.operators(ctx))
    return peak, seconds, ctx.memory.persistent_bytes()[TensorName.A]


def watched(act: Callable[[], object]) -> tuple[int, float]:
    """The most memory above that of the beginning, and the seconds."""
    before, most, done = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(EVERY):
            most = max(most, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = perf_counter()
    held = act()
    seconds, most = perf_counter() - begun, max(most, anonymous())
    done.set()
    watcher.join()
    del held
    return most - before, seconds


def anonymous() -> int:
    """Bytes of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="rmat-21")
    parser.add_argument("--strategy", default="plexus")
    parser.add_argument("--grid", default="2x2x2")
    options = parser.parse_args()
    ranks = prod(map(int, options.grid.split("x")))
    asked = {"strategy": options.strategy, "dataset": options.dataset, "ranks": ranks, "grid": options.grid}
    print("| each rank loads | blocks of A, MB | peak, MB | over its blocks | seconds |")
    print("| --- | --- | --- | --- | --- |")
    found = {}
    with Pool() as pool:
        for whole in (False, True):
            peak, seconds, held = max(pool.run(ranks, load, asked, whole))
            found[whole] = peak, seconds
            name = "the whole graph" if whole else "its own blocks"
            print(f"| {name} | {held / 1e6:,.0f} | {peak / 1e6:,.0f} | {peak / held:.2f} | {seconds:.1f} |")
    (own, fast), (whole_peak, slow) = found[False], found[True]
    print(
        f"\nwhole over own: memory {whole_peak / own:.1f} (paper 16.2), seconds {slow / fast:.1f} (paper 19.9)"
    )


if __name__ == "__main__":
    main()
