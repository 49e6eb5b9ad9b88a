"""What the papers' figures do not show, computed without starting a rank, for the page docs/evidence/findings.md.

Words and sizes follow from the cards of the datasets, seconds from the cards of the machines; those of `gain` were
measured.
"""

import csv
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from benchmarks.finding_figures import (
    FROM_PAGE,
    draw_balance,
    draw_dimensions,
    draw_edges,
    draw_elements,
    draw_gain,
    draw_model,
    draw_settings,
    draw_swaps,
)
from benchmarks.plexus_formulas import Coefficients, predict_milliseconds, terms_in_code
from benchmarks.plotting import RESULTS, read_recorded
from benchmarks.prediction import POINTS, predict_point
from benchmarks.registry import Drawing, Results, Row, Table, benchmark
from harness.base.errors import UserError
from harness.base.progress import ignore_step
from harness.claims import Evidence, read_claims, select
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.graph.blocks import Blocks
from harness.graph.cards.catalog import load_card
from harness.graph.partitions.metis import partition_with_balanced_metis
from harness.graph.partitions.swap import balance_by_swaps, compute_balance
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.shard_balance import measure_shard_balance
from harness.kernels.csr import Csr
from harness.ledger import AxisName
from harness.prediction.epoch import Prediction, predict
from harness.registry import load_strategy
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import format_grid
from harness.strategy import Ready, admit
from harness.strategy.parallel.rotating_layout import FIRST

MILLION, MILLISECONDS = 1e6, 1e3


# CAGNET's dimensions.

GRAPHS = ("reddit", "cagnet-amazon", "cagnet-protein")
SCHEMES = ("cagnet-1d", "cagnet-1.5d", "cagnet-2d", "cagnet-3d")
RANKS = (4, 8, 16, 32, 64, 128, 256)
SUMMIT = "summit"
DIMENSIONS = RESULTS / "dimensions.csv"
DIMENSION_COLUMNS = ("graph", "strategy", "ranks", "grid", "seconds", "low", "high", "elements")


@benchmark
def dimensions() -> Results:
    """Predict words and epochs of CAGNET in 1, 1.5, 2 and 3 dimensions, each on the fastest of its grids."""
    found = {
        (graph, scheme, ranks): find_fastest(graph, scheme, ranks)
        for graph in GRAPHS
        for scheme in SCHEMES
        for ranks in RANKS
    }
    for graph in GRAPHS:
        title = f"{graph} on {SUMMIT}: million words received, and milliseconds an epoch, by number of ranks"
        yield Table("scheme", *map(str, RANKS), title=title)
        for scheme in SCHEMES:
            cells = []
            for ranks in RANKS:
                grid, predicted = found[graph, scheme, ranks]
                millions, ms = predicted.elements_received / MILLION, predicted.seconds.value * MILLISECONDS
                cells.append(f"{millions:,.3g}, {ms:,.3g} ({grid})")
            yield scheme, *cells
    rows = [
        (*key, grid, each.seconds.value, each.seconds.low, each.seconds.high, each.elements_received)
        for key, (grid, each) in found.items()
    ]
    pd.DataFrame(rows, columns=DIMENSION_COLUMNS).to_csv(DIMENSIONS, index=False, float_format="%.6g")
    yield from draw_recorded_dimensions()


def draw_recorded_dimensions() -> Iterator[Drawing]:
    """Draw the predictions that `dimensions` kept."""
    table = pd.read_csv(DIMENSIONS)
    yield Drawing("findings-dimensions", draw_dimensions(table))
    yield Drawing("findings-elements", draw_elements(table))


def find_fastest(graph: str, scheme: str, ranks: int) -> tuple[str, Prediction]:
    """Return the fastest grid and its prediction: two layers, hidden 16, as in the paper."""
    card, facts = load_machine_card(find_root(), SUMMIT), facts_of_card(load_card(find_root(), graph))
    kind = load_strategy(scheme)
    options = []
    for grid in kind.grids(ranks):
        asked = {
            "strategy": scheme,
            "dataset": {"name": graph, "permutation": "single"},
            "ranks": ranks,
            "grid": {str(axis): size for axis, size in grid.items()},
            "machine": SUMMIT,
            "model": {"layers": 2, "hidden": 16, "order": "aggregate_first"},
        }
        spec = make_spec(find_root(), asked, "a finding")
        try:
            ready = Ready(admit(kind, spec, facts))
        except UserError:  # columns are fewer than the ranks of an axis
            continue
        options.append((format_grid(grid), predict(ready, card)))
    return min(options, key=lambda option: option[1].seconds.value)


# Two models of Plexus' products.


