"""Epoch time against the words that a rank's link must carry, on links of three rates: the slope is the rate.

    python benchmarks/slope.py [--rates 100 200 400] [--widths 16 64]

Needs root: for each rate it makes an emulated cluster of four hosts (benchmarks/testbed), has every strategy train on
it at each width, of features and of hidden layers, and takes it down. It writes benchmarks/results/slope.csv, draws
slope.svg beside it (`--redraw` does that alone) and prints, for each rate, the bandwidth by least squares, beside the
95 % of the rate that TCP leaves to useful bytes. What does not depend on words is each strategy's own. Words are those
on the path (benchmarks/network.py). Strategies that send little more than gradients are there too; their own slopes
say nothing, as their words take no time to speak of.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from network import SCHEMES, measure, spec_of

from harness.comm import engine
from harness.comm.engine import Engine
from harness.figures.drawing import rendered, styled
from harness.figures.palette import look_of
from harness.spec.dataset import DatasetChoice
from harness.spec.root import project_root
from harness.store.build import build

FULL_GRAPH: list[tuple[str, str, dict[str, Any], int]] = [
    *((name, grid, params, 0) for name, grid, params in SCHEMES if not params),
    ("pipegcn", "4", {}, 0),
    ("neutronstar", "4", {}, 0),
]
MINI_BATCHES: list[tuple[str, str, dict[str, Any], int]] = [
    ("cluster-gcn", "4", {}, 256),
    ("scalegnn", "1x2x2x1", {}, 4096),
    ("scalegnn", "2x2x1x1", {}, 4096),
    ("bulk-sage", "2x2", {"graph": "partitioned"}, 256),
    ("bulk-ladies", "4x1", {}, 256),
    ("distdgl", "4", {}, 256),
    ("salient", "4", {"prefetch": False}, 256),
    ("massivegnn", "4", {"prefetch": False}, 256),
    ("quiver", "4", {"prefetch": False}, 256),
    ("graphsage", "4", {}, 256),
    ("graphsaint-node", "4", {}, 256),
]
"""With the vertices of a batch. Nothing is fetched ahead, so that time is that of words and of what is left."""
FEW = 100_000
"""Words whose time, on the slowest link, is that by which epochs differ anyway."""
BITS = 32
USEFUL = 0.95
HERE = Path(__file__).parent
POINTS = HERE / "results" / "slope.csv"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rates", type=int, nargs="+", default=[100, 200, 400], help="of the links, in Mbit/s"
    )
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[16, 64], help="of features and hidden layers"
    )
    parser.add_argument("--dataset", default="ogbn-products@1/64", help="a twin, without its width")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="strategies (default: all)")
    parser.add_argument("--redraw", action="store_true", help="from what was measured last")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        measure_here(options)
        return
    if not options.redraw:
        for width in options.widths:
            build(project_root(), DatasetChoice(name=f"{options.dataset}w{width}"))
        rows = [{"rate": rate, **row} for rate in options.rates for row in measured_at(rate, options)]
        pd.DataFrame(rows).to_csv(POINTS, index=False)
    points = {int(rate): rows for rate, rows in pd.read_csv(POINTS).groupby("rate")}
    (HERE / "results" / "slope.svg").write_bytes(drawn(points))
    print("| links, Mbit/s | 95 % of it | by the slope | over it | points |\n| --- | --- | --- | --- | --- |")
    for rate, rows in points.items():
        found = bandwidth(rows)
        print(f"| {rate} | {USEFUL * rate:.1f} | {found:.1f} | {found / (USEFUL * rate):.2f} | {len(rows)} |")
    schemes = list(dict.fromkeys(scheme for rows in points.values() for scheme in rows.scheme))
    print(f"\n| over it, by itself | {' | '.join(map(str, points))} |\n|{' --- |' * (len(points) + 1)}")
    for scheme in schemes:
        own = {rate: rows[rows.scheme == scheme] for rate, rows in points.items()}
        cells = [
            f"{bandwidth(rows) / (USEFUL * rate):.2f}" if many(rows) else "" for rate, rows in own.items()
        ]
        print(f"| {scheme} | {' | '.join(cells)} |")


def measured_at(rate: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a scheme and width, measured on hosts whose links have this rate."""
    testbed = [sys.executable, str(HERE / "testbed")]
    words = [
        "--widths",
        *map(str, options.widths),
        "--dataset",
        options.dataset,
        "--epochs",
        str(options.epochs),
    ]
    words += ["--only", *options.only] if options.only else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows"
        command = [sys.executable, __file__, *words, "--out", str(out)]
        call([*testbed, "up", "--hosts", "4", "--rate", f"{rate}mbit"])
        try:
            call([*testbed, "run", "--", *command])
        finally:
            call([*testbed, "down"])
        return [json.loads(line) for line in out.read_text().splitlines()]


def call(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure_here(options: argparse.Namespace) -> None:
    """This rank's part, on a host of the cluster."""
    torch.set_num_threads(1)
    place = engine.place(os.environ)
    engine.start(Engine.GLOO, place)
    for name, grid, params, batch in FULL_GRAPH + MINI_BATCHES:
        if options.only and name not in options.only:
            continue
        for width in options.widths:
            spec = spec_of(name, grid, params, f"{options.dataset}w{width}", width, batch)
            everyone = measure(spec, options.epochs)
            if place.rank == 0:
                row = {"strategy": name, "scheme": f"{name} {grid}", "width": width}
                row |= {
                    "seconds": max(one.seconds for one in everyone),
                    "words": max(one.path for one in everyone),
                }
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    engine.stop()


def many(rows: pd.DataFrame) -> bool:
    """Whether more words than a few lie between the widths."""
    return bool(rows.words.max() - rows.words.min() > FEW)


def bandwidth(rows: pd.DataFrame) -> float:
    """Mbit/s by the slope of seconds over words, of parallel lines: one for each strategy and grid."""
    own = pd.get_dummies(rows.scheme, dtype=float)
    slope = np.linalg.lstsq(np.column_stack([rows.words, own]), rows.seconds)[0][0]
    return float(BITS / slope / 1e6)


def drawn(points: dict[int, pd.DataFrame]) -> bytes:
    """All rates in one panel, each with the line of its links."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(6.0, 3.4))
        axes = figure.subplots()
        for rate, rows in points.items():
            far = rows.words.max()
            end = far / 1e6, BITS * far / (USEFUL * rate * 1e6)
            axes.plot(*zip((0, 0), end, strict=True), color="0.6", linewidth=0.8, zorder=1)
            axes.text(*end, f" {rate} Mbit/s", fontsize=6, va="center")
            for strategy, some in rows.groupby("strategy", sort=False):
                look = look_of(str(strategy))
                axes.plot(
                    some.words / 1e6,
                    some.seconds,
                    linestyle="none",
                    marker=look.marker,
                    color=look.colour,
                    label=strategy,
                    markersize=4,
                )
        named = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        axes.set_xlabel("words on the path of an epoch, millions")
        axes.set_ylabel("epoch time, s")
        figure.legend(named.values(), named.keys(), fontsize=6, loc="outside right center")
        return rendered(figure, "svg", "slope", "benchmarks/slope.py")


if __name__ == "__main__":
    main()
