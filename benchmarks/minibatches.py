"""What mini-batches of ScaleGNN cost: drawing and building against scipy, what a prefetch leaves, the fused kernel.

    OMP_NUM_THREADS=1 PYTHONPATH=. python benchmarks/minibatches.py

`block`: draws a sample of an R-MAT graph and builds the sampled block and its transpose, of the whole matrix and of one
of 2 x 2 blocks; beside it scipy's A[S][:, S] of the same block, without a transpose and for a sample that it is given.
`step`: training steps of one rank without and with a prefetch, which needs a second core: the share of a step that the
rank spends sampling. `fused`: RMSNorm, ReLU and dropout, forward and backward: PyTorch's own modules one after
the other, our parts, and our compiled kernel, masks included. Ways take turns; medians.
"""

import argparse
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn.functional import dropout, rms_norm

from harness.comm.grid import Grid
from harness.graph.model import RawGraph
from harness.graph.normalise import normalise
from harness.kernels import Csr, block, cast, to_scipy
from harness.kernels.induced import places
from harness.kernels.recorded import Kernels
from harness.kernels.shuffle import distinct
from harness.ledger import SAMPLING, AxisName, Ledger
from harness.models.operators import dropout_mask
from harness.parallel.gradients import Gradients
from harness.parallel.norm import Finish, Way, normalised
from harness.parallel.rows import EPSILON
from harness.parallel.uniform import Sampled
from harness.run.trainer import Trainer
from harness.spec.machine import Machine
from harness.spec.spec import Spec
from harness.store.memory import MemoryStore
from harness.strategy import admit, facts_of

