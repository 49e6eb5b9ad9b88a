"""What the papers' figures do not show, computed: no rank is started. The page docs/findings.md reads the results.

    python benchmarks/findings.py dimensions    words and predicted epochs of CAGNET in 1, 1.5, 2 and 3 dimensions
    python benchmarks/findings.py model         two models of Plexus' products beside the times its authors published
    python benchmarks/findings.py settings      epochs of ScaleGNN under the settings that its paper leaves open
    python benchmarks/findings.py balance       the fullest block over the mean, by order of the vertices
    python benchmarks/findings.py gain          G3's epochs beside halo exchanges, as results/pipelines.md has them
    python benchmarks/findings.py swaps         the largest set of remote vertices after G3's swaps, printed and guarded
    python benchmarks/findings.py edges         the edges of each graph as the papers count them

Each part prints markdown and draws results/findings-PART.svg. Words and sizes follow from the cards of the datasets,
seconds from the cards of the machines; those of `gain` were measured.
"""

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measuring import Table, argument_parser, plain_ticks
from numpy.typing import NDArray
from plexus_formulas import Coefficients, predict_milliseconds, terms_in_code
from prediction import POINTS, terms_of_epoch
from scipy.stats import spearmanr

from harness.claims import Evidence, read_claims, select
from harness.doctor.term_fit import fit_terms
from harness.errors import UserError
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.figures.drawing import render_figure, style_context
from harness.figures.palette import COLOURS, look_of
from harness.graph.blocks import Blocks
from harness.graph.metis_partition import partition_with_balanced_metis
from harness.graph.partition_swap import balance_by_swaps, compute_balance
from harness.kernels.csr import Csr
from harness.ledger import AxisName
from harness.parallel.rotating_layout import FIRST
from harness.predict.prediction import Prediction, predict
from harness.predict.pricing import MICRO
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


def dimensions() -> None:
    """For each graph and number of ranks: the words and the epoch of each scheme, on the fastest of its grids."""
    found = {
        (graph, scheme, ranks): fastest(graph, scheme, ranks)
        for graph in GRAPHS
        for scheme in SCHEMES
        for ranks in RANKS
    }
    for graph in GRAPHS:
        print(
            f"\n{graph} on {SUMMIT}: million words received, and milliseconds an epoch, by number of ranks\n"
        )
        table = Table("scheme", *map(str, RANKS))
        for scheme in SCHEMES:
            cells = []
            for ranks in RANKS:
                grid, predicted = found[graph, scheme, ranks]
                millions, ms = predicted.words_received / MILLION, predicted.seconds.value * MILLISECONDS
                cells.append(f"{millions:,.3g}, {ms:,.3g} ({grid})")
            table.row(scheme, *cells)
    with style_context():
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        rows = figure.subplots(2, len(GRAPHS), sharex=True, sharey="row")
        for column, graph in enumerate(GRAPHS):
            rows[0][column].set_title(graph)
            rows[1][column].set_xlabel("GPUs")
            for scheme in SCHEMES:
                line = [found[graph, scheme, ranks][1] for ranks in RANKS]
                plot(rows[0][column], scheme, [each.words_received / MILLION for each in line])
                plot(rows[1][column], scheme, [each.seconds.value * MILLISECONDS for each in line])
        rows[0][0].set_ylabel("words received, millions")
        rows[1][0].set_ylabel("predicted epoch, ms")
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
        save(figure, "dimensions")


def fastest(graph: str, scheme: str, ranks: int) -> tuple[str, Prediction]:
    """The grid and the prediction of the fastest grid: two layers, hidden 16, as in the paper."""
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
        options.append((format_grid(grid, " "), predict(ready, card)))
    return min(options, key=lambda option: option[1].seconds.value)


def plot(axes: Axes, scheme: str, values: Sequence[float]) -> None:
    look = look_of(scheme)
    axes.plot(RANKS, values, color=look.colour, marker=look.marker, markersize=4, linewidth=1, label=scheme)
    axes.set(xscale="log", yscale="log")
    plain_ticks(axes.yaxis)
    axes.set_xticks(RANKS, [str(ranks) if ranks in (4, 16, 64, 256) else "" for ranks in RANKS])
    axes.minorticks_off()


# Two models of Plexus' products.


