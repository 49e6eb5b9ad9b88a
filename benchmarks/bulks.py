"""Bulk sampling of a partitioned graph on slow links: an epoch's messages and time against k.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/bulks.py
    python benchmarks/testbed down

k = 1 samples batch by batch, k = `all` samples every batch of the epoch at once. In every round each k trains one
epoch. A ratio is the median of the rounds' ratios, of epochs side by side. Milliseconds are the slowest rank's, the
median of epochs: of the epoch, and of the three phases of sampling. Calls and words are those of the rank that has
most.
"""

import argparse
from typing import Any

from measuring import Table, argument_parser, on_hosts, train_in_turns, trainer_on_hosts


def request(grid: str, bulk: int, options: argparse.Namespace) -> dict[str, Any]:
    params = {"fanouts": options.fanouts, "bulk": bulk, "graph": "partitioned"}
    return {
        "strategy": {"name": "bulk-sage", "params": params},
        "dataset": {"name": options.dataset, "permutation": "single"},
        "grid": grid,
        "model": {"layers": len(options.fanouts), "hidden": options.hidden},
        "training": {"batch": options.batch},
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dataset", default="ogbn-products@1/64w16")
    parser.add_argument("--grids", nargs="+", default=["4x1", "2x2"])
    parser.add_argument("--bulks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 0], help="0: all batches")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with on_hosts() as place:
        titles = (
            "grid",
            "k",
            "ms",
            "sampling, ms",
            "times as fast as k = 1",
            "calls",
            "of sampling",
            "words",
        )
        table = Table(*titles, shown=place.rank == 0)
        for grid in options.grids:
            trainers = [trainer_on_hosts(request(grid, bulk, options)) for bulk in options.bulks]
            measured = train_in_turns(trainers, options.rounds)
            for bulk, turns in zip(options.bulks, measured, strict=bool(measured)):
                table.row(
                    grid,
                    bulk or "all",
                    f"{1e3 * turns.median():.0f}",
                    f"{1e3 * turns.median('sampling'):.0f}",
                    f"{turns.ratio(measured[0]):.2f}",
                    f"{turns.most('calls'):,}",
                    f"{turns.most('sampling_calls'):,}",
                    f"{turns.most('words'):,.0f}",
                )


if __name__ == "__main__":
    main()