DEGREE, WARM = 16, 2
MODEL = {"layers": 3, "hidden": 128, "projection": True, "norm": True, "residual": True, "dropout": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=int, default=18, help="2^SCALE vertices (default: 18)")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    A = graph(options.scale)
    size = A.rows >> 3
    print(f"R-MAT, 2^{options.scale} vertices, {A.nnz:,} nonzeros, B = {size:,}\n")
    blocks_against_scipy(A, size, options.turns)
    prefetched(A, size, max(options.turns // 3, 2))
    fused(size, options.turns)


def graph(scale: int) -> Csr:
    """Normalised, in a random order."""
    drawn = np.random.default_rng(0)
    ends = np.zeros((2, DEGREE << scale), dtype=np.int64)
    for _ in range(scale):
        quadrant = drawn.choice(4, p=(0.57, 0.19, 0.19, 0.05), size=ends.shape[1])
        ends = 2 * ends + np.stack([quadrant // 2, quadrant % 2])
    source, target = drawn.permutation(1 << scale)[ends]
    return cast(normalise(RawGraph(1 << scale, source, target), directed=False)[0], torch.float32)


def taking_turns(
    ways: Mapping[str, Callable[[int], object]], turns: int, warm: int = WARM
) -> dict[str, float]:
    """Median seconds of each; what a way is called with grows from turn to turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-warm, turns):
        for name, way in ways.items():
            begun = perf_counter()
            way(turn + warm)
            if turn >= 0:
                seconds[name].append(perf_counter() - begun)
    return {name: median(times) for name, times in seconds.items()}


def blocks_against_scipy(A: Csr, size: int, turns: int) -> None:
    print("| block | draw ms | build, with transpose ms | scipy ms | ours over scipy |\n|" + " --- |" * 5)
    n = A.rows
    for name, rows, cols in (
        ("whole", range(n), range(n)),
        ("1 of 2 x 2", range(n // 2), range(n // 2, n)),
    ):
        mine = block(A, rows, cols)
        matrix, sampled = to_scipy(mine), Sampled(mine, rows, cols, places(len(cols), torch.device("cpu")))
        chance, drawn = (size - 1) / (n - 1), {}

        def draw(turn: int, drawn: dict[int, Any] = drawn) -> None:
            drawn[turn] = distinct((0, 0, turn), n, size)

        def build(turn: int, part: Any = (sampled, drawn, chance)) -> None:
            sampled, samples, chance = part
            sampled.draw(samples[turn], turn, chance)

        def scipy(turn: int, part: Any = (matrix, rows, cols, drawn)) -> None:
            whole, down, across, samples = part
            S = samples[turn].numpy()
            S_r = S[(down.start <= S) & (down.stop > S)] - down.start
            S_c = S[(across.start <= S) & (across.stop > S)] - across.start
            whole[S_r][:, S_c]

        times = taking_turns({"draw": draw, "build": build, "scipy": scipy}, turns)
        ours = times["draw"] + times["build"]
        cells = [*(f"{1e3 * times[each]:.2f}" for each in times), f"{ours / times['scipy']:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")
    print()


def prefetched(A: Csr, size: int, epochs: int) -> None:
    print("| prefetch | step ms | sampling |\n| --- | --- | --- |")
    trainers = {str(prefetch).lower(): trainer_of(A, size, prefetch) for prefetch in (False, True)}
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
        print(f"| {name} | {1e3 * median(steps[name]):.1f} | {100 * median(shares[name]):.1f} % |")
    print()


def trainer_of(A: Csr, size: int, prefetch: bool) -> Trainer:
    """One rank on the whole graph, features and labels drawn."""
    from harness.graph.model import TRAIN, Graph
    from harness.graph.normalise import StageCounts

    drawn = torch.Generator().manual_seed(0)
    store = MemoryStore(
        Graph(
            A,
            torch.randn(A.rows, 64, generator=drawn),
            torch.randint(16, (A.rows,), generator=drawn),
            torch.full((A.rows,), TRAIN, dtype=torch.uint8),
            16,
            False,
            StageCounts(*([0] * len(StageCounts.__dataclass_fields__))),
        )
    )
    grid = dict.fromkeys((AxisName.D, AxisName.X, AxisName.Y, AxisName.Z), 1)
    asked = {
        "strategy": {"name": "scalegnn", "params": {"prefetch": prefetch}},
        "dataset": "drawn",
        "grid": grid,
        "model": MODEL,
        "training": {"batch": size},
        "machine": Machine(name="here"),
    }
    from harness.registry import load_strategy

    strategy = admit(load_strategy("scalegnn"), Spec.model_validate(asked), facts_of(store))
    return Trainer(strategy, Grid.build(strategy.grid, Ledger()), store)


def fused(rows: int, turns: int) -> None:
    width, rate = MODEL["hidden"], MODEL["dropout"]
    print(
        f"RMSNorm, ReLU, dropout of {rows:,} x {width}, forward and backward\n\n| way | ms |\n| --- | --- |"
    )
    Z = torch.randn(rows, width, requires_grad=True)
    gamma = torch.ones(1, width, requires_grad=True)
    dH, vertices = torch.randn(rows, width), torch.arange(rows)
    grid = Grid.build({AxisName.X: 1}, Ledger(recording=False))
    alone = grid[AxisName.X]

    def modules(_: int) -> None:
        dropout(rms_norm(Z, (width,), gamma[0], EPSILON).relu(), rate).backward(dH)

    def ours(compiled: bool) -> Callable[[int], None]:
        way = Way(alone, alone, Gradients(alone, overlap=False), compiled)

        def run(turn: int) -> None:
            kept, scale = dropout_mask((0, turn, 0, 0), vertices, range(width), rate)
            finish = Finish(width, True, kept, scale)
            normalised(Kernels(grid.ledger), Z, gamma, finish, way).backward(dH)

        return run

    ways = {"PyTorch's modules": modules, "parts": ours(False), "fused": ours(True)}
    for name, seconds in taking_turns(ways, turns).items():
        print(f"| {name} | {1e3 * seconds:.1f} |")


if __name__ == "__main__":
    main()
