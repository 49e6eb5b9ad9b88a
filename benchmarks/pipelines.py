"""G3's four pipelines on slow links, in turns, and the exact halo exchange beside them.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/pipelines.py --rate 200
    python benchmarks/testbed down

In every round each variant trains one epoch. A ratio is the median of the rounds' ratios to `sequential`, of epochs
side by side. Milliseconds are the slowest rank's, the median of epochs: of the epoch, and of the epoch without calls
and waits (`computing`). Calls and received words are those of the rank that has most. `at best` is the ratio of a
variant that computes as `sequential` does, receives its words at the rate of the links, and hides the shorter of the
two. G3 has fetched the first layer's rows before training. The halo exchange has not, because it may sample other rows
in each epoch.
"""

import argparse
from typing import Any

from measuring import Table, argument_parser, named, on_hosts, train_in_turns, trainer_on_hosts

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("g3", {"pipeline": "sequential"}),
    ("g3", {"pipeline": "inter"}),
    ("g3", {"pipeline": "intra"}),
    ("g3", {"pipeline": "full"}),
    ("bns-gcn", {}),
    ("bns-gcn", {"precompute": False}),
    ("bns-gcn", {"overlap": True}),
]


def request(name: str, params: dict[str, Any], ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    more = {"bin_nodes": options.bin_nodes} if name == "g3" else {}
    return {
        "strategy": {"name": name, "params": params | more},
        "dataset": {"name": options.dataset, "partition": options.partition, "parts": ranks},
        "model": {"kind": options.kind, "layers": options.layers, "hidden": options.hidden}
        | ({"heads": options.heads} if options.kind == "gat" else {}),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dataset", default="rmat-17")
    parser.add_argument("--partition", default="g3-guarded")
    parser.add_argument("--kind", default="gcn", choices=("gcn", "sage", "gat"))
    parser.add_argument("--heads", type=int, default=8, help="of attention, each of the hidden width")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--bin-nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rate", type=float, required=True, help="of the links, in Mbit/s")
    options = parser.parse_args()
    with on_hosts() as place:
        requests = [request(name, params, place.world, options) for name, params in VARIANTS]
        variants = train_in_turns(list(map(trainer_on_hosts, requests)), options.rounds)
    if not variants:
        return
    sequential = variants[0]
    table = Table(
        "variant", "ms", "computing", "times as fast as sequential", "at best", "calls", "words received"
    )
    for (name, params), turns in zip(VARIANTS, variants, strict=True):
        moving = 32 * turns.most("received") / options.rate / 1e6
        best = sequential.median() / max(sequential.median("computing"), moving)
        table.row(
            named(name, params),
            f"{1e3 * turns.median():.0f}",
            f"{1e3 * turns.median('computing'):.0f}",
            f"{turns.ratio(sequential):.2f}",
            f"{best:.2f}",
            f"{turns.most('calls'):,}",
            f"{turns.most('received'):,.0f}",
        )


if __name__ == "__main__":
    main()