def model() -> None:
    """Equation 4.4 with the paper's coefficients, and five terms fitted to the scaling points, on 28 other grids."""
    points = list(csv.DictReader(POINTS.open()))
    fitted = np.array([point["set"] == "scaling" for point in points])
    published = np.array([float(point["spmm_ms_per_epoch"]) for point in points])
    terms = np.array([terms_of_epoch(point) for point in points])
    ours = terms @ fit_terms(terms[fitted], published[fitted] * MILLISECONDS * MICRO) * MILLISECONDS
    theirs = np.array([by_equation(point) for point in points])
    table = Table(
        "model, on 28 grids of 64 GPUs",
        "rank correlation",
        "R2 of the times",
        "median of model over published",
    )
    for name, times in (
        ("equation 4.4, coefficients as printed", theirs),
        ("five terms of each product", ours),
    ):
        some, true = times[~fitted], published[~fitted]
        residual = 1 - ((true - some) ** 2).sum() / ((true - true.mean()) ** 2).sum()
        ranks = spearmanr(some, true).statistic
        table.row(name, f"{ranks:.3f}", f"{residual:.2f}", f"{np.median(some / true):.2f}")
    with style_context():
        figure = Figure(figsize=(3.4, 3.0), layout="constrained")
        axes = figure.subplots()
        for name, times, marker in (("equation 4.4", theirs, "o"), ("five terms", ours, "s")):
            axes.plot(published[~fitted], times[~fitted], marker, markersize=3.5, label=name)
        ends = [published[~fitted].min(), published[~fitted].max()]
        axes.plot(ends, ends, color="0.6", linewidth=0.8)
        axes.set(
            xscale="log", yscale="log", xlabel="published products of an epoch, ms", ylabel="by the model, ms"
        )
        plain_ticks(axes.xaxis, axes.yaxis)
        axes.legend()
        save(figure, "model")


def by_equation(point: dict[str, str]) -> float:
    """The milliseconds of equation 4.4 with the coefficients that the paper prints."""
    card = load_machine_card(find_root(), "perlmutter").plexus_model
    assert card
    grid = {axis: int(point[axis.value]) for axis in (AxisName.X, AxisName.Y, AxisName.Z)}
    widths = [int(point[name]) for name in ("d0", "d1", "d2")]
    terms = terms_in_code(grid, FIRST, int(point["n"]), int(point["nnz"]), widths)
    return predict_milliseconds(terms, Coefficients(card.flops, card.forward, card.backward))


# The settings that ScaleGNN's paper leaves open.


def settings() -> None:
    """For every line of figure 7: how far the predicted epoch moves between the settings that are left open."""
    evidence = Evidence(find_root(), log=ignore_step)
    line = select("scalegnn-figure-7")
    table = Table("graph, machine, GPUs", "shortest ms", "longest ms", "longest over shortest")
    rows = []
    for name in evidence.list_values(line, "dataset"):
        specs = evidence.list_runs(line.narrow(dataset=name))
        for machine in dict.fromkeys(spec.machine.name for spec in specs):
            ranks = min(spec.ranks for spec in specs if spec.machine.name == machine)
            epochs = evidence.time_epoch(line.narrow(dataset=name, machine=machine, ranks=ranks))
            times = sorted(each.seconds * MILLISECONDS for each in epochs.values())
            rows.append((f"{name}, {machine}, {ranks}", times[0], times[-1]))
            table.row(rows[-1][0], f"{times[0]:,.3g}", f"{times[-1]:,.3g}", f"{times[-1] / times[0]:.2f}")
    with style_context():
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
        plain_ticks(axes.xaxis)
        save(figure, "settings")


# The balance of blocks.

ORDERED = ("ogbn-products@1/64", "reddit@1/64", "europe-osm@1/64", "rmat-17")
CUTS = 8


def balance_of_orders() -> None:
    """The largest number of nonzeros in one of 8 x 8 blocks over the mean, by order of the vertices."""
    orders = ("none", "single", "double")
    table = Table("graph", *orders, "the densest row over a block's mean")
    rows = {}
    for name in ORDERED:
        blocks, A = opened(name)
        ratios = dict(measure_shard_balance(blocks, CUTS, 0))
        longest = int(A.rowptr.diff().max())
        rows[name] = [ratios[order] for order in orders]
        table.row(
            name, *(f"{ratio:.3f}" for ratio in rows[name]), f"{longest / CUTS / (blocks.nnz / CUTS**2):.3f}"
        )
    with style_context():
        figure = Figure(figsize=(4.6, 2.4), layout="constrained")
        axes = figure.subplots()
        for number, order in enumerate(orders):
            places = np.arange(len(rows)) + 0.26 * (number - 1)
            heights = [ratios[number] for ratios in rows.values()]
            axes.bar(places, heights, 0.24, color=COLOURS[number], label=f"permutation {order}")
        axes.set_xticks(range(len(rows)), rows)
        axes.set_ylabel("fullest block over the mean")
        axes.legend()
        save(figure, "balance")


# What G3 gains over a halo exchange.

PIPELINES = {
    "bns-gcn precompute=False": "halos in every epoch",
    "g3 pipeline=sequential": "G3, sequential",
    "g3 pipeline=full": "G3, all of its pipeline",
    "bns-gcn": "the first layer's halo once",
}
"""Variants of `benchmarks/pipelines.py`, from the one that sends most."""


