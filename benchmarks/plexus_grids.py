"""Plexus' figure 5: the epoch that its model predicts for every grid against the epoch that is observed.

    harness data build amazon-shape --permutation double
    python benchmarks/testbed up --hosts 8 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/plexus_grids.py
    python benchmarks/testbed down
    python benchmarks/plexus_grids.py --predict perlmutter --ranks 64

One rank a host, every grid of as many ranks as there are hosts, three layers, hidden 128, trained features. Predicted
is what `harness plan` says by the card config/machines/ethernet.yaml; observed is the slowest rank's time, the
median of epochs. Prints a table and the rank correlation of the two, and draws
figures/plexus-figure-5-RANKS.{pdf,png,svg}.
With --predict nothing runs: a bar for each grid of ogbn-products on a machine that has only a card.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from ready import opened
from scipy.stats import spearmanr

from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.cost.epoch import predict
from harness.experiment.request import make_spec
from harness.figures.drawing import save, styled
from harness.figures.palette import COLOURS
from harness.ledger import AxisName, Ledger
from harness.registry import load_strategy
from harness.run.replicas import gather
from harness.run.trainer import Trainer
from harness.spec.machine import load_machine_card
from harness.spec.root import project_root
from harness.spec.spec import Spec, grid_text
from harness.strategy import BlockCounts, Counts, Facts, ShapeBlocks, Strategy, admit

MACHINE, WARM = "ethernet", 1
PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, directed=False, labelled=2_449_029, training=196_615)
"""ogbn-products, by the paper's Table 4."""
DIMENSIONS = {1: "1D", 2: "2D", 3: "3D"}


def spec_of(dataset: str, grid: dict[AxisName, int], ranks: int, machine: str = MACHINE) -> Spec:
    asked = {"strategy": "plexus", "dataset": {"name": dataset, "permutation": "double"}, "ranks": ranks}
    chosen = {"grid": grid, "model": {"hidden": 128}, "training": {"features": True}, "machine": machine}
    return make_spec(project_root(), {**asked, **chosen}, "grids")


def observe(spec: Spec, epochs: int) -> tuple[float, float]:
    """Predicted and observed seconds of an epoch, on rank 0."""
    strategy, blocks = opened(spec)
    grid = Grid.build(strategy.grid, Ledger(), composed_from=spec.machine.composed_from)
    trainer, seconds = Trainer(strategy, grid, blocks), []
    for _ in range(-WARM, epochs):
        grid.world.barrier()
        seconds.append(trainer.epoch().seconds)
    observed = max(gather(grid.world, median(seconds[WARM:])), default=0.0)
    return sum(forecast(strategy, trainer.ctx.blocks.counts)), observed


def forecast(strategy: Strategy, counts: Counts) -> tuple[float, float]:
    """Seconds of the products and of the communication of an epoch."""
    name = strategy.spec.machine.name
    multiplying, moving = predict(strategy, load_machine_card(project_root(), name), counts)
    assert multiplying is not None and moving is not None, f"config/machines/{name}.yaml predicts nothing"
    return multiplying, moving


def predict_all(machine: str, ranks: int) -> dict[str, tuple[float, float]]:
    """Every grid of ogbn-products, the best first."""
    found, plexus = {}, load_strategy("plexus")
    for grid in plexus.grids(ranks):
        strategy = admit(plexus, spec_of("ogbn-products", grid, ranks, machine), PRODUCTS)
        found[grid_text(grid, " ")] = forecast(strategy, BlockCounts(ShapeBlocks(PRODUCTS, "double")))
    return dict(sorted(found.items(), key=lambda pair: sum(pair[1])))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="amazon-shape")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--predict", metavar="MACHINE", help="run nothing; grids of ogbn-products there")
    parser.add_argument("--ranks", type=int, default=64, help="for --predict")
    options = parser.parse_args()
    if options.predict:
        found = predict_all(options.predict, options.ranks)
        print("| grid | products ms | communication ms | epoch ms |\n| --- | --- | --- | --- |")
        for grid, (multiplying, moving) in found.items():
            times = (f"{1e3 * seconds:.1f}" for seconds in (multiplying, moving, multiplying + moving))
            print(f"| {grid} | {' | '.join(times)} |")
        keep(bars, found, f"plexus-figure-5-{options.predict}", "ogbn-products")
        return
    torch.set_num_threads(1)
    place = engine.place(os.environ)
    engine.start(Engine.GLOO, place)
    observed_by_grid: dict[tuple[int, ...], tuple[float, float]] = {}
    if place.rank == 0:
        print("| grid | predicted s | observed s | observed over predicted |\n| --- | --- | --- | --- |")
    for grid in load_strategy("plexus").grids(place.world):
        predicted, observed = observe(spec_of(options.dataset, grid, place.world), options.epochs)
        if place.rank == 0:
            observed_by_grid[tuple(grid.values())] = predicted, observed
            ratio = observed / predicted
            print(f"| {grid_text(grid, ' ')} | {predicted:.3f} | {observed:.3f} | {ratio:.2f} |", flush=True)
    engine.stop()
    if place.rank == 0:
        rank = spearmanr(*zip(*observed_by_grid.values(), strict=True)).statistic
        print(
            f"\n{len(observed_by_grid)} grids of {place.world} ranks on {options.dataset}, rank correlation {rank:.3f}"
        )
        keep(drawn, observed_by_grid, f"plexus-figure-5-{place.world}", options.dataset)


def keep(draw: Callable[..., Figure], found: Mapping[Any, tuple[float, float]], name: str, of: str) -> None:
    with styled():
        for path in save(draw(found), Path("figures"), name, of):
            print(path)


def bars(found: dict[str, tuple[float, float]]) -> Figure:
    """Products and communication end to end."""
    figure = Figure(figsize=(3.4, 0.4 + 0.15 * len(found)), layout="constrained")
    axes = figure.subplots()
    multiplying, moving = zip(*found.values(), strict=True)
    places = range(len(found))
    axes.barh(places, [1e3 * s for s in multiplying], color=COLOURS[0], label="products with A")
    left = [1e3 * s for s in multiplying]
    axes.barh(places, [1e3 * s for s in moving], left=left, color=COLOURS[1], label="communication")
    axes.set_yticks(places, list(found))
    axes.invert_yaxis()
    axes.set_xlabel("predicted time of an epoch (ms)")
    axes.legend()
    return figure


def drawn(found: dict[tuple[int, ...], tuple[float, float]]) -> Figure:
    """A point for each grid, by the number of its axes that have more than one rank; the line is equality."""
    figure = Figure(figsize=(3.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for number, (dimensions, marker) in enumerate(zip(DIMENSIONS, "so^", strict=True)):
        mine = [pair for grid, pair in found.items() if sum(size > 1 for size in grid) == dimensions]
        if mine:
            predicted, observed = zip(*mine, strict=True)
            told = {"label": f"{DIMENSIONS[dimensions]} grids", "color": COLOURS[number], "marker": marker}
            axes.plot(observed, predicted, linestyle="none", **told)
    most = 1.05 * max(max(pair) for pair in found.values())
    axes.plot([0, most], [0, most], color="0.6", linewidth=0.8)
    axes.set_xlim(0, most)
    axes.set_ylim(0, most)
    axes.set_xlabel("observed time of an epoch (s)")
    axes.set_ylabel("predicted (s)")
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
