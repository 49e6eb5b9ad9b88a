"""What it takes to build, partition and load graphs."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.measuring import in_a_process, peak_bytes, read_status, seconds_of, spec_of
from benchmarks.plotting import make_facets
from benchmarks.registry import Drawing, Results, Table, benchmark
from harness.base.formatting import GIB, format_seconds
from harness.comm.grid import Grid
from harness.graph.blocks import Blocks
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.writer import StorePlan, write_store
from harness.graph.cards.catalog import load_card
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.model import Permutation
from harness.graph.order import permute_matrix
from harness.graph.partitions.metis import partition_with_balanced_metis
from harness.graph.partitions.partition import (
    Method,
    compute_parts,
    count_needed_rows,
    estimate_partition_memory,
    order_by_part,
)
from harness.graph.partitions.pattern import load_pattern
from harness.graph.partitions.swap import balance_by_swaps, compute_balance
from harness.graph.sources.archive import FileRef
from harness.graph.sources.stream import count_edges
from harness.graph.sources.text import START, cut_into_pairs
from harness.graph.store.contents import load_graph, open_contents
from harness.graph.store.manifest import read_manifest
from harness.kernels import Csr
from harness.kernels.parts import extract_block
from harness.ledger import Ledger, TensorName
from harness.report.figures.axis_scales import Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.marks import Dots
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.open_run import open_run
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder, find_root
from harness.strategy import Context

# Building stores. A build makes 16 x 16 blocks with as many workers as there are cores, without an allocator's
# settings, like `harness data build`. Each runs in a separate process. Entries are counted in the store.

GRID = 16
PLAIN = {
    "classes": 16,
    "features": {"kind": "uniform", "width": 1},
    "labels": {"kind": "degree"},
    "split": {"kind": "all"},
}
COLUMNS = (
    *("graph", "vertices:,", "entries:,", "seconds:.1f"),
    *("million entries/s:.1f", "peak GiB:.2f", "store GiB:.2f"),
)


class Build(NamedTuple):
    """One build of a store: the graph, its seconds and its bytes."""

    graph: str
    n: int
    entries: int
    seconds: float
    peak: int
    disk: int

    def row(self) -> tuple[object, ...]:
        """Return the cells of `COLUMNS`."""
        speed = self.entries / self.seconds / 1e6
        return self.graph, self.n, self.entries, self.seconds, speed, self.peak / GIB, self.disk / GIB


@benchmark
def build_rmat(
    scale: int = 22, memory: float = 4.0, permutation: Permutation = "none", folder: Path | None = None
) -> Results:
    """Build the store of an R-MAT graph: seconds, entries a second, peak memory and disk.

    Args:
        scale: the graph has 2^SCALE vertices
        memory: GiB that the build may take
        permutation: order of the vertices
        folder: a disk with room (default: the folder of temporary files)
    """
    with TemporaryDirectory(dir=folder) as place:
        yield Table(*COLUMNS)
        yield build(make_rmat_card(scale), Path(place), memory, permutation).row()


@benchmark
def build_text(
    lines: int = 20_000_000,
    memory: float = 4.0,
    permutation: Permutation = "none",
    folder: Path | None = None,
) -> Results:
    """Build the store of a text file of random edges, after one thread has read it.

    Args:
        lines: edges in the file
        memory: GiB that the build may take
        permutation: order of the vertices
        folder: a disk with room (default: the folder of temporary files)
    """
    with TemporaryDirectory(dir=folder) as place:
        path, n = Path(place) / "edges.txt", lines // 16
        write_edges(path, n, lines)
        count_edges(cut_into_pairs(FileRef(path), 1 << 10, START, RuntimeError)[:1])
        begun = time.perf_counter()
        read = count_edges(cut_into_pairs(FileRef(path), 1 << 22, START, RuntimeError)).edges
        seconds = time.perf_counter() - begun
        yield (
            f"{read:,} lines, {path.stat().st_size / GIB:.2f} GiB, read by one thread in {seconds:.2f} s: "
            f"{read / seconds / 1e6:.1f} million lines/s"
        )
        source = {"kind": "edges", "path": str(path), "n": n}
        card = DatasetCard.model_validate({"name": "text", "source": source, **PLAIN})
        yield Table(*COLUMNS)
        yield build(card, Path(place), memory, permutation).row()


@benchmark
def build_twins(
    name: str,
    *scales: str,
    width: int = 8,
    memory: float = 4.0,
    permutation: Permutation = "none",
    folder: Path | None = None,
) -> Results:
    """Build the stores of twins of a graph at several scales, as in `ogbn-papers100m 1/64 1/16 1/4 1`; draw seconds.

    Args:
        name: the graph
        scales: scales of its twins, as 1/64
        width: of the features, narrower than the graph's own
        memory: GiB that a build may take
        permutation: order of the vertices
        folder: a disk with room (default: the folder of temporary files)
    """
    yield f"Features of width {width}, {memory:g} GiB, permutation {permutation}."
    yield Table(*COLUMNS)
    builds = []
    with TemporaryDirectory(dir=folder) as place:
        for scale in scales:
            card = load_card(find_root(), f"{name}@{scale}")
            card = card.model_copy(update={"features": card.features.model_copy(update={"width": width})})
            builds.append(build(card, Path(place), memory, permutation))
            yield builds[-1].row()
    if len(builds) > 1:
        yield Drawing(
            f"building-{name}", draw_builds(Table(*COLUMNS).to_frame([each.row() for each in builds])), name
        )


def build(card: DatasetCard, folder: Path, memory: float, permutation: Permutation) -> Build:
    """Build a store in a new process."""
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        del os.environ[name]
    return in_a_process(build_twice, card, folder, int(memory * GIB), permutation)


def build_twice(card: DatasetCard, folder: Path, memory: int, permutation: Permutation) -> Build:
    """Build a tiny store, which loads the compiled loops, and then the store of a card."""
    build_here(make_rmat_card(10), folder, memory, permutation)
    return build_here(card, folder, memory, permutation)


def build_here(card: DatasetCard, folder: Path, memory: int, permutation: Permutation) -> Build:
    """Build a store in this process, and remove it."""
    with TemporaryDirectory(dir=folder) as place:
        store = Path(place) / "store"
        begun = time.perf_counter()
        graph = open_contents(card, folder)
        resources = BuildResources(memory, len(os.sched_getaffinity(0)))
        choice = DatasetChoice(name=card.name, permutation=permutation)
        write_store(StorePlan(graph, store, choice, resources=resources, side=GRID))
        seconds = time.perf_counter() - begun
        disk = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
        entries = read_manifest(store)[0].counts.nnz_adj
        return Build(card.name, graph.n, entries, seconds, peak_bytes(), disk)


def make_rmat_card(scale: int) -> DatasetCard:
    """Return the card of an R-MAT graph of 2^scale vertices."""
    source = {"kind": "rmat", "scale": scale}
    return DatasetCard.model_validate({"name": f"rmat-{scale}", "source": source, **PLAIN})


def write_edges(path: Path, n: int, lines: int) -> None:
    """Write a file of random edges."""
    draw = np.random.default_rng(0)
    with path.open("wb") as file:
        for begin in range(0, lines, 1 << 20):
            pairs = draw.integers(0, n, (min(1 << 20, lines - begin), 2))
            file.write("".join(f"{a}\t{b}\n" for a, b in pairs.tolist()).encode())


@style_context()
def draw_builds(table: pd.DataFrame) -> Figure:
    """Draw the time of a build for each entry of A: a row for each graph."""
    cost = Scale("cost", "time of a build for each entry of A", "s")
    frame = table.assign(curve="built", label=table.entries.map("{:,} entries".format))
    frame["cost"] = frame.seconds / frame.entries
    frame["note"] = frame.seconds.map(format_seconds)
    return compose_figure(make_facets(frame), Dots(cost), title=title_builds(table))


def title_builds(table: pd.DataFrame) -> str:
    """Say how the cost of an entry changes from the smallest to the largest graph."""
    costs = table.seconds / table.entries
    size, change = table.entries.iloc[-1] / table.entries.iloc[0], costs.iloc[-1] / costs.iloc[0]
    return f"With {size:.0f} times the entries, each entry takes {change:.2f} times as long to build"


# Partitions.


@benchmark
def partition_memory(method: Method, parts: int, *graphs: str) -> Results:
    """Measure the memory that a partitioner takes, next to the estimate by which `harness data build` admits it.

    Each graph has a separate process. The peak is the whole process's, with the graph and the libraries.

    Args:
        method: partitioner
        parts: number of parts
    """
    yield Table("graph", "vertices:,", "nonzeros:,", "seconds:.1f", "peak GiB:.2f", "estimated GiB:.2f")
    for name in graphs:
        yield in_a_process(measure_partitioner, name, method, parts)


def measure_partitioner(name: str, method: Method, parts: int) -> tuple[object, ...]:
    """Return the row of one graph."""
    root = find_root()
    card = load_card(root, name)
    A = load_pattern(open_contents(card, find_data_folder(root)))
    seconds = seconds_of(lambda: compute_parts(A, method, parts, 0))
    estimate = estimate_partition_memory(method, A.rows, A.nnz, parts, directed=card.directed)
    return name, A.rows, A.nnz, seconds, peak_bytes() / GIB, estimate / GIB


Way = Method | Literal["block"]
GRAPHS = ("sbm-4096", "amazon-shape", "reddit-shape", "rmat-17", "osm-shape")
STAGES: tuple[Way, ...] = (
    "random",
    "block",
    "metis",
    "metis-volume",
    "metis-balanced",
    "g3-literal",
    "g3-guarded",
)
SMALL = ("sbm-4096", "amazon-shape")
"""Graphs that are also cut by the hypergraph partitioner, which is slow."""
LARGE_PARTS = 16


class Cut(NamedTuple):
    """One partition."""

    total: int
    """The rows that all parts receive."""
    most: int
    """The rows of the part that receives most."""
    nonzeros: float
    vertices: float
    """The fullest part over the mean."""
    even: float
    """Rows of the part that receives fewest over those of the part that receives most."""
    seconds: float


@benchmark
def partitions(
    graphs: tuple[str, ...] = GRAPHS,
    parts: tuple[int, ...] = (4, 16, 64),
    large: tuple[str, ...] = ("ogbn-papers100m@1/424", "ogbn-papers100m@1/106"),
) -> Results:
    """Count the words that a partition saves against random block rows if rows are exchanged as needed.

    For each graph and number of parts: the rows of H that all ranks receive in one aggregation, and the most that one
    rank does. CAGNET reports for METIS on Reddit, 64 parts: 72 % fewer in all (CAG-021), 29 % fewer on the rank that
    receives most (CAG-022). Then the balance of work: nonzeros and vertices of the fullest part over the mean; the
    rows that the part with fewest receives over those of the part with most, which G3's second stage brings towards
    one; and the seconds of partitioning. `block` takes the vertices in the order of the file.

    The second table has G3's second stage alone, in 16 parts, from a partition by METIS with two constraints, on a
    graph of 2^20 vertices and 16 million edges and on one of a quarter of that: its swaps and why they ended.

    Args:
        parts: numbers of parts
        large: graphs of the second table
    """
    yield Table(
        *("graph", "parts", "method", "rows in all:,", "saved:.0%", "rows of the most:,", "saved:.0%"),
        *("nonzeros, most to mean:.2f", "vertices:.2f", "rows, fewest to most:.2f", "s:.2f"),
    )
    for graph in graphs:
        A = load_matrix(graph)
        for number in parts:
            base = measure_cut(A, "random", number)
            for method in (*STAGES, *(("hypergraph",) if graph in SMALL else ())):
                cut = base if method == "random" else measure_cut(A, cast(Way, method), number)
                saved = 1 - cut.total / base.total, 1 - cut.most / base.most
                yield graph, number, method, cut.total, saved[0], cut.most, saved[1], *cut[2:]
    if large:
        yield from compare_second_stages(large)


def load_matrix(graph: str) -> Csr:
    """Return the adjacency matrix of a dataset."""
    return load_graph(load_card(find_root(), graph), find_data_folder(find_root())).A


def measure_cut(A: Csr, method: Way, parts: int) -> Cut:
    """Partition a graph."""
    begun = time.perf_counter()
    part = torch.arange(A.rows) * parts // A.rows if method == "block" else compute_parts(A, method, parts, 0)
    cut = order_by_part(part, parts)
    seconds = time.perf_counter() - begun
    B = permute_matrix(A, cut.orders.p, cut.orders.q)
    needed = count_needed_rows(B, cut.bounds)
    nonzeros = [int(B.rowptr[stop] - B.rowptr[start]) for start, stop in pairwise(cut.bounds)]
    heaviest = max(nonzeros) * parts / A.nnz, max(map(len, cut.ranges)) * parts / A.rows
    return Cut(sum(needed), max(needed), *heaviest, min(needed) / max(*needed, 1), seconds)


def compare_second_stages(graphs: Sequence[str]) -> Results:
    """Run both forms of G3's second stage from the same start."""
    yield Table(
        *("graph", "vertices:,", "edges:,", "METIS s:.1f", "form", "swaps:,", "s:.1f", "ms a swap:.1f"),
        *("ended by", "fewest to most, before:.3f", "after:.3f"),
    )
    for graph in graphs:
        A = load_matrix(graph)
        begun = time.perf_counter()
        start = partition_with_balanced_metis(A, LARGE_PARTS, 0)
        first = time.perf_counter() - begun
        for form in ("literal", "guarded"):
            begun = time.perf_counter()
            end = balance_by_swaps(A, start, LARGE_PARTS, guarded=form == "guarded")
            seconds = time.perf_counter() - begun
            each = 1e3 * seconds / end.swaps if end.swaps else None
            balance = compute_balance(end.before), compute_balance(end.after)
            yield graph, A.rows, A.nnz, first, form, end.swaps, seconds, each, end.stopped, *balance


