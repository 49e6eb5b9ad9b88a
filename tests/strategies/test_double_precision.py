"""Runs in double precision equal a torch loop that builds the matrix itself, from files to final weights.

The loop shares only data with the harness: edges, features, labels, splits, initial weights and the vertices of a
sample. It builds A from the list of edges in torch, so that rounding to single precision anywhere, in a store, a
sampler or a mean, causes an error of 1e-8 instead of 1e-15. Strategies that are not exact get settings with
which they are (all neighbours drawn, one batch of everything), or their step is written out here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn.functional import cross_entropy, leaky_relu

from harness.comm.grid import Grid
from harness.graph.store.building import build_store
from harness.kernels import Csr
from harness.ledger import Ledger
from harness.registry import load_strategy, registered_strategies
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.dataset import DatasetChoice
from harness.spec.spec import Spec
from harness.strategy import Piece, Strategy
from harness.strategy.models.weights import init_weight

N, CLASSES, HEADS, EPOCHS, LR = 37, 5, 2, 3, 0.5
TOLERANCE = 1e-12
TRAIN = 1
EVERY_NEIGHBOUR = [N]
EXACT: dict[str, dict[str, Any]] = {
    "bulk-ladies": {"size": N, "replacement": False},
    "bulk-sage": {"fanouts": EVERY_NEIGHBOUR},
    "cluster-gcn": {"clusters": 1},
    "distdgl": {"fanouts": EVERY_NEIGHBOUR},
    "graphsage": {"fanout": N},
    "massivegnn": {"fanouts": EVERY_NEIGHBOUR},
    "quiver": {"fanouts": EVERY_NEIGHBOUR},
    "salient": {"fanouts": EVERY_NEIGHBOUR},
    "sancus": {"stale": 0},
}
"""Parameters with which strategies use all neighbours, and no stale rows."""
EVALUATED = {"pipegcn", "adaqp"}
"""Strategies with stale rows or rounded messages: on several ranks only their evaluation is exact."""
ELSEWHERE = {"pyg"}
"""Strategies whose library is not a dependency (tests/sampling/test_pyg.py)."""
BUILT_IN = [
    point.name
    for point in registered_strategies()
    if point.value.startswith("harness.strategies.") and point.name not in ELSEWHERE
]


class Trained(NamedTuple):
    """Results of training on one rank."""

    at: dict[Any, int]
    losses: list[float]
    parameters: list[Tensor]
    output: Tensor


@dataclass(frozen=True)
class Graph:
    """The data of a graph, in the order of the store."""

    edges: Tensor
    directed: bool
    X: Tensor
    labels: Tensor
    trains: Tensor

    def adjacency(self) -> Tensor:
        """Return a matrix with a one at (v, u) for each edge u -> v, and an empty diagonal."""
        E = torch.zeros(N, N, dtype=torch.float64)
        E[self.edges[1], self.edges[0]] = 1
        return (E if self.directed else torch.maximum(E, E.T)).fill_diagonal_(0)


class Batch(NamedTuple):
    """The matrices of a group in a step, and the weight of every vertex in its loss."""

    A: Tensor
    weight: Tensor
    counted: int


def matrix(kind: str, E: Tensor) -> Tensor:
    """Return the matrix of a model; attention uses only its sparsity pattern."""
    if kind == "sage":
        return E / E.sum(dim=1, keepdim=True).clamp(min=1)
    E = E + torch.eye(N, dtype=torch.float64)
    degree = E.sum(dim=1)
    return E / (degree[:, None] * degree[None, :]).sqrt()


def forward(kind: str, A: Tensor, H: Tensor, weights: list[Tensor]) -> Tensor:
    layers = weights if kind == "gcn" else list(zip(weights[::2], weights[1::2], strict=True))
    for number, layer in enumerate(layers):
        last = number + 1 == len(layers)
        if kind == "gcn":
            H = A @ (H @ layer)
        elif kind == "sage":
            root, W = layer
            H = A @ (H @ W) + H @ root
        else:
            a, W = layer
            heads = [
                attend(A != 0, *each) for each in zip((H @ W).chunk(HEADS, 1), a.chunk(HEADS, 1), strict=True)
            ]
            H = torch.stack(heads).mean(dim=0) if last else torch.cat(heads, dim=1)
        H = H if last else H.relu()
    return H


def attend(edges: Tensor, T: Tensor, a: Tensor) -> Tensor:
    score = leaky_relu((T @ a[0])[:, None] + T @ a[1], negative_slope=0.2)
    return score.masked_fill(~edges, -torch.inf).softmax(dim=1) @ T


def batches(strategy: Strategy, graph: Graph, step: int) -> list[Batch]:
    """Return the batches of all groups in a training step."""
    E, kind, trains = graph.adjacency(), strategy.spec.model.kind, graph.trains
    whole = Batch(matrix(kind, E), trains.double(), int(trains.sum()))
    if strategy.name == "cluster-gcn":
        together = torch.zeros(N, N, dtype=torch.bool)
        for block in strategy.blocks():  # type: ignore[attr-defined]
            together[block.start : block.stop, block.start : block.stop] = True
        return [whole._replace(A=matrix(kind, E * together))]
    if strategy.name == "graphsaint-node":
        return [by_importance(strategy, whole, step, group) for group in range(strategy.groups)]
    return [whole]


def by_importance(strategy: Strategy, whole: Batch, step: int, group: int) -> Batch:
    """Return GraphSAINT's estimator by its formulas, for the vertices that the strategy draws.

    Vertices outside the sample keep their loops, because a softmax needs an entry in every row.
    """
    A, q = whole.A, (whole.A**2).sum(dim=0) / (whole.A**2).sum()
    S = strategy.mini_batch(step, group, csr(A), whole.weight.nonzero()[:, 0]).vertices[0]
    drawn = torch.zeros(N, dtype=torch.bool).index_fill_(0, S, value=True)
    size = strategy.spec.training.batch
    p = 1 - (1 - q) ** size
    both = p[:, None] + p[None, :] - (1 - (1 - q[:, None] - q[None, :]) ** size)
    both = torch.where(torch.eye(N, dtype=torch.bool), p, both)
    weight = whole.weight * drawn * p.mean() / p
    estimate = torch.where(drawn[:, None] & drawn[None, :], A * p[:, None] / both, (~drawn).double().diag())
    return Batch(estimate, weight, int((weight > 0).sum()))


def csr(A: Tensor) -> Csr:
    sparse = A.to_sparse_csr()
    return Csr(sparse.crow_indices(), sparse.col_indices().int(), sparse.values(), A.shape[1])


def train_in_torch(strategy: Strategy, graph: Graph) -> tuple[list[float], list[Tensor]]:
    """Return losses and final weights of training by plain gradient descent."""
    spec = strategy.spec
    weights = [
        init_weight(spec.seed, number, weight, *map(range, weight.shape)).requires_grad_()
        for number, weight in enumerate(strategy.weights)
    ]
    losses = []
    for step in range(EPOCHS):
        total = torch.zeros((), dtype=torch.float64)
        found = batches(strategy, graph, step)
        for A, weight, _ in found:
            each = cross_entropy(
                forward(spec.model.kind, A, graph.X, weights), graph.labels, reduction="none"
            )
            total = total + (each * weight).sum()
        loss = total / sum(batch.counted for batch in found)
        losses.append(loss.item())
        for W, dW in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            W.data -= LR * dW
    return losses, [W.detach() for W in weights]


def train(root: Path, specs: list[Spec]) -> list[Trained]:
    """Return one rank's results of all runs of a world, from files."""
    found = []
    for spec in specs:
        strategy, blocks = open_run(root, spec)
        grid = Grid.build(strategy.grid, Ledger())
        trainer = Trainer(strategy, grid, blocks)
        losses = [trainer.epoch().loss.item() for _ in range(EPOCHS)]
        parameters = [each.detach() for each in trainer.parameters]
        found.append(Trained(dict(grid.coordinates), losses, parameters, trainer.output()))
        grid.drain()
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with stores of a directed and an undirected graph with loops, duplicates and isolated vertices."""
    folder = tmp_path_factory.mktemp("double")
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(N, (2, 5 * N), generator=generator)
    edges = edges[:, (edges % 9 != 4).all(dim=0)]
    (folder / "datasets" / "catalog").mkdir(parents=True)
    (folder / "datasets" / "edges.txt").write_text("\n".join(f"{u} {v}" for u, v in edges.T.tolist()))
    for name in ("directed", "undirected"):
        card = {
            "source": {"kind": "edges", "path": "edges.txt", "n": N},
            "directed": name == "directed",
            "classes": CLASSES,
            "features": {"kind": "gaussian", "width": 7},
            "labels": {"kind": "uniform"},
            "split": {"kind": "random", "train": 0.6, "valid": 0.2},
        }
        (folder / "datasets" / "catalog" / f"{name}.yaml").write_text(yaml.safe_dump(card))
        build_store(folder, DatasetChoice(name=name), side=2)
    return folder


def graph_of(root: Path, spec: Spec) -> Graph:
    """Return the edges of the file, and the data of the store except A."""
    lines = (root / "datasets" / "edges.txt").read_text().splitlines()
    edges = torch.tensor([list(map(int, line.split())) for line in lines]).T
    _, blocks = open_run(root, spec)
    assert type(blocks).__name__ == "Store"
    X, labels = blocks.feature_block(range(N), range(blocks.features)), blocks.labels(range(N))
    return Graph(edges, spec.dataset.name == "directed", X.double(), labels, blocks.split(range(N)) == TRAIN)


def specs_of(name: str, ranks: int) -> list[Spec]:
    """Return specs of every model of the strategy on both graphs, on the grid with the most axes of two ranks."""
    strategy = load_strategy(name)
    grids = strategy.grids(ranks)
    fixed = {
        "strategy": {"name": name, "params": EXACT.get(name, {})},
        "ranks": ranks,
        "grid": max(grids, key=lambda grid: sum(size > 1 for size in grid.values())),
        "training": {"optimizer": "sgd", "lr": LR, "batch": N if strategy.mini_batches else 0},
        "precision": "float64",
        "machine": {"name": "test"},
    }
    heads = {"gat": {"heads": HEADS}}
    return [
        Spec.model_validate(
            {
                **fixed,
                "dataset": graph,
                "model": {"kind": kind, "layers": 2, "hidden": 6, **heads.get(kind, {})},
            }
        )
        for kind in strategy.models
        for graph in ("directed", "undirected")
    ]


def distance(mine: Tensor, theirs: Tensor) -> float:
    return float((mine - theirs).norm() / theirs.norm().clamp(min=1e-300))


def part(whole: Tensor, piece: Piece) -> Tensor:
    return whole[piece.rows.start : piece.rows.stop, piece.cols.start : piece.cols.stop]


def is_quick(name: str, ranks: int) -> bool:
    """On one rank the training of strategies that is exact on no others, and of those without a grid of four."""
    return ranks == 4 or (ranks == 1 and (name in EVALUATED or not load_strategy(name).grids(4)))


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param(name, ranks, marks=[] if is_quick(name, ranks) else pytest.mark.slow)
        for name in BUILT_IN
        for ranks in (1, 2, 3, 4)
        if load_strategy(name).grids(ranks)
    ],
)
def test_run_in_double_precision_equals_a_torch_loop(name: str, ranks: int, root: Path, pool) -> None:
    specs = specs_of(name, ranks)
    for spec, *every_rank in zip(specs, *pool.run(ranks, train, root, specs), strict=True):
        strategy, graph = open_run(root, spec)[0], graph_of(root, spec)
        losses, weights = train_in_torch(strategy, graph)
        where = f"{name} {spec.model.kind} on {spec.dataset.name}"
        exact = name not in EVALUATED or ranks == 1
        if not exact:
            weights = every_rank[0].parameters
        output = forward(spec.model.kind, matrix(spec.model.kind, graph.adjacency()), graph.X, weights)
        for rank, mine in enumerate(every_rank):
            assert mine.output.dtype == torch.float64
            pairs = [(mine.output, part(output, strategy.output_piece(mine.at)))]
            for W, whole, piece in zip(
                mine.parameters, weights, strategy.parameter_pieces(rank), strict=True
            ):
                pairs.append((W, part(whole, piece)))
            if exact:
                pairs.append(
                    (
                        torch.tensor(mine.losses, dtype=torch.float64),
                        torch.tensor(losses, dtype=torch.float64),
                    )
                )
            worst = max(distance(*pair) for pair in pairs)
            assert worst <= TOLERANCE, f"{where}, rank {rank}: {worst:.0e}"
