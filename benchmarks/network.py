"""Epochs where links are the bottleneck: the communication of each scheme beside its words over the link's rate.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/network.py --rate 200
    python benchmarks/testbed down

Seconds are those in which the slowest rank was in collectives, the median of epochs. Beside them stand the words of
the formula, and of these the words that a rank receives by the ledger's conventions, and how long either takes at the
link's rate: stages that follow one another cannot beat the first, calls that overlap cannot beat the second. On the
path lie all words of a broadcast, which all wait for whoever receives them, and of other calls those that a rank
receives. Large calls are composed out of rounds, as config/machines/ethernet.yaml says.
"""

import argparse
import os
from math import prod
from statistics import median
from typing import Any, NamedTuple

import torch
from ready import opened

from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.experiment.request import make_spec
from harness.ledger import MOVING, Ledger, Op
from harness.run.replicas import gather
from harness.run.trainer import Trainer
from harness.spec.root import project_root
from harness.spec.spec import Spec

SCHEMES: list[tuple[str, str, dict[str, Any]]] = [
    ("cagnet-1d", "4", {}),
    ("cagnet-1d", "4", {"moves": "all_gather"}),
    ("cagnet-1d", "4", {"weight_gradient": "T"}),
    ("cagnet-1d", "4", {"overlap": True}),
    ("cagnet-1.5d", "2x2", {}),
    ("cagnet-1.5d", "1x4", {}),
    ("cagnet-2d", "2x2", {}),
    ("cagnet-2d", "2x2", {"overlap": True}),
    ("cagnet-2d", "2x2", {"weight_gradient": "S", "overlap": True}),
    ("cagnet-2d", "2x2", {"weight_gradient": "T", "overlap": True}),
    ("cagnet-3d", "2x1x2", {}),
    ("cagnet-3d", "2x1x2", {"overlap": True}),
    ("plexus", "2x2x1", {}),
    ("plexus", "2x1x2", {}),
    ("plexus", "2x1x2", {"aggregation": "blocked"}),
    ("plexus", "2x1x2", {"aggregation": "overlapped"}),
    ("cagnet-sa-1d", "4", {}),
    ("cagnet-sa-1d", "4", {"overlap": True}),
    ("cagnet-sa-1.5d", "2x2", {}),
    ("bns-gcn", "4", {}),
    ("bns-gcn", "4", {"overlap": True}),
    ("g3", "4", {}),
]
WARM = 1


def spec_of(name: str, grid: str, params: dict[str, Any], dataset: str, hidden: int, batch: int = 0) -> Spec:
    ranks = prod(map(int, grid.split("x")))
    asked = {"strategy": {"name": name, "params": params}, "dataset": dataset, "ranks": ranks, "grid": grid}
    asked |= {"machine": "ethernet", "model": {"hidden": hidden}, "training": {"batch": batch}}
    return make_spec(project_root(), asked, "network")


class Measured(NamedTuple):
    """One rank's seconds of an epoch and of its collectives, and their words."""

    seconds: float
    moving: float
    payload: float
    received: float
    path: float


def measure(spec: Spec, epochs: int) -> list[Measured]:
    """What every rank measured, on rank 0."""
    strategy, blocks = opened(spec)
    grid = Grid.build(strategy.grid, Ledger(), composed_from=spec.machine.composed_from)
    trainer = Trainer(strategy, grid, blocks)
    seconds, moving, payload, received, path = [], [], 0.0, 0.0, 0.0
    for number in range(-WARM, epochs):
        grid.world.barrier()
        epoch = trainer.epoch()
        broadcasts = [a for key, a in epoch.entries.items() if key.op is Op.BROADCAST]
        moved = [amounts for key, amounts in epoch.entries.items() if key.op in MOVING]
        if number >= 0:
            seconds.append(epoch.seconds)
            moving.append(sum(amounts.seconds for amounts in moved))
            payload = sum(amounts.words_payload for amounts in moved)
            received = sum(amounts.words_received for amounts in moved)
            path = received + sum(a.words_payload - a.words_received for a in broadcasts)
    return gather(grid.world, Measured(median(seconds), median(moving), payload, received, path))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="rmat-17")
    parser.add_argument("--rate", type=float, required=True, help="of the links, in Mbit/s")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="strategies (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = engine.place(os.environ)
    engine.start(Engine.GLOO, place)
    if place.rank == 0:
        titles = ["scheme", "grid", "epoch s", "collectives s"]
        for words in ("words", "received", "on the path"):
            titles += [words, "s at the rate", "ratio"]
        print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    for name, grid, params in SCHEMES:
        if options.only and name not in options.only:
            continue
        spec = spec_of(name, grid, params, options.dataset, options.hidden)
        everyone = measure(spec, options.epochs)
        if place.rank == 0:
            seconds, moving, *words = map(max, zip(*everyone, strict=True))
            bounds = [32 * count / options.rate / 1e6 for count in words]
            said = " ".join([name, *(f"{key}={value}" for key, value in params.items())])
            cells = [
                f"{w:,.0f} | {bound:.3f} | {moving / bound:.2f}"
                for w, bound in zip(words, bounds, strict=True)
            ]
            print(f"| {said} | {grid} | {seconds:.3f} | {moving:.3f} | {' | '.join(cells)} |", flush=True)
    engine.stop()


if __name__ == "__main__":
    main()
