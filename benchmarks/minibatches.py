"""The cost of mini-batches."""

from collections.abc import Callable
from itertools import count
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, rms_norm

from benchmarks.measuring import (
    Turns,
    alternate,
    named,
    rmat_graph,
    spec_of,
    train_in_turns,
    trainer_of,
)
from benchmarks.registry import Results, Table, benchmark
from harness.comm.grid import Grid
from harness.graph.model import TRAIN, Graph, StageCounts
from harness.graph.store.memory_store import MemoryStore
from harness.kernels import Csr, to_scipy
from harness.kernels.parts import extract_block
from harness.kernels.recorded import Kernels
from harness.kernels.shuffle import sample_distinct
from harness.ledger import SAMPLING, AxisName, Ledger
from harness.registry import load_strategy
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.trainer import Trainer
from harness.spec.machine_card import Machine
from harness.spec.spec import Spec
from harness.strategy import admit, facts_of
from harness.strategy.models.operators import dropout_mask
from harness.strategy.parallel.gradients import Gradients
from harness.strategy.parallel.norm import Epilogue, NormPlan, normalise_rows
from harness.strategy.parallel.row_strategy import EPSILON
from harness.strategy.parallel.uniform import BlockSampler

DEGREE, WARM = 16, 2
HIDDEN, DROPOUT = 128, 0.5
MODEL = {
    "layers": 3,
    "hidden": HIDDEN,
    "projection": True,
    "norm": True,
    "residual": True,
    "dropout": DROPOUT,
}


