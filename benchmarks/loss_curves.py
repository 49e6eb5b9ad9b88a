"""Loss curves on those of PyTorch Geometric: do they lie on each other, on a real graph?

    python benchmarks/loss_curves.py FOLDER --name cora
    python benchmarks/loss_curves.py coauthor_cs.npz --strategies plexus --ranks 8 --train-features

FOLDER has Planetoid's ind.NAME.x and its seven siblings; a .npz file is one of gnn-benchmark, of which six tenths of
the vertices are drawn for training. PyG normalises the graph itself and starts from the same weights, in one process.
Prints, for each strategy, the largest distance from its losses relative to them, and draws
figures/loss-curves-NAME.{pdf,png,svg}. In double precision, with Adam.
"""

import argparse
import os
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.comm.grid import Grid
from harness.figures.drawing import save, styled
from harness.figures.palette import look_of
from harness.graph.model import TRAIN, Graph
from harness.kernels.csr import row_of
from harness.launch.worker_pool import Pool
from harness.ledger import Ledger
from harness.models.weights import initial_weight
from harness.registry import load_strategy, registered
from harness.run.trainer import Trainer
from harness.spec.spec import Spec, grid_text
from harness.store.card import DatasetCard
from harness.store.compose import compose
from harness.store.memory import MemoryStore
from harness.strategy import admit, facts_of

MOST_CLASSES = 64
PYG = "PyG"
PATIENCE = 1800.0  # seconds


@dataclass(frozen=True)
class Training:
    """What is trained, and on what."""

    path: Path
    name: str
    layers: int
    hidden: int
    epochs: int
    train_features: bool

    def graph(self) -> Graph:
        kind = "npz" if self.path.suffix == ".npz" else "planetoid"
        source = {"kind": kind, "path": str(self.path)} | ({} if kind == "npz" else {"dataset": self.name})
        split = {"kind": "random", "train": 0.6, "valid": 0.2} if kind == "npz" else {"kind": "file"}
        told: dict[str, Any] = {"name": self.name, "source": source, "split": split, "classes": MOST_CLASSES}
        card = DatasetCard.model_validate({**told, "features": {"kind": "file"}, "labels": {"kind": "file"}})
        graph = compose(card, Path())
        return replace(graph, classes=int(graph.y.max()) + 1)


def losses(what: Training, strategy: str, grid: dict[Any, int]) -> list[float]:
    """Of one rank; they are the same on every rank."""
    chosen = {"strategy": strategy, "dataset": what.name, "ranks": prod(grid.values()), "grid": grid}
    model = {"layers": what.layers, "hidden": what.hidden}
    training = {"features": what.train_features}
    given = {**chosen, "model": model, "training": training, "precision": "float64"}
    spec = Spec.model_validate({**given, "machine": {"name": "here"}})
    store = MemoryStore(what.graph())
    ready = admit(load_strategy(strategy), spec, facts_of(store))
    trainer = Trainer(ready, Grid.build(ready.grid, Ledger(recording=False)), store)
    return [trainer.epoch().loss.item() for _ in range(what.epochs)]


def losses_of_pyg(what: Training) -> list[float]:
    """GCNConv from the bare edges; the learning rate and the seed of the weights are a spec's defaults."""
    from torch_geometric.nn import GCNConv

    graph = what.graph()
    row, col = row_of(graph.A), graph.A.col.long()
    edges = torch.stack([col, row])[:, row != col]
    sizes = [graph.X.shape[1], *[what.hidden] * (what.layers - 1), graph.classes]
    layers = torch.nn.ModuleList()
    for number, shape in enumerate(pairwise(sizes)):
        layer = GCNConv(*shape, bias=False).double()
        W = initial_weight(0, number, shape, range(shape[0]), range(shape[1]))
        layer.lin.weight.data = W.T.contiguous()
        layers.append(layer)
    X = graph.X.double().requires_grad_(what.train_features)
    trained = [*layers.parameters(), *([X] if what.train_features else [])]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    counted = (graph.split == TRAIN) & (graph.y >= 0)
    found = []
    for _ in range(what.epochs):
        H: Tensor = X
        for number, layer in enumerate(layers):
            H = layer(H, edges)
            H = H.relu() if number + 1 < len(layers) else H
        loss = cross_entropy(H[counted], graph.y[counted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own = sorted(point.name for point in registered() if point.value.startswith("strategies."))
    parser.add_argument("path", type=Path, metavar="FOLDER|FILE.npz")
    parser.add_argument("--name", help="of the dataset (default: cora, or the file's)")
    parser.add_argument("--strategies", nargs="+", default=own, metavar="NAME")
    parser.add_argument("--ranks", type=int, help="default: as many as give every axis two")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--train-features", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = options.name or (options.path.stem if options.path.suffix == ".npz" else "cora")
    asked = {key: getattr(options, key) for key in ("layers", "hidden", "epochs", "train_features")}
    what = Training(options.path.absolute(), name, **asked)
    print(", ".join(f"{key} {value}" for key, value in asdict(what).items() if key != "path"))
    curves = {(PYG, ""): losses_of_pyg(what)}
    reference = torch.tensor(curves[PYG, ""], dtype=torch.float64)
    with Pool(patience=PATIENCE) as pool:
        for strategy in options.strategies:
            kind = load_strategy(strategy)
            ranks = 1 if strategy == "serial" else options.ranks or max(4, 2 ** len(kind.axes))
            grid = kind.grids(ranks)[0]
            found = pool.run(ranks, losses, what, strategy, grid)
            assert all(mine == found[0] for mine in found), "the ranks do not agree on the loss"
            curve = torch.tensor(found[0], dtype=torch.float64)
            curves[strategy, grid_text(grid, " ")] = found[0]
            apart = float(((curve - reference) / reference).abs().max())
            text = f"{strategy:16}{grid_text(grid, ' '):24}{curve[0]:.6f} to {curve[-1]:.6f}"
            print(f"{text}, {apart:.1e} from PyG", flush=True)
    with styled():
        for path in save(drawn(curves), Path("figures"), f"loss-curves-{name}", name):
            print(path)


def drawn(curves: dict[tuple[str, str], list[float]]) -> Figure:
    """Each curve on the others; markers a few epochs apart, so that none is hidden."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for place, ((name, grid), values) in enumerate(curves.items()):
        look = look_of(name)
        axes.plot(
            values,
            color=look.colour,
            marker=look.marker,
            markevery=(place, len(curves)),
            label=f"{name}, {grid}" if grid else f"{name}, one process",
            linewidth=1,
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss")
    axes.legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main()