def gain() -> None:
    """An epoch of each variant over that of the halo exchange in every epoch, for each setting that was recorded."""
    every = "bns-gcn precompute=False"
    recorded = {
        setting: {name: epoch / epochs[every] for name, epoch in epochs.items()}
        for setting, epochs in recorded_pipelines().items()
    }
    table = Table("epoch over that of halos in every epoch", *(name.replace("\n", " ") for name in recorded))
    for name, said in PIPELINES.items():
        table.row(said, *(f"{epochs[name]:.2f}" for epochs in recorded.values()))
    with style_context():
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
        save(figure, "gain")


def recorded_pipelines() -> dict[str, dict[str, float]]:
    """The milliseconds of an epoch by variant, for each setting of `benchmarks/pipelines.py` that the record has."""
    found: dict[str, dict[str, float]] = {}
    epochs: dict[str, float] = {}
    hosts = ""
    for line in (RESULTS / "pipelines.md").read_text().splitlines():
        if up := re.search(r"--hosts (\d+) --rate (\d+)mbit", line):
            hosts = f"{up[1]} hosts,\n{up[2]} Mbit/s"
        elif command := re.search(r"pipelines\.py --rate \d+(?: --bin-nodes (\d+))?$", line):
            epochs = found[f"{hosts},\nbins of {command[1] or 1000}"] = {}
        elif row := re.match(r"\| ([^|]+) \| (\d+) \|", line):
            epochs[row[1]] = float(row[2])
    return found


# The swaps of G3's partitioner.

SWAPPED = (*ORDERED, "tiny-rmat", "sbm-4096", "reddit-shape", "amazon-shape", "coauthor-cs")
PARTS_OF_G3 = (4, 8, 16)
FORMS = {"as printed": False, "guarded": True}


def swaps() -> None:
    """How the swaps change the largest set of remote vertices and the sum of all, from one partition by METIS."""
    table = Table(
        "graph", "parts", "form", "swaps kept", "it ends: why", "fewest over most", "largest set", "all sets"
    )
    points: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for name in SWAPPED:
        _, A = opened(name)
        for parts in PARTS_OF_G3:
            by_metis = partition_with_balanced_metis(A, parts, 0)
            for form, guarded in FORMS.items():
                found = balance_by_swaps(A, by_metis, parts, guarded=guarded)
                largest, every = max(found.after) / max(found.before), sum(found.after) / sum(found.before)
                points.setdefault((form, found.stopped == "cycle"), []).append((every, largest))
                ratios = (f"{number:.3f}" for number in (compute_balance(found.after), largest, every))
                table.row(name, str(parts), form, str(found.swaps), found.stopped, *ratios)
    with style_context():
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
        save(figure, "swaps")


# What a paper counts as an edge.


def edges() -> None:
    """Every number of edges or nonzeros that a paper prints of a graph, over its edges counted once."""
    table = Table("graph", "edges, each once", "paper", "claim", "called", "printed", "over each edge once")
    points: dict[str, dict[str, list[float]]] = {}
    papers = read_claims(find_root())
    for paper, claims in papers.items():
        for claim in claims:
            if claim.category != "dataset" or claim.metric not in ("edges", "nnz"):
                continue
            once, printed = load_card(find_root(), claim.dataset).edges, claim.number
            assert once and printed, claim.id
            called = "nonzeros" if claim.metric == "nnz" else "edges"
            table.row(
                claim.dataset,
                f"{once:,}",
                paper,
                claim.id,
                called,
                f"{printed:,.0f}",
                f"{printed / once:.3f}",
            )
            points.setdefault(claim.dataset, {}).setdefault(paper, []).append(printed / once)
    with style_context():
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
        save(figure, "edges")


def opened(name: str) -> tuple[Blocks, Csr]:
    """A graph in the order of its dataset, built if it is not there; and its whole matrix."""
    choice = DatasetChoice(name=name)
    build_store(find_root(), choice)
    blocks = open_dataset(find_root(), choice)
    return blocks, blocks.adjacency(range(blocks.n), range(blocks.n))


def save(figure: Figure, part: str) -> None:
    name = f"findings-{part}"
    (RESULTS / f"{name}.svg").write_bytes(render_figure(figure, "svg", name, "benchmarks/findings.py"))


PARTS: dict[str, Callable[[], None]] = {
    "dimensions": dimensions,
    "model": model,
    "settings": settings,
    "balance": balance_of_orders,
    "gain": gain,
    "swaps": swaps,
    "edges": edges,
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    PARTS[parser.parse_args().part]()


if __name__ == "__main__":
    main()
