"""ScaleGNN's figure 5 on slow links: its optimisations, added one after the other.

    harness data build rmat-17
    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/ablation.py --grid 1x2x2x1
    python benchmarks/testbed down

Each host runs one rank. All stages are set up at once and take turns epoch by epoch, so they meet the same machine. A
time is the slowest rank's, the median over epochs: of the epoch, of the phases of sampling (`sample`) and of calls
(`collectives`). Prints a table and draws figures/scalegnn-figure-5-GRID-hHIDDEN.{pdf,png,svg}.
"""

import argparse
from typing import Any

from measuring import (
    Table,
    Turns,
    argument_parser,
    keep,
    on_hosts,
    stacked_bars,
    train_in_turns,
    trainer_on_hosts,
)

STAGES: dict[str, dict[str, Any]] = {
    "baseline": {},
    "+ prefetch": {"prefetch": True},
    "+ bf16": {"prefetch": True, "wire": "bf16"},
    "+ fusion": {"prefetch": True, "wire": "bf16", "fused": True},
    "+ overlap": {"prefetch": True, "wire": "bf16", "fused": True, "overlap": True},
}
MODEL = {"layers": 3, "projection": True, "norm": True, "residual": True, "dropout": 0.5}


def request(params: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "strategy": {"name": "scalegnn", "params": params},
        "dataset": options.dataset,
        "grid": options.grid,
        "model": MODEL | {"hidden": options.hidden},
        "training": {"batch": options.batch},
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--grid", required=True, help="of as many ranks as there are hosts, as 1x2x2x1")
    parser.add_argument("--dataset", default="rmat-17")
    parser.add_argument("--batch", type=int, default=1 << 14)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    with on_hosts():
        trainers = [trainer_on_hosts(request(params, options)) for params in STAGES.values()]
        stages = train_in_turns(trainers, options.epochs)
    if stages:
        report(options, stages)


def report(options: argparse.Namespace, stages: list[Turns]) -> None:
    """The table and the figure: sampling, collectives, and the rest of each stage's epoch."""
    table = Table("stage", "epoch s", "sample s", "collectives s", "speed-up", "of the stage before")
    epochs, sampling, moving = (
        [stage.median(what) for stage in stages] for what in ("seconds", "sampling", "moving")
    )
    before = [epochs[0], *epochs]
    for name, epoch, sample, calls, last in zip(STAGES, epochs, sampling, moving, before, strict=False):
        ratios = (f"{seconds / epoch:.2f}" for seconds in (epochs[0], last))
        table.row(name, *(f"{seconds:.3f}" for seconds in (epoch, sample, calls)), *ratios)
    rest = [max(e - s - m, 0) for e, s, m in zip(epochs, sampling, moving, strict=True)]
    parts = {"sampling": sampling, "collectives": moving, "everything else": rest}
    keep(
        lambda: stacked_bars(list(STAGES), parts, "time of an epoch (s)", height=2.0),
        f"scalegnn-figure-5-{options.grid}-h{options.hidden}",
        options.dataset,
    )


if __name__ == "__main__":
    main()