# Loading.

EVERY = 0.002
"""Seconds between two looks at the memory."""


class WholeGraph:
    """The same blocks, cut out of a graph that was loaded whole."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    @cached_property
    def _A(self) -> Csr:
        return self._blocks.adjacency(range(self._blocks.n), range(self._blocks.n))

    @cached_property
    def _X(self) -> Tensor:
        return self._blocks.feature_block(range(self._blocks.n), range(self._blocks.features))

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        assert self._blocks.permutation != "double", "one order is loaded"
        A = extract_block(self._A, rows, cols)
        return Csr(A.rowptr.clone(), A.col.clone(), A.val.clone(), A.cols)

    def feature_block(self, rows: range, cols: range) -> Tensor:
        return self._X[rows.start : rows.stop, cols.start : cols.stop].clone()


@benchmark
def loading(dataset: str = "rmat-21", strategy: str = "plexus", grid: str = "2x2x2") -> Results:
    """Compare loading: each rank its own blocks of the store, or each rank the whole graph to cut them out of.

    All ranks load at once; the numbers are those of the rank that needs most. `peak` is the growth of anonymous memory
    while it loads (pages of mapped files can be dropped and do not count), next to the bytes of its blocks of A and
    A^T, which stay. Plexus reports for ogbn-papers100M on 64 GPUs 146 GB and 139 s with the whole dataset, and 9 GB
    and 7 s with 16 x 16 shards (PLX-103 to PLX-107).

    Args:
        strategy: strategy whose blocks are loaded
    """
    ranks = prod(map(int, grid.split("x")))
    asked = {"strategy": strategy, "dataset": dataset, "ranks": ranks, "grid": grid}
    yield Table(
        "each rank loads", "blocks of A, MB:,.0f", "peak, MB:,.0f", "over its blocks:.2f", "seconds:.1f"
    )
    peaks, times = [], []
    with Pool() as pool:
        for whole, name in ((False, "its own blocks"), (True, "the whole graph")):
            peak, seconds, held = max(pool.run(ranks, load_blocks, asked, whole))
            yield name, held / 1e6, peak / 1e6, peak / held, seconds
            peaks.append(peak)
            times.append(seconds)
    memory, slowdown = peaks[1] / peaks[0], times[1] / times[0]
    yield f"whole over own: memory {memory:.1f} (paper 16.2), seconds {slowdown:.1f} (paper 19.9)"


def load_blocks(asked: dict[str, Any], whole: bool) -> tuple[int, float, int]:
    """Load one rank's blocks; return the peak, the seconds, and the bytes of its blocks of A."""
    strategy, blocks = open_run(find_root(), spec_of(asked))
    grid = Grid.build(strategy.grid, Ledger())
    ctx = Context(strategy.spec, strategy.facts, grid, cast(Blocks, WholeGraph(blocks)) if whole else blocks)
    grid.world.barrier()
    peak, seconds = watch_memory(lambda: strategy.operators(ctx))
    return peak, seconds, ctx.memory.persistent_bytes()[TensorName.A]


def watch_memory(function: Callable[[], object]) -> tuple[int, float]:
    """Return how far a call's memory grew while it ran, and its seconds."""
    before, most, done = read_status("RssAnon"), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(EVERY):
            most = max(most, read_status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    held = function()
    seconds, most = time.perf_counter() - begun, max(most, read_status("RssAnon"))
    done.set()
    watcher.join()
    del held
    return most - before, seconds