@benchmark
def model() -> Results:
    """Compare two models of Plexus' products with published times: equation 4.4 as printed, and terms of each product.

    The terms are from Perlmutter's card, where they were fitted to single products. No epoch supplied any of them.
    """
    points = predict_points()
    grids = points[~points.scaling]
    yield Table(
        *("model, on 28 grids of 64 GPUs", "rank correlation:.3f", "R2 of the times:.2f"),
        "median of model over published:.2f",
    )
    for name, column in (
        ("equation 4.4, coefficients as printed", "printed"),
        ("terms of each product", "terms"),
    ):
        some, true = grids[column], grids.published
        residual = 1 - ((true - some) ** 2).sum() / ((true - true.mean()) ** 2).sum()
        ranks = spearmanr(some, true).statistic
        yield name, float(ranks), float(residual), float(np.median(some / true))
    yield draw_models(grids)


def predict_points() -> pd.DataFrame:
    """Return the published seconds of each grid, and those of both models: by the printed equation, and by terms."""
    points = list(csv.DictReader(POINTS.read_text(encoding="utf-8").splitlines()))
    rates = load_machine_card(find_root(), "perlmutter").rates
    assert rates
    return pd.DataFrame(
        {
            "scaling": [point["set"] == "scaling" for point in points],
            "published": [float(point["spmm_ms_per_epoch"]) / MILLISECONDS for point in points],
            "printed": [predict_by_equation(point) / MILLISECONDS for point in points],
            "terms": [predict_point(point, rates.spmm) for point in points],
        }
    )


def draw_models(points: pd.DataFrame) -> Drawing:
    """Return the figure of both models."""
    table = points.melt("published", ["printed", "terms"], "model", "seconds")
    return Drawing("findings-model", draw_model(table))


def predict_by_equation(point: dict[str, str]) -> float:
    """Return the milliseconds of equation 4.4 with the coefficients that the paper prints."""
    card = load_machine_card(find_root(), "perlmutter").plexus_model
    assert card
    grid = {axis: int(point[axis.value]) for axis in (AxisName.X, AxisName.Y, AxisName.Z)}
    widths = [int(point[name]) for name in ("d0", "d1", "d2")]
    terms = terms_in_code(grid, FIRST, int(point["n"]), int(point["nnz"]), widths)
    return predict_milliseconds(terms, Coefficients(card.flops, card.forward, card.backward))


# The settings that ScaleGNN's paper leaves open.


@benchmark
def settings() -> Results:
    """Predict epochs of ScaleGNN's figure 7 under the settings that the paper leaves open."""
    evidence = Evidence(find_root(), log=ignore_step)
    line = select("scalegnn-figure-7")
    table = Table("graph, machine, GPUs", "shortest ms:,.3g", "longest ms:,.3g", "longest over shortest:.2f")
    rows = []
    yield table
    for name in evidence.list_values(line, "dataset"):
        specs = evidence.list_runs(line.narrow(dataset=name))
        for machine in dict.fromkeys(spec.machine.name for spec in specs):
            ranks = min(spec.ranks for spec in specs if spec.machine.name == machine)
            epochs = evidence.time_epoch(line.narrow(dataset=name, machine=machine, ranks=ranks))
            times = sorted(each.seconds * MILLISECONDS for each in epochs.values())
            rows.append((f"{name}, {machine}, {ranks}", times[0], times[-1], times[-1] / times[0]))
            yield rows[-1]
    yield Drawing("findings-settings", draw_settings(table.to_frame(rows)))


# The balance of blocks.

ORDERED = ("ogbn-products@1/64", "reddit@1/64", "europe-osm@1/64", "rmat-17")
CUTS = 8


@benchmark
def balance() -> Results:
    """Count the nonzeros of the fullest of 8 x 8 blocks over the mean, by order of the vertices."""
    orders = ("none", "single", "double")
    table = Table("graph", *(f"{order}:.3f" for order in orders), "the densest row over a block's mean:.3f")
    rows = []
    yield table
    for name in ORDERED:
        blocks, A = open_graph(name)
        ratios = dict(measure_shard_balance(blocks, CUTS, 0))
        longest = int(A.rowptr.diff().max())
        values = (ratios[order] for order in orders)
        rows.append((name, *values, longest / CUTS / (blocks.nnz / CUTS**2)))
        yield rows[-1]
    yield Drawing("findings-balance", draw_balance(table.to_frame(rows)))


# What G3 gains over a halo exchange.

PIPELINES = {
    "bns-gcn precompute=False": "halos in every epoch",
    "g3 pipeline=sequential": "G3, sequential",
    "g3 pipeline=full": "G3, all of its pipeline",
    "bns-gcn": "the first layer's halo once",
}
"""Variants of network.pipelines, from the one that sends most."""


