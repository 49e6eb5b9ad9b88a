"""G3's four pipelines where links are the bottleneck, in turns; and the exact halo exchange beside them.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/pipelines.py
    python benchmarks/testbed down

Milliseconds are those of the slowest rank, the median of epochs; `computing` is what is left of them without
calls and waits. In every round each variant trains one epoch, so a ratio is of epochs that stood side by side: the
median of the rounds' ratios to `sequential`. Messages, and words received, are those of the rank that has most. G3 has
fetched the first layer's rows before training; the halo exchange, which may sample others in each epoch, does not.
"""

import argparse
import os
from statistics import median
from typing import Any, NamedTuple

import torch
from ready import in_turns, slowest, times_as_slow, trainer_on_links

from harness.comm import engine
from harness.comm.engine import Engine
from harness.ledger import MOVING
from harness.run.trainer import Trainer

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("g3", {"pipeline": "sequential"}),
    ("g3", {"pipeline": "inter"}),
    ("g3", {"pipeline": "intra"}),
    ("g3", {"pipeline": "full"}),
    ("bns-gcn", {}),
    ("bns-gcn", {"precompute": False}),
    ("bns-gcn", {"overlap": True}),
]


class Turn(NamedTuple):
    """One epoch of one rank."""

    seconds: float
    moving: float
    calls: int
    words: float


def trainer_of(name: str, params: dict[str, Any], options: argparse.Namespace) -> Trainer:
    more = {"bin_nodes": options.bin_nodes} if name == "g3" else {}
    asked = {
        "strategy": {"name": name, "params": params | more},
        "dataset": {"name": options.dataset, "partition": options.partition, "parts": engine.world_size()},
        "model": {"kind": options.kind, "layers": options.layers, "hidden": options.hidden}
        | ({"heads": options.heads} if options.kind == "gat" else {}),
    }
    return trainer_on_links(asked, "pipelines")


def turn(trainer: Trainer) -> Turn:
    trainer.ctx.grid.world.barrier()
    epoch = trainer.epoch()
    moved = [amounts for key, amounts in epoch.entries.items() if key.op in MOVING]
    return Turn(
        epoch.seconds,
        sum(amounts.seconds for amounts in moved),
        sum(amounts.calls for amounts in moved),
        sum(amounts.words_received for amounts in moved),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="rmat-17")
    parser.add_argument("--partition", default="g3-guarded")
    parser.add_argument("--kind", default="gcn", choices=("gcn", "sage", "gat"))
    parser.add_argument("--heads", type=int, default=8, help="of attention, each of the hidden width")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--bin-nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine.start(Engine.GLOO, engine.place(os.environ))
    trainers = [trainer_of(name, params, options) for name, params in VARIANTS]
    everyone = in_turns(trainers, turn, options.rounds)
    engine.stop()
    if not everyone:
        return
    print(
        "| variant | ms | computing | sequential is so many times slower | messages and calls | words received |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for v, (name, params) in enumerate(VARIANTS):
        said = " ".join([name, *(f"{key}={value}" for key, value in params.items())])
        seconds, mine = slowest(everyone, v), [each[v] for rank in everyone for each in rank]
        computing = median(each.seconds - each.moving for each in mine)
        ratio = times_as_slow(slowest(everyone, 0), seconds)
        print(
            f"| {said} | {1e3 * median(seconds):.0f} | {1e3 * computing:.0f} | {ratio:.2f} | "
            f"{max(each.calls for each in mine):,} | {max(each.words for each in mine):,.0f} |"
        )


if __name__ == "__main__":
    main()
