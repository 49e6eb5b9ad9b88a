"""What training reaches: accuracies with stale rows, and losses compared with PyTorch Geometric's."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.authors import RUNS
from benchmarks.measuring import Gcn, gather, named, spec_of, trainer_of
from benchmarks.plotting import make_facets
from benchmarks.registry import Drawing, Results, Table, benchmark
from harness.comm.grid import Grid
from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.experiment.scales import select_scale
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.model import TRAIN, Graph
from harness.graph.store.contents import load_graph
from harness.graph.store.memory_store import MemoryStore
from harness.kernels.csr import row_indices
from harness.ledger import AxisName, Ledger
from harness.registry import load_strategy, registered_strategies
from harness.report.figures.axis_scales import Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.marks import Dots
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.strategy import admit, facts_of
from harness.strategy.models.weights import Part, Weight, init_weight

PATIENCE = 3600.0  # seconds

# Stale rows.

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("cagnet-1d", {}),
    *(("sancus", {"stale": bound}) for bound in (1, 3, 7, 15)),
    ("pipegcn", {}),
    ("distgnn", {}),
    *(("distgnn", {"delay": delay}) for delay in (1, 5)),
    ("distgnn", {"delay": 5, "gradients": "delayed"}),
    ("distgnn", {"aggregates": "none"}),
]
"""Exact training by broadcasts first, with whose words the others are compared."""


@benchmark
def staleness(
    dataset: str = "coauthor-cs", ranks: int = 4, seeds: int = 3, epochs: tuple[int, ...] = (10, 20, 40, 80)
) -> Results:
    """Train with stale rows on a graph with real labels: accuracy by epoch, and words, compared with exact training.

    `distgnn` trains on a vertex cut by Libra, all others on parts by METIS. Every setting trains the same GCN from the
    same weights, with several seeds; both layers multiply by W first, so all rows that travel have the widths 32 and of
    the classes. Words are those of the rank that sends most, the mean over all epochs of training. Accuracies are of
    the test vertices, the mean over the seeds and the lowest of them. Nothing here is a time.

    Args:
        seeds: number of seeds
        epochs: epochs after which accuracy is measured
    """
    ends = [f"{'accuracy after ' if n == 0 else ''}{count}" for n, count in enumerate(epochs)]
    yield Table("setting", "words an epoch:,.0f", "of exact:.3f", *ends)
    exact = 0.0
    with Pool(patience=PATIENCE) as pool:
        for name, params in SETTINGS:
            asked: dict[str, Any] = {
                "strategy": {"name": name, "params": params},
                "dataset": {"name": dataset, "partition": "libra" if name == "distgnn" else "metis"},
                "ranks": ranks,
                "model": {"layers": 2, "hidden": 32, "order": "combine_first"},
            }
            done = [
                pool.run(ranks, train_curve, spec_of({**asked, "seed": seed}), epochs)[0]
                for seed in range(seeds)
            ]
            words = done[0][1]
            exact = exact or words
            columns = zip(*(accuracies for accuracies, _ in done), strict=True)
            cells = [f"{100 * mean(each):.2f} % ({100 * min(each):.2f})" for each in columns]
            yield named(name, params), words, words / exact, *cells


def train_curve(spec: Spec, at: Sequence[int]) -> tuple[list[float], float] | None:
    """Return the test accuracies after some numbers of epochs, and the words of an epoch; on rank 0."""
    trainer, words, accuracies = trainer_of(spec), 0.0, []
    for epoch in range(max(at)):
        words += sum(amounts.elements_payload for amounts in trainer.epoch().entries.values())
        if epoch + 1 in at:
            accuracies.append(trainer.evaluate()[0]["test"].ratio)
    every = gather(trainer.ctx.grid.world, words / max(at))
    trainer.ctx.grid.drain()
    return (accuracies, max(every)) if every else None


# Samplers.


@benchmark
def samplers(experiment: str = "scalegnn-table-1") -> Results:
    """Train every run of an experiment, and compare the best test accuracy of each over its seeds.

    Args:
        experiment: a file of workflows/experiments, whose runs for a laptop are trained
    """
    root = find_root()
    path = root / "workflows" / "experiments" / f"{experiment}.yaml"
    specs = expand(root, select_scale(root, load_experiment(path), "laptop"))
    best = defaultdict[tuple[str, str], list[float]](list)
    with Pool(patience=PATIENCE) as pool:
        for spec in specs:
            epochs = range(
                spec.training.evaluate_every, spec.training.epochs + 1, spec.training.evaluate_every
            )
            accuracies, _ = pool.run(spec.ranks, train_curve, spec, epochs)[0]
            best[named(spec.strategy.name, spec.strategy.params), spec.dataset.name].append(max(accuracies))
    yield Table("strategy", "dataset", "seeds", "mean:.3f", "lowest:.3f", "highest:.3f")
    for (strategy, dataset), reached in best.items():
        yield strategy, dataset, len(reached), mean(reached), min(reached), max(reached)


# Rounding.

ROUNDED = (
    *(("serial", 1, "p=1", precision) for precision in ("float64", "float32")),
    *(("plexus", 2, "x=2,y=1,z=1", precision) for precision in ("float64", "float32")),
    ("plexus", 4, "x=2,y=2,z=1", "float32"),
)
"""Strategies, ranks, grids and precisions; the first one is the reference."""


@benchmark
def rounding(
    dataset: str = "cora", epochs: int = 180, shown: tuple[int, ...] = (20, 60, 100, 140)
) -> Results:
    """Train the model of `authors --only plexus` in both precisions: how far does rounding move the losses?

    Differences are from the losses of serial training in double precision, the largest up to an epoch. Grids that agree
    in double precision differ in single precision by rounding only. Nothing here is a time.

    Args:
        epochs: epochs of training
        shown: epochs whose differences are shown, too
    """
    upto = [*shown, epochs]
    yield Table(
        "strategy",
        "grid",
        "precision",
        *(f"{'epoch ' if n == 0 else ''}{end}:.1e" for n, end in enumerate(upto)),
    )
    reference: list[float] = []
    with Pool(patience=PATIENCE) as pool:
        for strategy, ranks, grid, precision in ROUNDED:
            asked = {
                **RUNS["plexus"],
                "strategy": strategy,
                "dataset": dataset,
                "ranks": ranks,
                "grid": grid,
                "precision": precision,
            }
            losses = pool.run(ranks, train_losses, spec_of(asked), epochs)[0]
            reference = reference or losses
            apart = [abs(one - other) for one, other in zip(losses, reference, strict=True)]
            yield strategy, grid, precision, *(max(apart[:end]) for end in upto)


def train_losses(spec: Spec, epochs: int) -> list[float]:
    """Return the loss of each epoch, which is the same on every rank."""
    trainer = trainer_of(spec)
    losses = [trainer.epoch().loss.item() for _ in range(epochs)]
    trainer.ctx.grid.drain()
    return losses


# Loss curves.

MOST_CLASSES = 64
PYG = "PyG"


@dataclass(frozen=True)
class Training:
    """A graph, and the model to train on the graph."""

    path: Path
    name: str
    layers: int
    hidden: int
    epochs: int
    train_features: bool

    def load(self) -> Graph:
        """Return the graph."""
        kind = "npz" if self.path.suffix == ".npz" else "planetoid"
        source = {"kind": kind, "path": str(self.path)} | ({} if kind == "npz" else {"dataset": self.name})
        split = {"kind": "random", "train": 0.6, "valid": 0.2} if kind == "npz" else {"kind": "file"}
        keys = {"name": self.name, "source": source, "split": split, "classes": MOST_CLASSES}
        card = DatasetCard.model_validate({**keys, "features": {"kind": "file"}, "labels": {"kind": "file"}})
        graph = load_graph(card, Path())
        return replace(graph, classes=int(graph.y.max()) + 1)


def train_strategy(training: Training, strategy: str, grid: dict[AxisName, int]) -> list[float]:
    """Return the losses on one rank, which are the same on every rank."""
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
    store = MemoryStore(training.load())
    ready = admit(load_strategy(strategy), Spec.model_validate(asked), facts_of(store))
    trainer = Trainer(ready, Grid.build(ready.grid, Ledger(recording=False)), store)
    return [trainer.epoch().loss.item() for _ in range(training.epochs)]


def train_pyg(training: Training) -> list[float]:
    """Train GCNConv from the bare edges; the learning rate and the seed of the weights are a spec's defaults."""
    from torch_geometric.nn import GCNConv

    graph = training.load()
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