@benchmark
def gain() -> Results:
    """Compare G3's epochs with those of halo exchanges, as results/pipelines.md has them (network.pipelines)."""
    every = "bns-gcn precompute=False"
    recorded = {
        setting: {name: epoch / epochs[every] for name, epoch in epochs.items()}
        for setting, epochs in read_pipelines().items()
    }
    table = Table("epoch over that of halos in every epoch", *(f"{setting}:.2f" for setting in recorded))
    rows = [(said, *(epochs[name] for epochs in recorded.values())) for name, said in PIPELINES.items()]
    yield table
    yield from rows
    yield Drawing("findings-gain", draw_gain(table.to_frame(rows)))


def read_pipelines() -> dict[str, dict[str, float]]:
    """Return the milliseconds of an epoch by variant, for each setting of network.pipelines that was recorded."""
    found: dict[str, dict[str, float]] = {}
    epochs: dict[str, float] = {}
    for line in (RESULTS / "pipelines.md").read_text().splitlines():
        if command := re.search(
            r"network\.pipelines --hosts (\d+) --rate (\d+)mbit(?: --bin-nodes (\d+))?$", line
        ):
            hosts, rate, bins = command.groups(default="1000")
            epochs = found[f"{hosts} hosts, {rate} Mbit/s, bins of {bins}"] = {}
        elif row := re.match(r"\| ([^|]+) \| (\d+) \|", line):
            epochs[row[1]] = float(row[2])
    return found


# The swaps of G3's partitioner.

SWAPPED = (*ORDERED, "tiny-rmat", "sbm-4096", "reddit-shape", "amazon-shape", "coauthor-cs")
PARTS_OF_G3 = (4, 8, 16)
FORMS = {"as printed": False, "guarded": True}


@benchmark
def swaps() -> Results:
    """Run the swaps of G3's partitioner, printed and guarded: the largest set of remote vertices and the sum of all.

    Both forms start from one partition by METIS.
    """
    table = Table(
        *("graph", "parts", "form", "swaps kept", "it ends: why", "fewest over most:.3f"),
        *("largest set:.3f", "all sets:.3f"),
    )
    rows = list[Row]()
    yield table
    for name in SWAPPED:
        _, A = open_graph(name)
        for parts in PARTS_OF_G3:
            by_metis = partition_with_balanced_metis(A, parts, 0)
            for form, guarded in FORMS.items():
                found = balance_by_swaps(A, by_metis, parts, guarded=guarded)
                largest, every = max(found.after) / max(found.before), sum(found.after) / sum(found.before)
                ratios = compute_balance(found.after), largest, every
                rows.append((name, parts, form, found.swaps, found.stopped, *ratios))
                yield rows[-1]
    yield Drawing("findings-swaps", draw_swaps(table.to_frame(rows)))


# What a paper counts as an edge.


@benchmark
def edges() -> Results:
    """Compare every number of edges or nonzeros that a paper prints of a graph with its edges counted once."""
    table = Table(
        *("graph", "edges, each once:,", "paper", "claim", "called", "printed:,.0f"),
        "over each edge once:.3f",
    )
    rows = list[Row]()
    yield table
    for paper, claims in read_claims(find_root()).items():
        for claim in claims:
            if claim.category != "dataset" or claim.metric not in ("edges", "nnz"):
                continue
            once, printed = load_card(find_root(), claim.dataset).edges, claim.number
            assert once and printed, claim.id
            called = "nonzeros" if claim.metric == "nnz" else "edges"
            rows.append((claim.dataset, once, paper, claim.id, called, printed, printed / once))
            yield rows[-1]
    yield Drawing("findings-edges", draw_edges(table.to_frame(rows)))


def open_graph(name: str) -> tuple[Blocks, Csr]:
    """Open a graph in the order of its dataset, and its whole matrix; build it if it is not there."""
    choice = DatasetChoice(name=name)
    build_store(find_root(), choice)
    blocks = open_dataset(find_root(), choice)
    return blocks, blocks.adjacency(range(blocks.n), range(blocks.n))


# The figures alone.


@benchmark
def redraw() -> Results:
    """Draw all figures of the page from its recorded tables; nothing is computed or measured again."""
    for name, (page, draw, _) in FROM_PAGE.items():
        table, *_ = read_recorded(page, f"findings.{name}")
        yield Drawing(f"findings-{name}", draw(table))
    points = predict_points()
    yield draw_models(points[~points.scaling])
    yield from draw_recorded_dimensions()
