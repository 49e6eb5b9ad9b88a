"""Memory and time of loading: each rank its own blocks of the store, or each rank the whole graph to cut them out of.

    harness data build rmat-21
    python benchmarks/loading.py --dataset rmat-21 --strategy plexus --grid 2x2x2

All ranks load at once; the numbers are those of the rank that needs most. `peak` is the anonymous memory while it
loads, above that before (pages of mapped files can be dropped and do not count), beside the bytes of its blocks of A
and A^T, which stay. Plexus reports for ogbn-papers100M on 64 GPUs 146 GB and 139 s with the whole dataset, and 9 GB
and 7 s with 16 x 16 shards (PLX-103 to PLX-107).
"""

import threading
from collections.abc import Callable
from functools import cached_property
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from measuring import Table, argument_parser, one_thread, spec_of
from torch import Tensor

from harness.comm.grid import Grid
from harness.graph.blocks import Blocks
from harness.kernels import Csr
from harness.kernels.parts import extract_block
from harness.launch.worker_pool import Pool
from harness.ledger import Ledger, TensorName
from harness.run.open_run import open_run
from harness.spec.root import find_root
from harness.strategy import Context

EVERY = 0.002
"""Seconds between two looks at the memory."""


class Whole:
    """The same blocks, cut out of a graph that was loaded whole."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    @cached_property
    def _A(self) -> Csr:
        return self._blocks.adjacency(range(self._blocks.n), range(self._blocks.n))

    @cached_property
    def _X(self) -> Tensor:
        return self._blocks.feature_block(range(self._blocks.n), range(self._blocks.features))

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        assert self._blocks.permutation != "double", "one order is loaded"
        A = extract_block(self._A, rows, cols)
        return Csr(A.rowptr.clone(), A.col.clone(), A.val.clone(), A.cols)

    def feature_block(self, rows: range, cols: range) -> Tensor:
        return self._X[rows.start : rows.stop, cols.start : cols.stop].clone()


def load(asked: dict[str, Any], whole: bool) -> tuple[int, float, int]:
    """One rank's peak, its seconds, and the bytes of its blocks of A."""
    strategy, blocks = open_run(find_root(), spec_of(asked))
    grid = Grid.build(strategy.grid, Ledger())
    ctx = Context(strategy.spec, strategy.facts, grid, cast(Blocks, Whole(blocks)) if whole else blocks)
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
    """Bytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dataset", default="rmat-21")
    parser.add_argument("--strategy", default="plexus")
    parser.add_argument("--grid", default="2x2x2")
    options = parser.parse_args()
    one_thread()
    ranks = prod(map(int, options.grid.split("x")))
    asked = {"strategy": options.strategy, "dataset": options.dataset, "ranks": ranks, "grid": options.grid}
    table = Table("each rank loads", "blocks of A, MB", "peak, MB", "over its blocks", "seconds")
    peaks, times = [], []
    with Pool() as pool:
        for whole, name in ((False, "its own blocks"), (True, "the whole graph")):
            peak, seconds, held = max(pool.run(ranks, load, asked, whole))
            table.row(
                name, f"{held / 1e6:,.0f}", f"{peak / 1e6:,.0f}", f"{peak / held:.2f}", f"{seconds:.1f}"
            )
            peaks.append(peak)
            times.append(seconds)
    memory, slowdown = peaks[1] / peaks[0], times[1] / times[0]
    print(f"\nwhole over own: memory {memory:.1f} (paper 16.2), seconds {slowdown:.1f} (paper 19.9)")


if __name__ == "__main__":
    main()
