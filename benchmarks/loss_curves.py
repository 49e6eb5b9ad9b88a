"""Loss curves beside those of PyTorch Geometric, on a real graph: do the curves agree?

    python benchmarks/loss_curves.py FOLDER --name cora
    python benchmarks/loss_curves.py coauthor_cs.npz --strategies plexus --ranks 8 --train-features

FOLDER has Planetoid's ind.NAME.x and its seven siblings. A .npz file is one of gnn-benchmark, of which six tenths of
the vertices are drawn for training. PyG normalises the graph itself and starts from the same weights, in one process.
Prints for each strategy the largest relative distance from PyG's losses, and draws
figures/loss-curves-NAME.{pdf,png,svg}. In double precision, with Adam.
"""

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from measuring import Gcn, argument_parser, keep, one_thread
from torch import Tensor

from harness.comm.grid import Grid
from harness.figures.palette import look_of
from harness.graph.model import TRAIN, Graph
from harness.kernels.csr import row_indices
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName, Ledger
from harness.models.weights import Part, Weight, init_weight
from harness.registry import load_strategy, registered_strategies
from harness.run.trainer import Trainer
from harness.spec.spec import Spec, format_grid
from harness.store.contents import load_graph
from harness.store.dataset_card import DatasetCard
from harness.store.memory_store import MemoryStore
from harness.strategy import admit, facts_of

MOST_CLASSES = 64
PYG = "PyG"
PATIENCE = 1800.0  # seconds


@dataclass(frozen=True)
class Training:
    """A graph, and the model to train on the graph."""

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
        keys = {"name": self.name, "source": source, "split": split, "classes": MOST_CLASSES}
        card = DatasetCard.model_validate({**keys, "features": {"kind": "file"}, "labels": {"kind": "file"}})
        graph = load_graph(card, Path())
        return replace(graph, classes=int(graph.y.max()) + 1)


def losses(training: Training, strategy: str, grid: dict[AxisName, int]) -> list[float]:
    """The losses on one rank, which are the same on every rank."""
    asked = {
        "strategy": strategy,
        "dataset": training.name,
        "ranks": prod(grid.values()),
        "grid": grid,
        "model": {"layers": training.layers, "hidden": training.hidden},
        "training": {"features": training.train_features},
        "precision": "float64",
        "machine": {"name": "here"},
    }
    store = MemoryStore(training.graph())
    ready = admit(load_strategy(strategy), Spec.model_validate(asked), facts_of(store))
    trainer = Trainer(ready, Grid.build(ready.grid, Ledger(recording=False)), store)
    return [trainer.epoch().loss.item() for _ in range(training.epochs)]


def losses_of_pyg(training: Training) -> list[float]:
    """GCNConv from the bare edges; the learning rate and the seed of the weights are a spec's defaults."""
    from torch_geometric.nn import GCNConv

    graph = training.graph()
    row, col = row_indices(graph.A), graph.A.col.long()
    edges = torch.stack([col, row])[:, row != col]
    sizes = [graph.X.shape[1], *[training.hidden] * (training.layers - 1), graph.classes]
    layers: list[torch.nn.Module] = []
    for number, shape in enumerate(pairwise(sizes)):
        layer = GCNConv(*shape, bias=False).double()
        W = init_weight(0, number, Weight(Part.CONVOLUTION, number, shape), *map(range, shape))
        layer.lin.weight.data = W.T.contiguous()
        layers.append(layer)
    X = graph.X.double().requires_grad_(training.train_features)
    trained: list[Tensor] = [weight for layer in layers for weight in layer.parameters()]
    counted = (graph.split == TRAIN) & (graph.y >= 0)
    trained += [X] if training.train_features else []
    gcn = Gcn(lambda i, H: layers[i](H, edges), len(layers), trained, (X, graph.y, counted), lr=0.01)
    return [gcn.epoch().item() for _ in range(training.epochs)]


def main() -> None:
    parser = argument_parser(__doc__)
    own = sorted(
        point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")
    )
    parser.add_argument("path", type=Path, metavar="FOLDER|FILE.npz")
    parser.add_argument("--name", help="of the dataset (default: cora, or the file's)")
    parser.add_argument("--strategies", nargs="+", default=own, metavar="NAME")
    parser.add_argument("--ranks", type=int, help="default: as many as give every axis two")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--train-features", action="store_true")
    options = parser.parse_args()
    one_thread()
    name = options.name or (options.path.stem if options.path.suffix == ".npz" else "cora")
    sizes: dict[str, Any] = {k: getattr(options, k) for k in ("layers", "hidden", "epochs", "train_features")}
    training = Training(options.path.absolute(), name, **sizes)
    print(", ".join(f"{key} {value}" for key, value in asdict(training).items() if key != "path"))
    curves = {(PYG, ""): losses_of_pyg(training)}
    reference = torch.tensor(curves[PYG, ""], dtype=torch.float64)
    with Pool(patience=PATIENCE) as pool:
        for strategy in options.strategies:
            kind = load_strategy(strategy)
            ranks = 1 if strategy == "serial" else options.ranks or max(4, 2 ** len(kind.axes))
            grid = kind.grids(ranks)[0]
            first, *others = pool.run(ranks, losses, training, strategy, grid)
            assert all(other == first for other in others), "the ranks do not agree on the loss"
            curve = torch.tensor(first, dtype=torch.float64)
            curves[strategy, format_grid(grid, " ")] = first
            apart = float(((curve - reference) / reference).abs().max())
            text = f"{strategy:16}{format_grid(grid, ' '):24}{curve[0]:.6f} to {curve[-1]:.6f}"
            print(f"{text}, {apart:.1e} from PyG", flush=True)
    keep(lambda: drawn(curves), f"loss-curves-{name}", name)


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
