"""Fits Plexus' model of the products with A (section 4.1) to kernels timed on this machine, as its authors did.

    harness data build rmat-17 --permutation double; harness data build osm-shape --permutation double
    python benchmarks/plexus_model.py measured
    python benchmarks/plexus_model.py published     the authors' own points: results/plexus-model.csv, which claims read

A point is a graph, a number of ranks and a grid: the products of an epoch, forward and backward, of the rank at the
origin. Each kernel is timed alone in this process, the median of several calls. Three layers, hidden 128, trained
features. Equation 4.4 as in plexus_formulas.py is fitted with an intercept and without, by least squares
with no coefficient below zero, and judged by 1000 random splits into 70 and 30 percent. Beside
it stands a model by kernels, fitted to relative errors: its terms are what a product reads and writes. The last lines
are for a machine's card.
"""

import csv
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from measuring import Table, alternate, argument_parser, one_thread
from numpy.typing import NDArray
from plexus_formulas import Coefficients, Terms, terms_in_code, terms_in_paper
from scipy.optimize import nnls
from scipy.stats import spearmanr

from harness.comm.layout import list_grids
from harness.graph.blocks import Blocks
from harness.kernels.spmm import spmm
from harness.ledger import AxisName
from harness.parallel.roles import LayerShare, get_layer_share, get_roles
from harness.parallel.rotating_layout import FIRST
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root
from harness.store.datasets import open_dataset

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
HIDDEN, LAYERS, TURNS = 128, 3, 5
GRAPHS = (("rmat-17", (8, 16, 64)), ("osm-shape", (8, 16, 32)))
SPLITS, TEST = 1000, 0.3
SCORES = ("R^2 fitted", "RMSE fitted", "R^2 rest", "RMSE rest")
DATA, RESULTS = Path(__file__).parent / "data", Path(__file__).parent / "results"
Numbers = NDArray[np.float64]
Model = Callable[[Numbers], Numbers]


class Point(NamedTuple):
    """One grid of one graph: the terms of the models, and the measured milliseconds."""

    graph: str
    grid: dict[AxisName, int]
    code: Terms
    paper: Terms
    kernels: Numbers
    milliseconds: float


def points() -> Iterator[Point]:
    """Every point, graph by graph."""
    for graph, worlds in GRAPHS:
        blocks = open_dataset(find_root(), DatasetChoice(name=graph, permutation="double"))
        widths = [blocks.features, *[HIDDEN] * (LAYERS - 1)]
        for ranks in worlds:
            for grid in list_grids(ranks, X, Y, Z):
                sizes = (grid, FIRST, blocks.n, blocks.nnz, widths)
                terms = terms_in_code(*sizes), terms_in_paper(*sizes)
                yield Point(graph, grid, *terms, *measured(blocks, grid, widths))


def measured(blocks: Blocks, grid: dict[AxisName, int], widths: list[int]) -> tuple[Numbers, float]:
    """Terms of the model by kernels, and the milliseconds of all products of the rank at the origin."""
    origin, terms, total = dict.fromkeys(grid, 0), np.zeros(4), 0.0
    for layer, d in enumerate(widths):
        share: LayerShare = get_layer_share(get_roles(layer, FIRST), grid, origin, blocks.n, (d, d))
        for number, (rows, cols) in enumerate(((share.N, share.K), (share.K, share.N))):
            A, H = blocks.adjacency(rows, cols, (layer + number) % 2), torch.rand(len(cols), len(share.F))
            f = len(share.F)
            terms += [A.nnz * f, A.nnz, len(rows) * f, len(rows)]
            total += 1e3 * median(alternate({"spmm": partial(spmm, A, H)}, TURNS)["spmm"])
    return terms, total


def judged(terms: Numbers, ms: Numbers, fit: Callable[[Numbers, Numbers], Model]) -> list[str]:
    """Means over the splits: R^2 and root mean squared error, of the fitted points and of the rest."""
    everything = fit(terms, ms)(terms)
    error = np.median(np.abs(everything - ms) / ms)
    means = (f"{mean:.2f}" for mean in np.mean(list(scores_of_splits(terms, ms, fit)), axis=0))
    return [*means, f"{100 * error:.0f} %", f"{spearmanr(everything, ms).statistic:.3f}"]


def scores_of_splits(
    terms: Numbers, ms: Numbers, fit: Callable[[Numbers, Numbers], Model]
) -> Iterator[list[float]]:
    """R^2 and root mean squared error of the fitted points and of the rest, split by split."""
    for train, test in splits(len(ms)):
        predict = fit(terms[train], ms[train])
        yield [score for part in (train, test) for score in scored(ms[part], predict(terms[part]))]


