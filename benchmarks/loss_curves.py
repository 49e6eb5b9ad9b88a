"""Loss curves of every built-in strategy on the serial one, on files of Planetoid: do they lie on each other?

    python benchmarks/loss_curves.py FOLDER --name cora --epochs 50

FOLDER has ind.NAME.x and its seven siblings. Prints, for each strategy, the largest distance from the serial losses
relative to them, and draws figures/loss-curves-NAME.{pdf,png,svg}. In double precision, with Adam.
"""

import argparse
import os
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from matplotlib.figure import Figure

from harness.comm.grid import Grid
from harness.figures.palette import look_of
from harness.figures.save import save, styled
from harness.launch.pool import Pool
from harness.ledger import Ledger
from harness.registry import load_strategy, registered
from harness.run.trainer import Trainer
from harness.spec.spec import Spec, grid_text
from harness.store.card import DatasetCard
from harness.store.compose import compose
from harness.store.memory import MemoryStore
from harness.strategy import Context, admit, facts_of

MOST_CLASSES = 64


def card_of(folder: Path, name: str, classes: int) -> DatasetCard:
    source = {"kind": "planetoid", "path": str(folder), "dataset": name}
    told: dict[str, Any] = {"name": name, "source": source, "classes": classes}
    return DatasetCard.model_validate(
        {**told, **{key: {"kind": "file"} for key in ("features", "labels", "split")}}
    )


def losses(folder: Path, name: str, strategy: str, grid: dict[Any, int], epochs: int) -> list[float]:
    """Of one rank; they are the same on every rank."""
    graph = compose(card_of(folder, name, MOST_CLASSES), Path())
    graph = replace(graph, classes=int(graph.y.max()) + 1)
    given = {
        "strategy": strategy,
        "dataset": name,
        "ranks": prod(grid.values()),
        "grid": grid,
        "precision": "float64",
    }
    spec = Spec.model_validate({**given, "model": {"layers": 2, "hidden": 16}, "machine": {"name": "here"}})
    store, ledger = MemoryStore(graph), Ledger(recording=False)
    ready = admit(load_strategy(strategy), spec, facts_of(store))
    trainer = Trainer(ready, Context(ready, Grid.build(ready.grid, ledger), ledger, store))
    return [trainer.epoch().loss.item() for _ in range(epochs)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="cora")
    parser.add_argument("--epochs", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [point.name for point in registered() if point.value.startswith("strategies.")]
    serial, curves = torch.tensor([]), {}
    with Pool() as pool:
        for name in sorted(names, key=lambda name: name != "serial"):
            strategy = load_strategy(name)
            ranks = 1 if name == "serial" else max(4, 2 ** len(strategy.axes))
            grid = strategy.grids(ranks)[0]
            found = pool.run(
                ranks, losses, options.folder.absolute(), options.name, name, grid, options.epochs
            )
            assert all(mine == found[0] for mine in found), "the ranks do not agree on the loss"
            curve = torch.tensor(found[0], dtype=torch.float64)
            serial = curve if name == "serial" else serial
            curves[name, grid_text(grid, " ")] = found[0]
            apart = float(((curve - serial) / serial).abs().max())
            print(
                f"{name:16}{grid_text(grid, ' '):24}{curve[0]:.6f} to {curve[-1]:.6f}, {apart:.1e} from serial"
            )
    with styled():
        for path in save(drawn(curves), Path("figures"), f"loss-curves-{options.name}", options.name):
            print(path)


def drawn(curves: dict[tuple[str, str], list[float]]) -> Figure:
    """Each curve on the others; markers a few epochs apart, so that none is hidden."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for place, ((name, grid), values) in enumerate(curves.items()):
        look = look_of(name)
        every = (place, len(curves))
        axes.plot(
            values,
            color=look.colour,
            marker=look.marker,
            markevery=every,
            label=f"{name}, {grid}",
            linewidth=1,
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss")
    axes.legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main()
