"""ScaleGNN's figure 5 where links are the bottleneck: its optimisations one after the other.

    harness data build rmat-17
    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/ablation.py --grid 1x2x2x1
    python benchmarks/testbed down

One rank a host. All stages are set up at once and take turns epoch by epoch, so they meet the same machine; a stage's
time is the median over epochs of the slowest rank's. `sample` is the time in the phases of sampling and `collectives`
the time in calls, of the slowest rank in each. Prints a table and draws figures/scalegnn-figure-5-GRID.{pdf,png,svg}.
"""

import argparse
import os
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from ready import in_turns, trainer_on_links

from harness.comm import engine
from harness.comm.engine import Engine
from harness.figures.drawing import save, styled
from harness.figures.palette import COLOURS
from harness.ledger import MOVING, SAMPLING
from harness.run.trainer import Trainer

STAGES: dict[str, dict[str, Any]] = {
    "baseline": {},
    "+ prefetch": {"prefetch": True},
    "+ bf16": {"prefetch": True, "wire": "bf16"},
    "+ fusion": {"prefetch": True, "wire": "bf16", "fused": True},
    "+ overlap": {"prefetch": True, "wire": "bf16", "fused": True, "overlap": True},
}
MODEL = {"layers": 3, "hidden": 128, "projection": True, "norm": True, "residual": True, "dropout": 0.5}


class Row(NamedTuple):
    """Seconds of one epoch of one rank: all, in the phases of sampling, in calls."""

    seconds: float
    sampling: float
    moving: float


def trainer_of(params: dict[str, Any], options: argparse.Namespace) -> Trainer:
    asked = {
        "strategy": {"name": "scalegnn", "params": params},
        "dataset": options.dataset,
        "grid": options.grid,
        "model": MODEL | {"hidden": options.hidden},
        "training": {"batch": options.batch},
    }
    return trainer_on_links(asked, "ablation")


def turn(trainer: Trainer) -> Row:
    trainer.ctx.grid.world.barrier()
    epoch = trainer.epoch()
    sampling = sum(amounts.seconds for key, amounts in epoch.entries.items() if key.phase in SAMPLING)
    moving = sum(amounts.seconds for key, amounts in epoch.entries.items() if key.op in MOVING)
    return Row(epoch.seconds, sampling, moving)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grid", required=True, help="of as many ranks as there are hosts, as 1x2x2x1")
    parser.add_argument("--dataset", default="rmat-17")
    parser.add_argument("--batch", type=int, default=1 << 14)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine.start(Engine.GLOO, engine.place(os.environ))
    trainers = [trainer_of(params, options) for params in STAGES.values()]
    everyone = in_turns(trainers, turn, options.epochs)
    engine.stop()
    if everyone:
        report(options, everyone)


def report(options: argparse.Namespace, everyone: list[list[list[Row]]]) -> None:
    """Of every stage the median over epochs of the slowest rank's seconds."""
    found = {}
    for number, name in enumerate(STAGES):
        epochs = [[rank[number] for rank in ranks] for ranks in zip(*everyone, strict=True)]
        slowest = [tuple(map(max, zip(*ranks, strict=True))) for ranks in epochs]
        found[name] = tuple(map(median, zip(*slowest, strict=True)))
    print("| stage | epoch s | sample s | collectives s | speed-up | of the stage before |\n|" + " --- |" * 6)
    first = before = found["baseline"][0]
    for name, (epoch, sampling, moving) in found.items():
        told = f"{epoch:.3f} | {sampling:.3f} | {moving:.3f} | {first / epoch:.2f} | {before / epoch:.2f}"
        print(f"| {name} | {told} |")
        before = epoch
    with styled():
        for path in save(drawn(found), Path("figures"), f"scalegnn-figure-5-{options.grid}", options.dataset):
            print(path)


def drawn(found: dict[str, tuple[float, ...]]) -> Figure:
    """A bar a stage: sampling, collectives, and the rest of the epoch."""
    figure = Figure(figsize=(3.4, 2.0), layout="constrained")
    axes = figure.subplots()
    epochs, sampling, moving = (list(part) for part in zip(*found.values(), strict=True))
    rest = [max(e - s - m, 0) for e, s, m in zip(epochs, sampling, moving, strict=True)]
    left = [0.0] * len(epochs)
    for number, (label, part) in enumerate(
        (("sampling", sampling), ("collectives", moving), ("everything else", rest))
    ):
        axes.barh(range(len(epochs)), part, left=left, color=COLOURS[number], label=label)
        left = [a + b for a, b in zip(left, part, strict=True)]
    axes.set_yticks(range(len(epochs)), list(found))
    axes.invert_yaxis()
    axes.set_xlabel("time of an epoch (s)")
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
