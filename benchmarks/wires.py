"""Epochs of each strategy with features and activations on the wire in full and as bf16, in turns.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/wires.py
    python benchmarks/testbed down

Seconds are the slowest rank's, the median of epochs. Ratios are of turns side by side. `bytes` are those of the rank
that sends most, as bf16 over those in full; tensors that are never rounded keep the ratio above a half.
"""

from measuring import Table, argument_parser, on_hosts, train_in_turns, trainer_of
from network import Scheme

SCHEMES = (
    Scheme("cagnet-1d", "4"),
    Scheme("cagnet-1.5d", "2x2"),
    Scheme("cagnet-2d", "2x2"),
    Scheme("cagnet-3d", "2x1x2"),
    Scheme("cagnet-sa-1d", "4"),
    Scheme("cagnet-sa-1.5d", "2x2"),
    Scheme("plexus", "2x2x1"),
    Scheme("g3", "4"),
    Scheme("bns-gcn", "4"),
    Scheme("pipegcn", "4"),
    Scheme("neutronstar", "4"),
    Scheme("scalegnn", "1x2x2x1", batch=1 << 14),
    Scheme("distdgl", "4", batch=4096),
    Scheme("bulk-sage", "2x2", batch=4096),
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--dataset", default="rmat-17")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=16)
    options = parser.parse_args()
    with on_hosts() as place:
        table = Table(
            "strategy", "grid", "in full s", "bf16 s", "times as fast", "bytes", shown=place.rank == 0
        )
        for scheme in SCHEMES:
            wires = [scheme._replace(params={"wire": wire}) for wire in ("full", "bf16")]
            trainers = [trainer_of(each.spec(options.dataset, options.hidden)) for each in wires]
            if turns := train_in_turns(trainers, options.epochs):
                full, bf16 = turns
                seconds = f"{full.median():.3f}", f"{bf16.median():.3f}", f"{bf16.ratio(full):.2f}"
                table.row(
                    scheme.name, scheme.grid, *seconds, f"{bf16.most('bytes') / full.most('bytes'):.2f}"
                )


if __name__ == "__main__":
    main()
