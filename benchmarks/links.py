"""Collectives where links are the bottleneck: gloo's own beside those composed out of rounds.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/links.py

Milliseconds are those of the slowest rank, the median of rounds in which the ways take turns. Mbit/s are the useful
words that a rank receives by the ledger's conventions, over that time; a link carries 95 % of its nominal rate.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import torch

from harness.comm import engine
from harness.comm.axis import Axis
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName
from harness.ranges import split

COLUMNS = 16
SIZES = (1 << 16, 1 << 20, 1 << 22)  # bytes of the full buffer
ROUNDS, WARM = 7, 2
H = TensorName.H
Calls = dict[str, Callable[[], object]]


def calls(axis: Axis, size: int) -> Calls:
    """Every call on a buffer of so many bytes, from this member's side."""
    rows = size // (4 * COLUMNS)
    whole = torch.ones(rows, COLUMNS)
    sizes = [len(part) for part in split(rows, axis.size)]
    uneven = [rows // 2, *(len(part) for part in split(rows - rows // 2, axis.size - 1))]
    across, nothing = axis.size - 1 - axis.index, [0] * axis.size
    to_one = [*nothing[:across], rows, *nothing[across + 1 :]]
    mine, my_uneven = whole[: sizes[axis.index]], whole[: uneven[axis.index]]

    def broadcasts() -> None:
        for root in range(axis.size):
            axis.broadcast(mine, root=root, shape=(sizes[root], COLUMNS), tensor=H)

    return {
        "broadcast": lambda: axis.broadcast(whole, root=0, shape=whole.shape, tensor=H),
        "a broadcast from each in turn": broadcasts,
        "all_gather": lambda: axis.all_gather(mine, tensor=H, sizes=sizes),
        "all_gather, uneven": lambda: axis.all_gather(my_uneven, tensor=H, sizes=uneven),
        "reduce_scatter": lambda: axis.reduce_scatter(whole, tensor=H, sizes=sizes),
        "all_to_all": lambda: axis.all_to_all(
            whole, send=sizes, receive=[sizes[axis.index]] * axis.size, tensor=H
        ),
        "all_to_all, to one": lambda: axis.all_to_all(whole, send=to_one, receive=to_one, tensor=H),
        "all_reduce": lambda: axis.all_reduce(whole, tensor=H),
    }


def received_bits(axis: Axis, name: str, size: int) -> float:
    """What a member that is no root receives, on average over the members."""
    share = 1.0 if name in ("broadcast", "all_to_all, to one") else (axis.size - 1) / axis.size
    return 8 * size * share * (2 if name == "all_reduce" else 1)


def slowest(axis: Axis, seconds: float) -> float:
    everyone = axis.all_gather(torch.tensor([seconds], dtype=torch.float64), tensor=H)
    return float(everyone.max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    torch.set_num_threads(1)
    engine.start(Engine.GLOO, engine.place(os.environ))
    shape = {AxisName.P: engine.world_size()}
    library = Grid.build(shape, Ledger(recording=False))[AxisName.P]
    composed = Grid.build(shape, Ledger(recording=False), composed_from=0)[AxisName.P]
    told = library.index == 0
    if told:
        print("| call | bytes | gloo ms | Mbit/s | rounds ms | Mbit/s |")
        print("| --- | --- | --- | --- | --- | --- |")
    for size in SIZES:
        for name in calls(library, size):
            ways = [calls(axis, size)[name] for axis in (library, composed)]
            seconds: list[list[float]] = [[], []]
            for turn in range(-WARM, ROUNDS):
                for way, taken in zip(ways, seconds, strict=True):
                    library.barrier()
                    begun = time.perf_counter()
                    way()
                    took = slowest(library, time.perf_counter() - begun)
                    if turn >= 0:
                        taken.append(took)
            bits = received_bits(library, name, size)
            cells = [f"{1e3 * median(taken):.1f} | {bits / median(taken) / 1e6:.0f}" for taken in seconds]
            if told:
                print(f"| {name} | {size:,} | {' | '.join(cells)} |", flush=True)
    engine.stop()


if __name__ == "__main__":
    main()
