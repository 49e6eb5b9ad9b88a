"""What the papers' figures do not show, computed without starting a rank, for the page docs/evidence/findings.md.

Words and sizes follow from the cards of the datasets, seconds from the cards of the machines; those of `gain` were
measured.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.plexus_formulas import Coefficients, predict_milliseconds, terms_in_code
from benchmarks.plotting import set_plain_ticks
from benchmarks.prediction import POINTS, terms_of_epoch
from benchmarks.registry import Drawing, Results, Table, benchmark
from harness.claims import Evidence, read_claims, select
from harness.doctor.term_fit import fit_terms
from harness.errors import UserError
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.figures.drawing import style_context
from harness.figures.palette import COLOURS, look_of
from harness.graph.blocks import Blocks
from harness.graph.metis_partition import partition_with_balanced_metis
from harness.graph.partition_swap import balance_by_swaps, compute_balance
from harness.kernels.csr import Csr
from harness.ledger import AxisName
from harness.parallel.rotating_layout import FIRST
from harness.prediction.epoch import Prediction, predict
from harness.prediction.pricing import MICRO
from harness.progress import ignore_step
from harness.registry import load_strategy
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import format_grid
from harness.store.catalog import load_card
from harness.store.datasets import build_store, open_dataset
from harness.store.shard_balance import measure_shard_balance
from harness.strategy import Ready, admit

RESULTS = Path(__file__).parent / "results"
Numbers = NDArray[np.float64]
MILLION, MILLISECONDS = 1e6, 1e3


# CAGNET's dimensions.

GRAPHS = ("reddit", "cagnet-amazon", "cagnet-protein")
SCHEMES = ("cagnet-1d", "cagnet-1.5d", "cagnet-2d", "cagnet-3d")
RANKS = (4, 8, 16, 32, 64, 128, 256)
SUMMIT = "summit"


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
    yield Drawing("findings-dimensions", draw_dimensions(found))


@style_context()
def draw_dimensions(found: dict[tuple[str, str, int], tuple[str, Prediction]]) -> Figure:
    """Draw words and epochs over the number of GPUs."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    rows = figure.subplots(2, len(GRAPHS), sharex=True, sharey="row")
    for column, graph in enumerate(GRAPHS):
        rows[0][column].set_title(graph)
        rows[1][column].set_xlabel("GPUs")
        for scheme in SCHEMES:
            line = [found[graph, scheme, ranks][1] for ranks in RANKS]
            plot_scheme(rows[0][column], scheme, [each.elements_received / MILLION for each in line])
            plot_scheme(rows[1][column], scheme, [each.seconds.value * MILLISECONDS for each in line])
    rows[0][0].set_ylabel("words received, millions")
    rows[1][0].set_ylabel("predicted epoch, ms")
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
    return figure


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
            "model": {"layers": 2, "hidden": 16},
        }
        spec = make_spec(find_root(), asked, "a finding")
        try:
            ready = Ready(admit(kind, spec, facts))
        except UserError:  # columns are fewer than the ranks of an axis
            continue
        options.append((format_grid(grid), predict(ready, card)))
    return min(options, key=lambda option: option[1].seconds.value)


def plot_scheme(axes: Axes, scheme: str, values: Sequence[float]) -> None:
    look = look_of(scheme)
    axes.plot(RANKS, values, color=look.colour, marker=look.marker, markersize=4, linewidth=1, label=scheme)
    axes.set(xscale="log", yscale="log")
    set_plain_ticks(axes.yaxis)
    axes.set_xticks(RANKS, [str(ranks) if ranks in (4, 16, 64, 256) else "" for ranks in RANKS])
    axes.minorticks_off()


# Two models of Plexus' products.


@benchmark
def model() -> Results:
    """Compare two models of Plexus' products with published times: equation 4.4 as printed, and five terms of our own.

    The five terms are fitted to the scaling points; both are judged on 28 other grids.
    """
    points = list(csv.DictReader(POINTS.open()))
    fitted = np.array([point["set"] == "scaling" for point in points])
    published = np.array([float(point["spmm_ms_per_epoch"]) for point in points])
    terms = np.array([terms_of_epoch(point) for point in points])
    ours = terms @ fit_terms(terms[fitted], published[fitted] * MILLISECONDS * MICRO) * MILLISECONDS
    theirs = np.array([predict_by_equation(point) for point in points])
    yield Table(
        *("model, on 28 grids of 64 GPUs", "rank correlation:.3f", "R2 of the times:.2f"),
        "median of model over published:.2f",
    )
    for name, times in (
        ("equation 4.4, coefficients as printed", theirs),
        ("five terms of each product", ours),
    ):
        some, true = times[~fitted], published[~fitted]
        residual = 1 - ((true - some) ** 2).sum() / ((true - true.mean()) ** 2).sum()
        ranks = spearmanr(some, true).statistic
        yield name, float(ranks), float(residual), float(np.median(some / true))
    yield Drawing("findings-model", draw_model(published[~fitted], ours[~fitted], theirs[~fitted]))


