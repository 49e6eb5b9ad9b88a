"""Bulk sampling of a partitioned graph where links are the bottleneck: an epoch's messages and time against k.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/bulks.py
    python benchmarks/testbed down

k = 1 samples batch by batch, `all` every batch of the epoch at once. In every round each k trains one epoch, so a ratio
is of epochs that stood side by side: the median of the rounds' ratios to k = 1. Milliseconds are those of the slowest
rank, the median of epochs; messages and words those of the rank that has most, `sampling` those of its three phases.
"""

import argparse
import os
from statistics import median
from typing import NamedTuple

import torch
from ready import in_turns, slowest, times_as_slow, trainer_on_links

from harness.comm import engine
from harness.comm.engine import Engine
from harness.ledger import MOVING, SAMPLING
from harness.run.trainer import Trainer


class Turn(NamedTuple):
    """One epoch of one rank."""

    seconds: float
    sampling: float
    calls: int
    sampling_calls: int
    words: float


def trainer_of(grid: str, bulk: int, options: argparse.Namespace) -> Trainer:
    params = {"fanouts": options.fanouts, "bulk": bulk, "graph": "partitioned"}
    asked = {
        "strategy": {"name": "bulk-sage", "params": params},
        "dataset": {"name": options.dataset, "permutation": "single"},
        "grid": grid,
        "model": {"layers": len(options.fanouts), "hidden": options.hidden},
        "training": {"batch": options.batch},
    }
    return trainer_on_links(asked, "bulks")


def turn(trainer: Trainer) -> Turn:
    trainer.ctx.grid.world.barrier()
    epoch = trainer.epoch()
    sampling = {key: amounts for key, amounts in epoch.entries.items() if key.phase in SAMPLING}
    moved = [amounts for key, amounts in epoch.entries.items() if key.op in MOVING]
    return Turn(
        epoch.seconds,
        sum(amounts.seconds for amounts in sampling.values()),
        sum(amounts.calls for amounts in moved),
        sum(amounts.calls for key, amounts in sampling.items() if key.op in MOVING),
        sum(amounts.words_payload for amounts in moved),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="ogbn-products@1/64w16")
    parser.add_argument("--grids", nargs="+", default=["4x1", "2x2"])
    parser.add_argument("--bulks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 0], help="0: all batches")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine.start(Engine.GLOO, engine.place(os.environ))
    if engine.place(os.environ).rank == 0:
        print(
            "| grid | k | ms | sampling, ms | k = 1 is so many times slower | calls | of sampling | words |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for grid in options.grids:
        trainers = [trainer_of(grid, bulk, options) for bulk in options.bulks]
        if everyone := in_turns(trainers, turn, options.rounds):
            for number, bulk in enumerate(options.bulks):
                seconds = slowest(everyone, number)
                mine = [each[number] for rank in everyone for each in rank]
                ratio = times_as_slow(slowest(everyone, 0), seconds)
                print(
                    f"| {grid} | {bulk or 'all'} | {1e3 * median(seconds):.0f} | "
                    f"{1e3 * median(each.sampling for each in mine):.0f} | {ratio:.2f} | "
                    f"{max(each.calls for each in mine):,} | {max(each.sampling_calls for each in mine):,} | "
                    f"{max(each.words for each in mine):,.0f} |",
                    flush=True,
                )
    engine.stop()


if __name__ == "__main__":
    main()