def splits(count: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Random splits into points to fit and points to judge by."""
    generator, tested = np.random.RandomState(0), ceil(TEST * count)
    for _ in range(SPLITS):
        order = generator.permutation(count)
        yield order[tested:], order[:tested]


def published() -> None:
    """Fits equation 4.4 as printed to the products that the authors timed, by ordinary least squares, as they did."""
    with (DATA / "plexus_spmm_points.csv").open(newline="") as file:
        points = {tuple(row.values())[1:]: row for row in csv.DictReader(file)}.values()
    ms = np.array([float(row["spmm_ms_per_epoch"]) for row in points])
    terms = np.array([_printed_terms(row) for row in points])
    table, lines = Table("fit", *SCORES), ["fit," + ",".join(SCORES)]
    for intercept in (False, True):
        title = f"{'with' if intercept else 'without'} intercept"
        means = np.mean(list(scores_of_splits(terms, ms, partial(ordinary, intercept=intercept))), axis=0)
        table.row(title, *(f"{mean:.3g}" for mean in means))
        lines.append(f"{title}," + ",".join(f"{mean:.4g}" for mean in means))
    (RESULTS / "plexus-model.csv").write_text("\n".join(lines) + "\n")


def _printed_terms(row: dict[str, str]) -> Terms:
    grid = {axis: int(row[axis]) for axis in (X, Y, Z)}
    return terms_in_paper(grid, FIRST, int(row["n"]), int(row["nnz"]), [int(row[f"d{k}"]) for k in range(3)])


def ordinary(terms: Numbers, ms: Numbers, *, intercept: bool) -> Model:
    """Ordinary least squares, in which a coefficient may be negative."""
    scale = terms.max(axis=0)

    def columns(some: Numbers) -> Numbers:
        return np.column_stack([some / scale, np.full(len(some), float(intercept))])

    coefficients, *_ = np.linalg.lstsq(columns(terms), ms)
    return lambda some: columns(some) @ coefficients


def scored(ms: Numbers, predicted: Numbers) -> tuple[float, float]:
    """R^2 and the root mean squared error."""
    squares = ((ms - predicted) ** 2).sum()
    return float(1 - squares / ((ms - ms.mean()) ** 2).sum()), float(np.sqrt(squares / len(ms)))


def linear(*, intercept: bool) -> Callable[[Numbers, Numbers], Model]:
    def fit(terms: Numbers, ms: Numbers) -> Model:
        model = fitted(terms, ms, intercept=intercept)
        weights = np.array([model.flops, model.forward, model.backward])
        return lambda some: some @ weights + model.intercept

    return fit


def fitted(terms: Numbers, ms: Numbers, *, intercept: bool) -> Coefficients:
    """The coefficients with the least squared error that are not negative.

    An ordinary regression gives a term within the noise either sign, and a negative coefficient predicts negative times
    wherever its term is large.
    """
    columns = np.column_stack([terms, np.full(len(terms), float(intercept))])
    largest = np.abs(columns).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)  # the terms are many orders of magnitude apart
    coefficients, _ = nnls(columns / scale, ms)
    return Coefficients(*(coefficients / scale).tolist())


def by_kernels(terms: Numbers, ms: Numbers) -> Model:
    """A fit to relative errors: by absolute ones large graphs alone would decide."""
    coefficients, _ = nnls(terms / ms[:, None], np.ones(len(ms)))
    return lambda some: some @ coefficients


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("part", choices=("measured", "published"))
    if parser.parse_args().part == "published":
        published()
        return
    one_thread()
    sample = list(points())
    ms = np.array([point.milliseconds for point in sample])
    print(f"{len(sample)} points of {len(GRAPHS)} graphs, {ms.min():.1f} to {ms.max():.1f} ms\n")
    compare_models(sample, ms)
    compare_shapes(sample)
    best = fitted(np.array([point.code for point in sample]), ms, intercept=False)
    print("\nplexus_model:")
    for name in Terms._fields:
        print(f"  {name}: {getattr(best, name):.3g}")


def compare_models(sample: list[Point], ms: Numbers) -> None:
    table = Table("model", *SCORES, "median error", "rank correlation")
    table.row("paper, on Perlmutter (PLX-083 to PLX-086)", 0.89, 16.8, 0.79, 20.1, "", "")
    for name in ("code", "paper"):
        terms = np.array([getattr(point, name) for point in sample])
        for intercept in (False, True):
            title = f"equation 4.4 of the {name}, {'with' if intercept else 'without'} intercept"
            table.row(title, *judged(terms, ms, linear(intercept=intercept)))
    kernels = np.array([point.kernels for point in sample])
    table.row("by kernels: nnz f, nnz, rows f, rows", *judged(kernels, ms, by_kernels))


def compare_shapes(sample: list[Point]) -> None:
    """Table 2 of the paper: the grid that splits columns of H alone against the grid that splits its rows alone."""
    by_grid = {tuple(point.grid.values()): point.milliseconds for point in sample if point.graph == "rmat-17"}
    wide, thin = by_grid[64, 1, 1], by_grid[1, 64, 1]
    ratio = f"1x64x1 takes {thin / wide:.2f} times as long as 64x1x1"
    print(f"\nrmat-17 on 64: {ratio} (the first layer alone, on a GPU: 8, PLX-069)")


if __name__ == "__main__":
    main()