@benchmark
def loss_curves(
    path: Path,
    *,
    name: str | None = None,
    strategies: tuple[str, ...] = (),
    ranks: int | None = None,
    layers: int = 2,
    hidden: int = 16,
    epochs: int = 50,
    train_features: bool = False,
) -> Results:
    """Compare the losses of strategies with those of PyTorch Geometric on a real graph: do the curves agree?

    PyG normalises the graph itself and starts from the same weights, in one process. Each row has the largest relative
    distance from PyG's losses. Double precision, Adam. Draws loss-curves-NAME.

    Args:
        path: a folder with Planetoid's ind.NAME.x and its seven siblings, or a .npz file of gnn-benchmark, of which six
            tenths of the vertices are drawn for training
        name: of the dataset (default: cora, or the file's)
        strategies: names of strategies (default: all built-in ones)
        ranks: number of ranks (default: as many as give every axis two)
        epochs: epochs of training
        train_features: train the features too
    """
    name = name or (path.stem if path.suffix == ".npz" else "cora")
    training = Training(path.absolute(), name, layers, hidden, epochs, train_features)
    yield ", ".join(f"{key} {value}" for key, value in asdict(training).items() if key != "path")
    reference = torch.tensor(train_pyg(training), dtype=torch.float64)
    distances = dict[tuple[str, str], float]()
    yield Table("strategy", "grid", "first loss:.6f", "last loss:.6f", "from PyG:.1e")
    with Pool(patience=PATIENCE) as pool:
        for strategy in strategies or list_built_in():
            kind = load_strategy(strategy)
            world = 1 if strategy == "serial" else ranks or max(4, 2 ** len(kind.axes))
            grid = kind.grids(world)[0]
            first, *others = pool.run(world, train_strategy, training, strategy, grid)
            assert all(other == first for other in others), "the ranks do not agree on the loss"
            curve = torch.tensor(first, dtype=torch.float64)
            distance = float(((curve - reference) / reference).abs().max())
            distances[strategy, format_grid(grid)] = distance
            yield strategy, format_grid(grid), first[0], first[-1], distance
    yield Drawing(f"loss-curves-{name}", draw_distances(distances), name)


def list_built_in() -> list[str]:
    """Return the names of the built-in strategies."""
    points = registered_strategies()
    return sorted(point.name for point in points if point.value.startswith("harness.strategies."))


SMALLEST = 1e-17
"""Where equal losses are drawn: below the spacing of double precision."""


@style_context()
def draw_distances(distances: dict[tuple[str, str], float]) -> Figure:
    """Draw the largest relative distance of each strategy's losses from the reference, the smallest first."""
    rows = [
        {
            "curve": name,
            "strategy": name,
            "label": f"{name}, {grid}" if grid else name,
            "distance": max(distance, SMALLEST),
            "note": f"{distance:.1e}" if distance else "equal",
        }
        for (name, grid), distance in sorted(distances.items(), key=lambda item: item[1])
    ]
    scale = Scale("distance", "largest relative distance from PyG's loss", log=True)
    title = f"All losses agree with PyG's within {max(distances.values()):.0e} of the loss"
    return compose_figure(make_facets(pd.DataFrame(rows)), Dots(scale), title=title)
