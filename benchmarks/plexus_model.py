"""Fits Plexus' model of the products with A (section 4.1) to kernels timed here, as its authors did on Perlmutter.

    harness data build rmat-17 --permutation double; harness data build osm-shape --permutation double
    python benchmarks/plexus_model.py

A point is a graph, a number of ranks and a grid: the products of an epoch, forward and backward, of the rank at the
origin, each kernel timed alone in this process, the median of several. Three layers, hidden 128, trained features.
Equation 4.4 as in strategies/plexus/formulas.py, with an intercept and without, by least squares with no coefficient
below zero (`harness.cost.epoch`); a fit is judged by 1000 random splits in 70 and 30 percent. Beside them a model by
kernels, whose terms are what a product reads and writes, fitted to relative errors. The last lines are for a machine's
card.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import spearmanr
from sklearn.metrics import r2_score, root_mean_squared_error
from sklearn.model_selection import ShuffleSplit

from harness.comm.layout import grids_of
from harness.cost.epoch import fitted
from harness.graph.blocks import Blocks
from harness.kernels.spmm import spmm
from harness.ledger import AxisName
from harness.parallel.roles import Share, roles_of, share_of
from harness.spec.dataset import DatasetChoice
from harness.spec.root import project_root
from harness.store.build import open_dataset
from strategies.plexus.formulas import Terms, terms_of_the_code, terms_of_the_paper
from strategies.plexus.plexus import FIRST

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
HIDDEN, LAYERS, TURNS = 128, 3, 5
GRAPHS = (("rmat-17", (8, 16, 64)), ("osm-shape", (8, 16, 32)))
SPLITS, TEST = 1000, 0.3
Matrix = NDArray[np.float64]


class Point(NamedTuple):
    """One grid of one graph: the terms of the models and what was measured."""

    graph: str
    grid: dict[AxisName, int]
    code: Terms
    paper: Terms
    kernels: list[float]
    milliseconds: float


def points() -> Iterator[Point]:
    """Grids of equal size take turns, so that a machine whose speed drifts drifts for all of them."""
    for graph, worlds in GRAPHS:
        blocks = open_dataset(project_root(), DatasetChoice(name=graph, permutation="double"))
        widths = [blocks.features, *[HIDDEN] * (LAYERS - 1)]
        for ranks in worlds:
            for grid in grids_of(ranks, X, Y, Z):
                kernels, milliseconds = measured(blocks, grid, widths)
                told = (grid, FIRST, blocks.n, blocks.nnz, widths)
                yield Point(
                    graph, grid, terms_of_the_code(*told), terms_of_the_paper(*told), kernels, milliseconds
                )


def measured(blocks: Blocks, grid: dict[AxisName, int], widths: list[int]) -> tuple[list[float], float]:
    """Terms of the model by kernels, and the milliseconds of all products of the rank at the origin."""
    origin, terms, total = dict.fromkeys(grid, 0), np.zeros(4), 0.0
    for layer, d in enumerate(widths):
        share: Share = share_of(roles_of(layer, FIRST), grid, origin, blocks.n, (d, d))
        for number, (rows, cols) in enumerate(((share.N, share.K), (share.K, share.N))):
            A, H = blocks.adjacency(rows, cols, (layer + number) % 2), torch.rand(len(cols), len(share.F))
            f = len(share.F)
            terms += [A.nnz * f, A.nnz, len(rows) * f, len(rows)]
            total += milliseconds(lambda A=A, H=H: spmm(A, H))
    return list(terms), total


def milliseconds(act: Callable[[], object]) -> float:
    act()
    taken = []
    for _ in range(TURNS):
        begun = perf_counter()
        act()
        taken.append(perf_counter() - begun)
    return 1e3 * median(taken)


def judged(terms: Matrix, ms: Matrix, fit: Callable[[Matrix, Matrix], Callable[[Matrix], Matrix]]) -> str:
    """Means over the splits: R^2 and root mean squared error, of what was fitted and of the rest."""
    scores = []
    for train, test in ShuffleSplit(SPLITS, test_size=TEST, random_state=0).split(terms):
        predict = fit(terms[train], ms[train])
        pairs = [(ms[part], predict(terms[part])) for part in (train, test)]
        scores.append([judge(*pair) for pair in pairs for judge in (r2_score, root_mean_squared_error)])
    cells = [f"{value:.2f}" for value in np.mean(scores, axis=0)]
    everything = fit(terms, ms)(terms)
    error = np.median(np.abs(everything - ms) / ms)
    return " | ".join([*cells, f"{100 * error:.0f} %", f"{spearmanr(everything, ms).statistic:.3f}"])


def linear(*, intercept: bool) -> Callable[[Matrix, Matrix], Callable[[Matrix], Matrix]]:
    def fit(terms: Matrix, ms: Matrix) -> Callable[[Matrix], Matrix]:
        model = fitted(terms, ms, intercept=intercept)
        weights = np.array([model.flops, model.forward, model.backward])
        return lambda some: some @ weights + model.intercept

    return fit


def by_kernels(terms: Matrix, ms: Matrix) -> Callable[[Matrix], Matrix]:
    """Relative errors: large graphs would decide alone otherwise."""
    coefficients, _ = nnls(terms / ms[:, None], np.ones(len(ms)))
    return lambda some: some @ coefficients


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    found = list(points())
    ms = np.array([point.milliseconds for point in found])
    print(f"{len(found)} points of {len(GRAPHS)} graphs, {ms.min():.1f} to {ms.max():.1f} ms\n")
    table(found, ms)
    tall(found)
    best = fitted(np.array([point.code for point in found]), ms)
    print("\nspmm:")
    for name in Terms._fields:
        print(f"  {name}: {getattr(best, name):.3g}")


def table(found: list[Point], ms: Matrix) -> None:
    titles = [
        "model",
        "R^2 fitted",
        "RMSE fitted",
        "R^2 rest",
        "RMSE rest",
        "median error",
        "rank correlation",
    ]
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    print("| paper, on Perlmutter (PLX-083 to PLX-086) | 0.89 | 16.8 | 0.79 | 20.1 | | |")
    for name, terms in (
        ("code", [point.code for point in found]),
        ("paper", [point.paper for point in found]),
    ):
        for intercept in (False, True):
            told = f"equation 4.4 of the {name}, {'with' if intercept else 'without'} intercept"
            print(f"| {told} | {judged(np.array(terms), ms, linear(intercept=intercept))} |")
    kernels = np.array([point.kernels for point in found])
    print(f"| by kernels: nnz f, nnz, rows f, rows | {judged(kernels, ms, by_kernels)} |")


def tall(found: list[Point]) -> None:
    """Table 2 of the paper: the shape that splits columns of H to one against that which splits its rows."""
    by_grid = {tuple(point.grid.values()): point.milliseconds for point in found if point.graph == "rmat-17"}
    wide, thin = by_grid[64, 1, 1], by_grid[1, 64, 1]
    told = f"1x64x1 takes {thin / wide:.2f} times as long as 64x1x1"
    print(f"\nrmat-17 on 64: {told} (the first layer alone, on a GPU: 8, PLX-069)")


if __name__ == "__main__":
    main()