@style_context()
def draw_model(published: Numbers, ours: Numbers, theirs: Numbers) -> Figure:
    """Draw both models over the published times."""
    figure = Figure(figsize=(3.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for name, times, marker in (("equation 4.4", theirs, "o"), ("five terms", ours, "s")):
        axes.plot(published, times, marker, markersize=3.5, label=name)
    ends = [published.min(), published.max()]
    axes.plot(ends, ends, color="0.6", linewidth=0.8)
    axes.set(
        xscale="log", yscale="log", xlabel="published products of an epoch, ms", ylabel="by the model, ms"
    )
    set_plain_ticks(axes.xaxis, axes.yaxis)
    axes.legend()
    return figure


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
    yield Table("graph, machine, GPUs", "shortest ms:,.3g", "longest ms:,.3g", "longest over shortest:.2f")
    rows = []
    for name in evidence.list_values(line, "dataset"):
        specs = evidence.list_runs(line.narrow(dataset=name))
        for machine in dict.fromkeys(spec.machine.name for spec in specs):
            ranks = min(spec.ranks for spec in specs if spec.machine.name == machine)
            epochs = evidence.time_epoch(line.narrow(dataset=name, machine=machine, ranks=ranks))
            times = sorted(each.seconds * MILLISECONDS for each in epochs.values())
            rows.append((f"{name}, {machine}, {ranks}", times[0], times[-1]))
            yield *rows[-1], times[-1] / times[0]
    yield Drawing("findings-settings", draw_settings(rows))


@style_context()
def draw_settings(rows: list[tuple[str, float, float]]) -> Figure:
    """Draw the interval of each line of figure 7."""
    figure = Figure(figsize=(5.0, 0.6 + 0.2 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, low, high) in enumerate(rows):
        axes.plot(
            [low, high],
            [place, place],
            linewidth=4,
            solid_capstyle="butt",
            color=look_of("scalegnn").colour,
        )
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="predicted epoch, ms: from the fastest to the slowest open setting")
    set_plain_ticks(axes.xaxis)
    return figure


# The balance of blocks.

ORDERED = ("ogbn-products@1/64", "reddit@1/64", "europe-osm@1/64", "rmat-17")
CUTS = 8


@benchmark
def balance() -> Results:
    """Count the nonzeros of the fullest of 8 x 8 blocks over the mean, by order of the vertices."""
    orders = ("none", "single", "double")
    yield Table("graph", *(f"{order}:.3f" for order in orders), "the densest row over a block's mean:.3f")
    rows = {}
    for name in ORDERED:
        blocks, A = open_graph(name)
        ratios = dict(measure_shard_balance(blocks, CUTS, 0))
        longest = int(A.rowptr.diff().max())
        rows[name] = [ratios[order] for order in orders]
        yield name, *rows[name], longest / CUTS / (blocks.nnz / CUTS**2)
    yield Drawing("findings-balance", draw_balance(rows, orders))


@style_context()
def draw_balance(rows: dict[str, list[float]], orders: Sequence[str]) -> Figure:
    """Draw a bar for each graph and order."""
    figure = Figure(figsize=(4.6, 2.4), layout="constrained")
    axes = figure.subplots()
    for number, order in enumerate(orders):
        places = np.arange(len(rows)) + 0.26 * (number - 1)
        heights = [ratios[number] for ratios in rows.values()]
        axes.bar(places, heights, 0.24, color=COLOURS[number], label=f"permutation {order}")
    axes.set_xticks(range(len(rows)), rows)
    axes.set_ylabel("fullest block over the mean")
    axes.legend()
    return figure


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
    titles = (name.replace("\n", " ") for name in recorded)
    yield Table("epoch over that of halos in every epoch", *(f"{title}:.2f" for title in titles))
    for name, said in PIPELINES.items():
        yield said, *(epochs[name] for epochs in recorded.values())
    yield Drawing("findings-gain", draw_gain(recorded))


@style_context()
def draw_gain(recorded: dict[str, dict[str, float]]) -> Figure:
    """Draw the variants next to each other."""
    figure = Figure(figsize=(5.4, 2.4), layout="constrained")
    axes = figure.subplots()
    for number, (name, said) in enumerate(PIPELINES.items()):
        places = np.arange(len(recorded)) + 0.2 * (number - 1.5)
        axes.bar(
            places,
            [epochs[name] for epochs in recorded.values()],
            0.18,
            color=COLOURS[number],
            label=said,
        )
    axes.set_xticks(range(len(recorded)), recorded)
    axes.set_ylabel("epoch over that of\nhalos in every epoch")
    figure.legend(loc="outside right center")
    return figure


def read_pipelines() -> dict[str, dict[str, float]]:
    """Return the milliseconds of an epoch by variant, for each setting of network.pipelines that was recorded."""
    found: dict[str, dict[str, float]] = {}
    epochs: dict[str, float] = {}
    for line in (RESULTS / "pipelines.md").read_text().splitlines():
        if command := re.search(
            r"network\.pipelines --hosts (\d+) --rate (\d+)mbit(?: --bin-nodes (\d+))?$", line
        ):
            hosts, rate, bins = command.groups(default="1000")
            epochs = found[f"{hosts} hosts,\n{rate} Mbit/s,\nbins of {bins}"] = {}
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
    yield Table(
        *("graph", "parts", "form", "swaps kept", "it ends: why", "fewest over most:.3f"),
        *("largest set:.3f", "all sets:.3f"),
    )
    points: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for name in SWAPPED:
        _, A = open_graph(name)
        for parts in PARTS_OF_G3:
            by_metis = partition_with_balanced_metis(A, parts, 0)
            for form, guarded in FORMS.items():
                found = balance_by_swaps(A, by_metis, parts, guarded=guarded)
                largest, every = max(found.after) / max(found.before), sum(found.after) / sum(found.before)
                points.setdefault((form, found.stopped == "cycle"), []).append((every, largest))
                ratios = compute_balance(found.after), largest, every
                yield name, parts, form, found.swaps, found.stopped, *ratios
    yield Drawing("findings-swaps", draw_swaps(points))


@style_context()
def draw_swaps(points: dict[tuple[str, bool], list[tuple[float, float]]]) -> Figure:
    """Draw the largest set over the sum of all."""
    figure = Figure(figsize=(5.0, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1, color="0.6", linewidth=0.8)
    axes.axvline(1, color="0.6", linewidth=0.8)
    for (form, cycle), some in sorted(points.items()):
        number = list(FORMS).index(form)
        axes.plot(
            *zip(*some, strict=True),
            "os"[number],
            color=COLOURS[number],
            fillstyle="none" if cycle else "full",
            markersize=4.5,
            label=f"{form}, ends in a circle" if cycle else form,
        )
    axes.set(xlabel="all remote vertices over those of METIS", ylabel="largest set over that of METIS")
    figure.legend(loc="outside right center")
    return figure


# What a paper counts as an edge.


@benchmark
def edges() -> Results:
    """Compare every number of edges or nonzeros that a paper prints of a graph with its edges counted once."""
    yield Table(
        *("graph", "edges, each once:,", "paper", "claim", "called", "printed:,.0f"),
        "over each edge once:.3f",
    )
    points: dict[str, dict[str, list[float]]] = {}
    papers = read_claims(find_root())
    for paper, claims in papers.items():
        for claim in claims:
            if claim.category != "dataset" or claim.metric not in ("edges", "nnz"):
                continue
            once, printed = load_card(find_root(), claim.dataset).edges, claim.number
            assert once and printed, claim.id
            called = "nonzeros" if claim.metric == "nnz" else "edges"
            yield claim.dataset, once, paper, claim.id, called, printed, printed / once
            points.setdefault(claim.dataset, {}).setdefault(paper, []).append(printed / once)
    yield Drawing("findings-edges", draw_edges(points, list(papers)))


@style_context()
def draw_edges(points: dict[str, dict[str, list[float]]], papers: Sequence[str]) -> Figure:
    """Draw the printed numbers of each paper, graph by graph."""
    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for number, paper in enumerate(papers):
        places = [
            (counted, place + 0.16 * (number - 2))
            for place, graph in enumerate(points)
            for counted in points[graph].get(paper, [])
        ]
        axes.plot(*zip(*places, strict=True), "o", markersize=4, color=COLOURS[number], label=paper)
    axes.set_yticks(range(len(points)), points)
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("printed number over the edges, each counted once")
    figure.legend(loc="outside right center")
    return figure


def open_graph(name: str) -> tuple[Blocks, Csr]:
    """Open a graph in the order of its dataset, and its whole matrix; build it if it is not there."""
    choice = DatasetChoice(name=name)
    build_store(find_root(), choice)
    blocks = open_dataset(find_root(), choice)
    return blocks, blocks.adjacency(range(blocks.n), range(blocks.n))
