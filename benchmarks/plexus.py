"""Plexus' predictions: its grids, and its model of the products with A."""

import csv
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks.measuring import alternate, spec_of, train_in_turns, trainer_of
from benchmarks.mkl import INSTALL, load_mkl
from benchmarks.plexus_formulas import (
    Coefficients,
    Terms,
    predict_milliseconds,
    terms_in_code,
    terms_in_paper,
    terms_of_strategy,
)
from benchmarks.plotting import make_facets, stack_bars
from benchmarks.registry import Drawing, Hosts, Results, Table, benchmark
from harness.comm.layout import list_grids
from harness.experiment.requests import make_spec
from harness.graph.blocks import Blocks
from harness.graph.store.datasets import open_dataset
from harness.kernels.csr import Csr, to_scipy
from harness.kernels.spmm import spmm
from harness.ledger import AxisName
from harness.prediction.epoch import Prediction, predict
from harness.prediction.pricing import price_rings
from harness.registry import load_strategy
from harness.report.figures.axis_scales import Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.marks import Points
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import format_grid
from harness.strategies.plexus.plexus import Plexus
from harness.strategy import WORD, BlockCounts, Facts, Ready, ShapeBlocks, Strategy, admit
from harness.strategy.parallel.roles import LayerShare, get_layer_share, get_roles
from harness.strategy.parallel.rotating_layout import FIRST

# Grids.

PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, directed=False, labelled=2_449_029, training=196_615)
"""ogbn-products, by the paper's Table 4."""
DIMENSIONS = {1: "1D", 2: "2D", 3: "3D"}
EIGHT_HOSTS = Hosts(8)


@benchmark
def grids(hosts: Hosts = EIGHT_HOSTS, dataset: str = "amazon-shape", epochs: int = 3) -> Results:
    """Compare the epoch of every grid as predicted and as observed on slow links (Plexus' figure 5).

    Every grid of as many ranks as there are hosts trains three layers, hidden 128, with trained features. Predicted
    times are those of `harness predict` by the card config/machines/ethernet.yaml; observed times are the slowest
    rank's, the median of epochs. Draws plexus-figure-5-RANKS. The graph takes `harness data build amazon-shape
    --permutation double` first.
    """
    pairs: dict[tuple[int, ...], tuple[float, float]] = {}
    yield Table("grid", "predicted s:.3f", "observed s:.3f", "observed over predicted:.2f")
    for grid in load_strategy("plexus").grids(hosts.count):
        trainer = trainer_of(spec_of(make_request(dataset, grid, hosts.count, "ethernet")))
        predicted = predict_epoch(trainer.strategy).seconds.value
        for turns in train_in_turns([trainer], epochs):
            pairs[tuple(grid.values())] = predicted, turns.median()
            yield format_grid(grid), predicted, turns.median(), turns.median() / predicted
    if pairs:
        predictions, observations = zip(*pairs.values(), strict=True)
        rank = spearmanr(predictions, observations).statistic
        yield f"{len(pairs)} grids of {hosts.count} ranks on {dataset}, rank correlation {rank:.3f}"
        title = f"Predicted and observed epochs of {len(pairs)} grids: rank correlation {rank:.3f}"
        yield Drawing(f"plexus-figure-5-{hosts.count}", draw_grids(pairs, title), dataset)


@benchmark
def predicted_grids(machine: str = "perlmutter", ranks: int = 64) -> Results:
    """Predict an epoch of ogbn-products on each grid of a machine, by the paper's own model and by the replay.

    Nothing runs. Draws plexus-figure-5-MACHINE, with a bar for each grid.

    Args:
        machine: name of the machine's card
    """
    plexus, predictions = load_strategy("plexus"), dict[str, tuple[tuple[float, float], Prediction]]()
    for grid in plexus.grids(ranks):
        spec = make_spec(find_root(), make_request("ogbn-products", grid, ranks, machine), "benchmark")
        strategy = admit(plexus, spec, PRODUCTS)
        predictions[format_grid(grid)] = predict_as_in_paper(strategy), predict_epoch(strategy)
    best_first = sorted(predictions.items(), key=lambda each: sum(each[1][0]))
    yield Table(
        "grid", "products ms:.1f", "communication ms:.1f", "epoch ms:.1f", "predicted from the replay, ms:.1f"
    )
    for name, ((multiplying, moving), replayed) in best_first:
        times = multiplying, moving, multiplying + moving, replayed.seconds.value
        yield name, *(1e3 * seconds for seconds in times)
    parts = {
        what: [paper[part] for _, (paper, _) in best_first]
        for part, what in enumerate(("products with A", "communication"))
    }
    names, sums = [name for name, _ in best_first], [sum(paper) for _, (paper, _) in best_first]
    title = f"The grid {names[0]} is predicted {sums[-1] / sums[0]:.1f} times as fast as {names[-1]}"
    figure = stack_bars(names, parts, Scale("seconds", "predicted time of an epoch", "s"), title)
    yield Drawing(f"plexus-figure-5-{machine}", figure, "ogbn-products")