@benchmark
def minibatches(scale: int = 18, turns: int = 15, dataset: str = "rmat-17") -> Results:
    """Time ScaleGNN's drawing and building, a prefetch, the fused kernel, and the epochs of systems that sample.

    - `block`: draws a sample of an R-MAT graph and builds the sampled block and its transpose, of the whole matrix and
      of one of 2 x 2 blocks; next to scipy's A[S][:, S] of the same block, without a transpose and for a given sample.
    - `prefetch`: training steps of one rank without and with a prefetch, which needs a second core, and the share of a
      step that the rank spends sampling.
    - `way`: RMSNorm, ReLU and dropout, forward and backward, by PyTorch's own modules one after the other, by our
      parts, and by our compiled kernel, masks included.
    - `system`: epochs of two ranks of one machine, the slowest rank's, each system next to a variant: a prefetch, and
      G3's full-graph training of the same GAT. An epoch of G3 is one step on all vertices; an epoch of the others goes
      through the training vertices once.

    Competitors take turns; numbers are medians, and ratios are medians of the ratios of turns side by side.

    Args:
        scale: the R-MAT graph has 2^SCALE vertices
        dataset: graph of the systems
    """
    A = rmat_graph(scale, DEGREE, directed=False)
    size = A.rows >> 3
    yield f"R-MAT, 2^{scale} vertices, {A.nnz:,} nonzeros, B = {size:,}"
    yield from compare_blocks(A, size, turns)
    yield from compare_prefetch(A, size, max(turns // 3, 2))
    yield from compare_epilogues(size, turns)
    yield from compare_systems(dataset, max(turns // 3, 2))


def compare_blocks(A: Csr, size: int, turns: int) -> Results:
    """Sample blocks, by ours and by scipy."""
    yield Table("block", "draw ms:.2f", "build, with transpose ms:.2f", "scipy ms:.2f", "ours over scipy:.2f")
    n = A.rows
    yield "whole", *time_sampling(A, range(n), range(n), size, turns)
    yield "1 of 2 x 2", *time_sampling(A, range(n // 2), range(n // 2, n), size, turns)


def time_sampling(A: Csr, rows: range, cols: range, size: int, turns: int) -> list[float]:
    """Return milliseconds on one block, in turns that have one sample each; and ours over scipy's."""
    n, samples = A.rows, list[Tensor]()
    part = extract_block(A, rows, cols)
    matrix, sampler = to_scipy(part), BlockSampler(part, rows, cols)
    chance = (size - 1) / (n - 1)

    def draw() -> None:
        samples.append(sample_distinct((0, 0, len(samples)), n, size))

    def build() -> None:
        sampler.sample(samples[-1], chance)

    def scipy() -> None:
        S = samples[-1].numpy()
        S_r = S[(rows.start <= S) & (rows.stop > S)] - rows.start
        S_c = S[(cols.start <= S) & (cols.stop > S)] - cols.start
        matrix[S_r][:, S_c]

    seconds = alternate({"draw": draw, "build": build, "scipy": scipy}, turns, warm=WARM)
    drawing, building, scipys = map(median, seconds.values())
    return [*(1e3 * each for each in (drawing, building, scipys)), (drawing + building) / scipys]


def compare_prefetch(A: Csr, size: int, epochs: int) -> Results:
    """Train steps without and with a prefetch."""
    yield Table("prefetch", "step ms:.1f", "sampling:.1%")
    trainers = {str(prefetch).lower(): trainer_on(A, size, prefetch) for prefetch in (False, True)}
    steps: dict[str, list[float]] = {name: [] for name in trainers}
    shares: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(-1, epochs):
        for name, trainer in trainers.items():
            epoch = trainer.epoch()
            sampling = sum(amounts.seconds for key, amounts in epoch.entries.items() if key.phase in SAMPLING)
            if number >= 0:
                steps[name].append(epoch.seconds / trainer.steps)
                shares[name].append(sampling / epoch.seconds)
    for name in trainers:
        yield name, 1e3 * median(steps[name]), median(shares[name])


def trainer_on(A: Csr, size: int, prefetch: bool) -> Trainer:
    """Return a trainer of one rank on the whole graph, with random features and labels."""
    drawn = torch.Generator().manual_seed(0)
    X = torch.randn(A.rows, 64, generator=drawn)
    y = torch.randint(16, (A.rows,), generator=drawn)
    split = torch.full((A.rows,), TRAIN, dtype=torch.uint8)
    counts = StageCounts(*([0] * len(StageCounts.__dataclass_fields__)))
    store = MemoryStore(Graph(A, X, y, split, 16, False, counts))
    asked = {
        "strategy": {"name": "scalegnn", "params": {"prefetch": prefetch}},
        "dataset": "drawn",
        "grid": dict.fromkeys((AxisName.D, AxisName.X, AxisName.Y, AxisName.Z), 1),
        "model": MODEL,
        "training": {"batch": size},
        "machine": Machine(name="here"),
    }
    strategy = admit(load_strategy("scalegnn"), Spec.model_validate(asked), facts_of(store))
    return Trainer(strategy, Grid.build(strategy.grid, Ledger()), store)


def compare_epilogues(rows: int, turns: int) -> Results:
    """Run RMSNorm, ReLU and dropout, forward and backward."""
    yield Table("way", "ms:.1f", title=f"RMSNorm, ReLU, dropout of {rows:,} x {HIDDEN}, forward and backward")
    Z = torch.randn(rows, HIDDEN, requires_grad=True)
    gamma = torch.ones(1, HIDDEN, requires_grad=True)
    dH, vertices = torch.randn(rows, HIDDEN), torch.arange(rows)
    grid = Grid.build({AxisName.X: 1}, Ledger(recording=False))
    alone = grid[AxisName.X]

    def modules() -> None:
        dropout(rms_norm(Z, (HIDDEN,), gamma[0], EPSILON).relu(), DROPOUT).backward(dH)

    def ours(compiled: bool) -> Callable[[], None]:
        plan, numbers = NormPlan(alone, alone, Gradients(alone, overlap=False), compiled), count()

        def run() -> None:
            kept, scale = dropout_mask((0, next(numbers), 0, 0), vertices, range(HIDDEN), DROPOUT)
            epilogue = Epilogue(HIDDEN, True, kept, scale)
            normalise_rows(Kernels(grid.ledger), Z, gamma, epilogue, plan).backward(dH)

        return run

    ways = {"PyTorch's modules": modules, "parts": ours(False), "fused": ours(True)}
    for name, seconds in alternate(ways, turns, warm=WARM).items():
        yield name, 1e3 * median(seconds)


RANKS = 2
GAT = {"kind": "gat", "layers": 2, "hidden": 16}
SAGE = {"kind": "sage", "layers": 2, "hidden": 128}
FANOUTS = {"fanouts": [25, 10]}
PAIRS: list[tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    (SAGE, [("salient", {**FANOUTS, "prefetch": prefetch}) for prefetch in (False, True)]),
    (SAGE, [("distdgl", {**FANOUTS, "prefetch": prefetch}) for prefetch in (False, True)]),
    (GAT, [("distdgl", FANOUTS), ("g3", {"bin_nodes": 1000})]),
]
"""A model, and the two systems whose epochs are compared."""


def compare_systems(dataset: str, rounds: int) -> Results:
    """Train systems in pairs."""
    yield Table(
        *("system", "model", "epoch ms:.0f", "sampling:.0%", "times as fast as the first of the pair:.2f"),
        title=f"{dataset} in METIS's parts on {RANKS} ranks, 1000 targets in a mini-batch",
    )
    with Pool() as pool:
        for model, pair in PAIRS:
            turns = pool.run(RANKS, epochs_in_turns, dataset, model, pair, rounds, patience=1800)[0]
            for (name, params), each in zip(pair, turns, strict=True):
                share = each.median("sampling") / each.median()
                yield named(name, params), model["kind"], 1e3 * each.median(), share, each.ratio(turns[0])


def epochs_in_turns(
    dataset: str, model: dict[str, Any], pair: list[tuple[str, dict[str, Any]]], rounds: int
) -> list[Turns]:
    """Train both systems in turns, on one rank."""
    requests = [
        {
            "strategy": {"name": name, "params": params},
            "dataset": {"name": dataset, "partition": "metis", "parts": RANKS},
            "ranks": RANKS,
            "model": model,
            "training": {"batch": 0 if name == "g3" else 1000},
        }
        for name, params in pair
    ]
    return train_in_turns([trainer_of(spec_of(request)) for request in requests], rounds)
