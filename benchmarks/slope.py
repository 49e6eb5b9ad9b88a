"""Epoch time against the words that a rank's link must carry, on links of three rates: the slope is the rate.

    python benchmarks/slope.py [--rates 100 200 400] [--widths 16 64]

Needs root. For each rate this makes an emulated cluster of four hosts (benchmarks/testbed), trains every strategy on
it at each width (of features and of hidden layers), and takes the cluster down. Writes benchmarks/results/slope.csv,
draws slope.svg beside it (`--redraw` does only that) and prints the bandwidth of each rate by least squares, beside
the 95 % of the rate that TCP leaves to useful bytes. Every strategy has an intercept of its own, for time that does
not depend on words. Words are those on the path (benchmarks/network.py). The slopes of strategies that send little
more than gradients say nothing: their words take next to no time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from measuring import Table, argument_parser, on_hosts, train_in_turns, trainer_of
from network import SCHEMES, Scheme

from harness.figures.drawing import render_figure, style_context
from harness.figures.palette import look_of
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root
from harness.store.datasets import build_store

FULL_GRAPH = (
    *(scheme for scheme in SCHEMES if not scheme.params),
    Scheme("pipegcn", "4"),
    Scheme("neutronstar", "4"),
)
MINI_BATCHES = (
    Scheme("cluster-gcn", "4", {}, 256),
    Scheme("scalegnn", "1x2x2x1", {}, 4096),
    Scheme("scalegnn", "2x2x1x1", {}, 4096),
    Scheme("bulk-sage", "2x2", {"graph": "partitioned"}, 256),
    Scheme("bulk-ladies", "4x1", {}, 256),
    Scheme("distdgl", "4", {}, 256),
    Scheme("salient", "4", {"prefetch": False}, 256),
    Scheme("massivegnn", "4", {"prefetch": False}, 256),
    Scheme("quiver", "4", {"prefetch": False}, 256),
    Scheme("graphsage", "4", {}, 256),
    Scheme("graphsaint-node", "4", {}, 256),
)
"""Nothing is prefetched, so that an epoch takes the time of its words and of its other work, one after the other."""
FEW = 100_000
"""Words whose time on the slowest link is no more than the noise of an epoch."""
BITS = 32
USEFUL = 0.95
HERE = Path(__file__).parent
POINTS = HERE / "results" / "slope.csv"


def main() -> None:
    parser = argument_parser(__doc__)
    rates, widths = [100, 200, 400], [16, 64]
    parser.add_argument("--rates", type=int, nargs="+", default=rates, help="of the links, in Mbit/s")
    parser.add_argument("--widths", type=int, nargs="+", default=widths, help="of features and hidden layers")
    parser.add_argument("--dataset", default="ogbn-products@1/64", help="a twin, without its width")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="strategies (default: all)")
    parser.add_argument("--redraw", action="store_true", help="from the last measurements")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        measure_here(options)
        return
    if not options.redraw:
        for width in options.widths:
            build_store(find_root(), DatasetChoice(name=f"{options.dataset}w{width}"))
        lines = [{"rate": rate, **row} for rate in options.rates for row in measured_at(rate, options)]
        pd.DataFrame(lines).to_csv(POINTS, index=False)
    frame = pd.read_csv(POINTS)
    points = {rate: frame[frame.rate == rate] for rate in sorted(set(frame.rate.astype(int).tolist()))}
    (HERE / "results" / "slope.svg").write_bytes(drawn(points))
    table = Table("links, Mbit/s", "95 % of it", "by the slope", "over it", "points")
    for rate, rows in points.items():
        slope = bandwidth(rows)
        table.row(rate, f"{USEFUL * rate:.1f}", f"{slope:.1f}", f"{slope / (USEFUL * rate):.2f}", len(rows))
    print()
    table = Table("over it, by itself", *map(str, points))
    for scheme in dict.fromkeys(scheme for rows in points.values() for scheme in rows.scheme):
        own = {rate: rows[rows.scheme == scheme] for rate, rows in points.items()}
        ratios = (
            f"{bandwidth(rows) / (USEFUL * rate):.2f}" if many(rows) else "" for rate, rows in own.items()
        )
        table.row(scheme, *ratios)


def measured_at(rate: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each scheme and width, measured on hosts with links of this rate."""
    testbed = [sys.executable, str(HERE / "testbed")]
    words = ["--widths", *map(str, options.widths), "--dataset", options.dataset]
    words += ["--epochs", str(options.epochs), *(["--only", *options.only] if options.only else [])]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows"
        call([*testbed, "up", "--hosts", "4", "--rate", f"{rate}mbit"])
        try:
            call([*testbed, "run", "--", sys.executable, __file__, *words, "--out", str(out)])
        finally:
            call([*testbed, "down"])
        return [json.loads(line) for line in out.read_text().splitlines()]


def call(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure_here(options: argparse.Namespace) -> None:
    """This rank's part, on a host of the cluster."""
    with on_hosts():
        for scheme in FULL_GRAPH + MINI_BATCHES:
            if options.only and scheme.name not in options.only:
                continue
            for width in options.widths:
                trainer = trainer_of(scheme.spec(f"{options.dataset}w{width}", width))
                for turns in train_in_turns([trainer], options.epochs):
                    row = {"strategy": scheme.name, "scheme": f"{scheme.name} {scheme.grid}", "width": width}
                    row |= {"seconds": turns.median(), "words": turns.most("path")}
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def many(rows: pd.DataFrame) -> bool:
    """Whether more than a few words lie between the widths."""
    return bool(rows.words.max() - rows.words.min() > FEW)


def bandwidth(rows: pd.DataFrame) -> float:
    """Mbit/s by the slope of seconds over words, of parallel lines: one for each strategy and grid."""
    own = pd.get_dummies(rows.scheme, dtype=float)
    slope = np.linalg.lstsq(np.column_stack([rows.words, own]), rows.seconds.to_numpy())[0][0]
    return float(BITS / slope / 1e6)


def drawn(points: dict[int, pd.DataFrame]) -> bytes:
    """All rates in one panel, each with the line of its links."""
    with style_context():
        figure = Figure(figsize=(6.0, 3.4))
        axes = figure.subplots()
        for rate, rows in points.items():
            far = rows.words.max()
            end = far / 1e6, BITS * far / (USEFUL * rate * 1e6)
            axes.plot(*zip((0, 0), end, strict=True), color="0.6", linewidth=0.8, zorder=1)
            axes.text(*end, f" {rate} Mbit/s", fontsize=6, va="center")
            for strategy, some in rows.groupby("strategy", sort=False):
                look = look_of(str(strategy))
                style = {"linestyle": "none", "marker": look.marker, "markersize": 4, "color": look.colour}
                axes.plot(some.words / 1e6, some.seconds, label=str(strategy), **style)
        handles, labels = axes.get_legend_handles_labels()
        legend = dict(zip(labels, handles, strict=True))
        axes.set_xlabel("words on the path of an epoch, millions")
        axes.set_ylabel("epoch time, s")
        figure.legend(legend.values(), legend.keys(), fontsize=6, loc="outside right center")
        return render_figure(figure, "svg", "slope", "benchmarks/slope.py")


if __name__ == "__main__":
    main()