def make_request(dataset: str, grid: dict[AxisName, int], ranks: int, machine: str) -> dict[str, Any]:
    return {
        "strategy": "plexus",
        "dataset": {"name": dataset, "permutation": "double"},
        "ranks": ranks,
        "grid": grid,
        "model": {"hidden": 128},
        "training": {"features": True},
        "machine": machine,
    }


def predict_epoch(strategy: Strategy, blocks: Blocks | None = None) -> Prediction:
    """Predict an epoch by the card of the strategy's machine."""
    return predict(Ready(strategy, blocks), load_machine_card(find_root(), strategy.spec.machine.name))


def predict_as_in_paper(strategy: Strategy) -> tuple[float, float]:
    """Return the seconds of products and of communication by the paper's own model, equations 4.4 and 4.6."""
    card = load_machine_card(find_root(), strategy.spec.machine.name)
    assert isinstance(strategy, Plexus) and card.plexus_model and card.links
    coefficients = Coefficients(**card.plexus_model.model_dump(include=set(Coefficients._fields)))
    words = strategy.words(strategy.coordinates(0), BlockCounts(ShapeBlocks(strategy.facts)))
    links = card.plexus_model.replace_bandwidths(card.links)
    moving = price_rings(words, strategy.grid, links, WORD[strategy.spec.precision])
    return predict_milliseconds(terms_of_strategy(strategy), coefficients) / 1e3, moving


@style_context()
def draw_grids(pairs: dict[tuple[int, ...], tuple[float, float]], title: str) -> Figure:
    """Draw a point for each grid, by the number of its axes with more than one rank; the line is equality."""
    rows = [
        {
            "curve": f"{DIMENSIONS[sum(size > 1 for size in grid)]} grids",
            "predicted": predicted,
            "observed": observed,
        }
        for grid, (predicted, observed) in sorted(pairs.items())
    ]
    observed, predicted = (
        Scale(f"{name}", f"{name} time of an epoch", "s", log=True) for name in ("observed", "predicted")
    )
    frame = pd.DataFrame(rows).sort_values("curve", kind="stable")
    return compose_figure(make_facets(frame), Points(observed, predicted, equality=True), title=title)


# The model of products.

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
HIDDEN, LAYERS, TURNS = 128, 3, 5
GRAPHS = (("rmat-17", (8, 16, 64)), ("osm-shape", (8, 16, 32)))
SPLITS, TEST = 1000, 0.3
SCORES = ("R^2 fitted", "RMSE fitted", "R^2 rest", "RMSE rest")
DATA, RESULTS = Path(__file__).parent / "data", Path(__file__).parent / "results"
OURS = "ours"
Numbers = NDArray[np.float64]
Model = Callable[[Numbers], Numbers]


@benchmark
def measured_model() -> Results:
    """Fit Plexus' model of the products with A (section 4.1) to kernels timed on this machine, as its authors did.

    A point is a graph, a number of ranks and a grid: the products of an epoch, forward and backward, of the rank at the
    origin. Each kernel is timed alone in this process, the median of several calls. Three layers, hidden 128, trained
    features. Equation 4.4 as in plexus_formulas.py is fitted with an intercept and without, by least squares with no
    coefficient below zero, and judged by 1000 random splits into 70 and 30 percent. Next to it is a model by kernels,
    fitted to relative errors: its terms are what a product reads and writes. The last lines are for a machine's card.
    The graphs take `harness data build rmat-17 --permutation double` and the same of osm-shape first.
    """
    sample = list(measure_points())
    ms = np.array([point.milliseconds for point in sample])
    yield f"{len(sample)} points of {len(GRAPHS)} graphs, {ms.min():.1f} to {ms.max():.1f} ms"
    yield Table("model", *(f"{score}:.2f" for score in SCORES), "median error:.0%", "rank correlation:.3f")
    yield "paper, on Perlmutter (PLX-083 to PLX-086)", 0.89, 16.8, 0.79, 20.1, None, None
    for name in ("code", "paper"):
        terms = np.array([getattr(point, name) for point in sample])
        for intercept in (False, True):
            title = f"equation 4.4 of the {name}, {'with' if intercept else 'without'} intercept"
            yield title, *judge(terms, ms, fit_equation(intercept=intercept))
    kernels = np.array([point.kernels for point in sample])
    yield "by kernels: nnz f, nnz, rows f, rows", *judge(kernels, ms, fit_kernels)
    yield compare_shapes(sample)
    best = fit_coefficients(np.array([point.code for point in sample]), ms, intercept=False)
    yield "\n".join(["plexus_model:", *(f"  {name}: {getattr(best, name):.3g}" for name in Terms._fields)])


