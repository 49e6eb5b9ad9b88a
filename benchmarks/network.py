"""Epochs on slow links: the communication of each scheme beside its words over the rate of the links.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/network.py --rate 200
    python benchmarks/testbed down

Seconds are the slowest rank's, the median of epochs: of the epoch, and of its collectives. Beside them stand three
counts of words, of the rank that has most, and how long each takes at the rate of the links:

- `words`: the payload, as in the formulas. Stages that follow one another cannot take less time.
- `received`: what a ring brings to the rank. Calls that overlap cannot take less time.
- `on the path`: the payload of broadcasts, whose receiver all ranks wait for, and the received words of all other
  calls.

Large calls are composed out of rounds, as in config/machines/ethernet.yaml.
"""

from math import prod
from typing import Any, NamedTuple

from measuring import Table, argument_parser, named, on_hosts, spec_of, train_in_turns, trainer_of

from harness.spec.spec import Spec


class Scheme(NamedTuple):
    """A strategy on a grid of four ranks; `batch` is 0 for the full graph."""

    name: str
    grid: str
    params: dict[str, Any] = {}
    batch: int = 0

    def spec(self, dataset: str, hidden: int) -> Spec:
        return spec_of(
            {
                "strategy": {"name": self.name, "params": self.params},
                "dataset": dataset,
                "ranks": prod(map(int, self.grid.split("x"))),
                "grid": self.grid,
                "machine": "ethernet",
                "model": {"hidden": hidden},
                "training": {"batch": self.batch},
            }
        )


SCHEMES = (
    Scheme("cagnet-1d", "4"),
    Scheme("cagnet-1d", "4", {"moves": "all_gather"}),
    Scheme("cagnet-1d", "4", {"weight_gradient": "T"}),
    Scheme("cagnet-1d", "4", {"overlap": True}),
    Scheme("cagnet-1.5d", "2x2"),
    Scheme("cagnet-1.5d", "1x4"),
    Scheme("cagnet-2d", "2x2"),
    Scheme("cagnet-2d", "2x2", {"moves": "all_gather"}),
    Scheme("cagnet-2d", "2x2", {"overlap": True}),
    Scheme("cagnet-2d", "2x2", {"weight_gradient": "S", "overlap": True}),
    Scheme("cagnet-2d", "2x2", {"weight_gradient": "T", "overlap": True}),
    Scheme("cagnet-2d", "2x2", {"weight_gradient": "T", "moves": "all_gather"}),
    Scheme("cagnet-3d", "2x1x2"),
    Scheme("cagnet-3d", "2x1x2", {"moves": "all_gather"}),
    Scheme("cagnet-3d", "2x1x2", {"overlap": True}),
    Scheme("plexus", "2x2x1"),
    Scheme("plexus", "2x1x2"),
    Scheme("plexus", "2x1x2", {"aggregation": "blocked"}),
    Scheme("plexus", "2x1x2", {"aggregation": "overlapped"}),
    Scheme("cagnet-sa-1d", "4"),
    Scheme("cagnet-sa-1d", "4", {"overlap": True}),
    Scheme("cagnet-sa-1.5d", "2x2"),
    Scheme("bns-gcn", "4"),
    Scheme("bns-gcn", "4", {"overlap": True}),
    Scheme("g3", "4"),
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dataset", default="rmat-17")
    parser.add_argument("--rate", type=float, required=True, help="of the links, in Mbit/s")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="strategies (default: all)")
    options = parser.parse_args()
    with on_hosts() as place:
        titles = ["scheme", "grid", "epoch s", "collectives s"]
        for words in ("words", "received", "on the path"):
            titles += [words, "s at the rate", "ratio"]
        table = Table(*titles, shown=place.rank == 0)
        for scheme in SCHEMES:
            if options.only and scheme.name not in options.only:
                continue
            trainer = trainer_of(scheme.spec(options.dataset, options.hidden))
            for turns in train_in_turns([trainer], options.epochs):
                moving = turns.median("moving")
                cells = []
                for words in ("words", "received", "path"):
                    count = turns.most(words)
                    bound = 32 * count / options.rate / 1e6
                    cells += [f"{count:,.0f}", f"{bound:.3f}", f"{moving / bound:.2f}"]
                seconds = (f"{turns.median():.3f}", f"{moving:.3f}")
                table.row(named(scheme.name, scheme.params), scheme.grid, *seconds, *cells)


if __name__ == "__main__":
    main()