@benchmark
def published_model() -> Results:
    """Fit equation 4.4 as printed to the products that the authors timed, by ordinary least squares, as they did.

    Keeps benchmarks/results/plexus-model.csv, which claims read.
    """
    with (DATA / "plexus_spmm_points.csv").open(newline="") as file:
        points = {tuple(row.values())[1:]: row for row in csv.DictReader(file)}.values()
    ms = np.array([float(row["spmm_ms_per_epoch"]) for row in points])
    terms = np.array([make_printed_terms(row) for row in points])
    lines = ["fit," + ",".join(SCORES)]
    yield Table("fit", *(f"{score}:.3g" for score in SCORES))
    for intercept in (False, True):
        title = f"{'with' if intercept else 'without'} intercept"
        means = np.mean(list(score_splits(terms, ms, partial(fit_ordinary, intercept=intercept))), axis=0)
        yield title, *means.tolist()
        lines.append(f"{title}," + ",".join(f"{mean:.4g}" for mean in means))
    (RESULTS / "plexus-model.csv").write_text("\n".join(lines) + "\n")


@benchmark
def local_products(dataset: str = "ogbn-products@1/16") -> Results:
    """Compare the products of 28 grids of 64 ranks on this machine with the times that Plexus' authors published.

    Theirs are of an A100 and of ogbn-products, ours of one core and of a twin of that graph: nothing of a machine's
    card is in either. The rank at the origin computes all products of an epoch, forward and backward, with three
    layers, hidden 128. The libraries take turns. A rank correlation says whether the same grids have slow products.
    """
    mkl = load_mkl()
    libraries = {OURS: prepare_ours, "SciPy": prepare_scipy}
    if mkl:

        def prepare_mkl(A: Csr, H: Tensor) -> Callable[[], object]:
            return mkl.prepare_product(A, H, torch.empty(A.rows, H.shape[1]), threads=1)

        libraries["MKL"] = prepare_mkl
    yield mkl.version if mkl else INSTALL
    blocks = open_dataset(find_root(), spec_of(make_request(dataset, {X: 1, Y: 1, Z: 1}, 1, "local")).dataset)
    with (DATA / "plexus_spmm_points.csv").open(newline="") as file:
        points = [row for row in csv.DictReader(file) if row["set"] != "scaling"]
    yield Table("grid", "published ms:.1f", *(f"{name} ms:.1f" for name in libraries))
    rows = []
    for point in points:
        grid = {axis: int(point[axis.value]) for axis in (X, Y, Z)}
        ms = time_products(blocks, grid, [int(point[name]) for name in ("d0", "d1", "d2")], libraries)[1]
        rows.append([float(point["spmm_ms_per_epoch"]), *ms.values()])
        yield format_grid(grid), *rows[-1]
    yield Table("library", "rank correlation with the published times:.3f", "with ours:.3f")
    published, ours, *_ = zip(*rows, strict=True)
    for name, times in zip(libraries, list(zip(*rows, strict=True))[1:], strict=True):
        yield name, float(spearmanr(published, times).statistic), float(spearmanr(ours, times).statistic)


def compare_shapes(sample: "list[Point]") -> str:
    """Compare the grid that splits columns of H alone with the one that splits its rows alone (the paper's Table 2)."""
    by_grid = {tuple(point.grid.values()): point.milliseconds for point in sample if point.graph == "rmat-17"}
    wide, thin = by_grid[64, 1, 1], by_grid[1, 64, 1]
    ratio = f"1x64x1 takes {thin / wide:.2f} times as long as 64x1x1"
    return f"rmat-17 on 64: {ratio} (the first layer alone, on a GPU: 8, PLX-069)"


class Point(NamedTuple):
    """One grid of one graph: the terms of the models, and the measured milliseconds."""

    graph: str
    grid: dict[AxisName, int]
    code: Terms
    paper: Terms
    kernels: Numbers
    milliseconds: float


def measure_points() -> Iterator[Point]:
    """Measure every point, graph by graph."""
    for graph, worlds in GRAPHS:
        blocks = open_dataset(find_root(), DatasetChoice(name=graph, permutation="double"))
        widths = [blocks.features, *[HIDDEN] * (LAYERS - 1)]
        for ranks in worlds:
            for grid in list_grids(ranks, X, Y, Z):
                sizes = (grid, FIRST, blocks.n, blocks.nnz, widths)
                terms = terms_in_code(*sizes), terms_in_paper(*sizes)
                kernels, ms = time_products(blocks, grid, widths, {OURS: prepare_ours})
                yield Point(graph, grid, *terms, kernels, ms[OURS])


Prepare = Callable[[Csr, Tensor], Callable[[], object]]
"""Prepares a product by a library, and returns the call that is timed."""


def prepare_ours(A: Csr, H: Tensor) -> Callable[[], object]:
    return partial(spmm, A, H)


def prepare_scipy(A: Csr, H: Tensor) -> Callable[[], object]:
    matrix, dense = to_scipy(A), H.numpy()
    return lambda: matrix @ dense


def time_products(
    blocks: Blocks, grid: dict[AxisName, int], widths: list[int], libraries: Mapping[str, Prepare]
) -> tuple[Numbers, dict[str, float]]:
    """Return terms of the model by kernels, and each library's milliseconds of all products at the origin."""
    origin, terms, ms = dict.fromkeys(grid, 0), np.zeros(4), dict.fromkeys(libraries, 0.0)
    for layer, d in enumerate(widths):
        share: LayerShare = get_layer_share(get_roles(layer, FIRST), grid, origin, blocks.n, (d, d))
        for number, (rows, cols) in enumerate(((share.N, share.K), (share.K, share.N))):
            A, H = blocks.adjacency(rows, cols, (layer + number) % 2), torch.rand(len(cols), len(share.F))
            f = len(share.F)
            terms += [A.nnz * f, A.nnz, len(rows) * f, len(rows)]
            calls = {name: prepare(A, H) for name, prepare in libraries.items()}
            for name, seconds in alternate(calls, TURNS).items():
                ms[name] += 1e3 * median(seconds)
    return terms, ms


def judge(terms: Numbers, ms: Numbers, fit: Callable[[Numbers, Numbers], Model]) -> list[float]:
    """Return means over the splits: R^2 and root mean squared error, of the fitted points and of the rest."""
    everything = fit(terms, ms)(terms)
    error = np.median(np.abs(everything - ms) / ms)
    means = np.mean(list(score_splits(terms, ms, fit)), axis=0).tolist()
    return [*means, float(error), float(spearmanr(everything, ms).statistic)]


def score_splits(
    terms: Numbers, ms: Numbers, fit: Callable[[Numbers, Numbers], Model]
) -> Iterator[list[float]]:
    """Return R^2 and root mean squared error of the fitted points and of the rest, split by split."""
    for train, test in make_splits(len(ms)):
        predict = fit(terms[train], ms[train])
        yield [each for part in (train, test) for each in score(ms[part], predict(terms[part]))]


def make_splits(count: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return random splits into points to fit and points to judge by."""
    generator, tested = np.random.RandomState(0), ceil(TEST * count)
    for _ in range(SPLITS):
        order = generator.permutation(count)
        yield order[tested:], order[:tested]


def make_printed_terms(row: dict[str, str]) -> Terms:
    """Return the terms of a published point."""
    grid = {axis: int(row[axis]) for axis in (X, Y, Z)}
    return terms_in_paper(grid, FIRST, int(row["n"]), int(row["nnz"]), [int(row[f"d{k}"]) for k in range(3)])


def fit_ordinary(terms: Numbers, ms: Numbers, *, intercept: bool) -> Model:
    """Fit by ordinary least squares, in which a coefficient may be negative."""
    scale = terms.max(axis=0)

    def columns(some: Numbers) -> Numbers:
        return np.column_stack([some / scale, np.full(len(some), float(intercept))])

    coefficients, *_ = np.linalg.lstsq(columns(terms), ms)
    return lambda some: columns(some) @ coefficients


def score(ms: Numbers, predicted: Numbers) -> tuple[float, float]:
    """Return R^2 and the root mean squared error."""
    squares = ((ms - predicted) ** 2).sum()
    return float(1 - squares / ((ms - ms.mean()) ** 2).sum()), float(np.sqrt(squares / len(ms)))


def fit_equation(*, intercept: bool) -> Callable[[Numbers, Numbers], Model]:
    """Return a fit of equation 4.4."""

    def fit(terms: Numbers, ms: Numbers) -> Model:
        model = fit_coefficients(terms, ms, intercept=intercept)
        weights = np.array([model.flops, model.forward, model.backward])
        return lambda some: some @ weights + model.intercept

    return fit


def fit_coefficients(terms: Numbers, ms: Numbers, *, intercept: bool) -> Coefficients:
    """Return the coefficients with the least squared error that are not negative.

    An ordinary regression gives a term within the noise either sign, and a negative coefficient predicts negative times
    wherever its term is large.
    """
    columns = np.column_stack([terms, np.full(len(terms), float(intercept))])
    largest = np.abs(columns).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)  # the terms are many orders of magnitude apart
    coefficients, _ = nnls(columns / scale, ms)
    return Coefficients(*(coefficients / scale).tolist())


def fit_kernels(terms: Numbers, ms: Numbers) -> Model:
    """Fit relative errors: by absolute ones large graphs alone would decide."""
    coefficients, _ = nnls(terms / ms[:, None], np.ones(len(ms)))
    return lambda some: some @ coefficients
