"""The cost of building a store: seconds, entries a second, peak memory and disk, each build in a process of its own.

    python benchmarks/building.py rmat --scale 22
    python benchmarks/building.py text --lines 20000000
    python benchmarks/building.py twins ogbn-papers100m 1/64 1/16 1/4 1 --width 8
    python benchmarks/building.py --permutation double twins ogbn-papers100m 1

A build makes 16 x 16 blocks with 4 GiB and as many workers as there are cores, without an allocator's settings, like
`harness data build`. Entries are those in the store. `twins` draws its rows, and prints the width of the features.
"""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from measuring import Table, argument_parser, in_a_process, keep, peak_bytes

from harness.formatting import GIB
from harness.graph.order import Permutation
from harness.sources.archive import FileRef
from harness.sources.stream import count_edges
from harness.sources.text import START, cut_into_pairs
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root
from harness.store.build_resources import BuildResources
from harness.store.catalog import load_card
from harness.store.contents import open_contents
from harness.store.dataset_card import DatasetCard
from harness.store.manifest import read_manifest
from harness.store.writer import StorePlan, write_store

GRID = 16
PLAIN = {
    "classes": 16,
    "features": {"kind": "uniform", "width": 1},
    "labels": {"kind": "degree"},
    "split": {"kind": "all"},
}


class Built(NamedTuple):
    """One build: the graph, its seconds and its bytes."""

    n: int
    entries: int
    seconds: float
    peak: int
    disk: int

    def row(self) -> list[str]:
        speed = self.entries / self.seconds / 1e6
        times = f"{self.seconds:.1f}", f"{speed:.1f}"
        return [
            f"{self.n:,}",
            f"{self.entries:,}",
            *times,
            f"{self.peak / GIB:.2f}",
            f"{self.disk / GIB:.2f}",
        ]


def warmed(card: DatasetCard, folder: Path, memory: int, permutation: Permutation) -> Built:
    """A build after a tiny one, which loads the compiled loops."""
    built(rmat(10), folder, memory, permutation)
    return built(card, folder, memory, permutation)


def built(card: DatasetCard, folder: Path, memory: int, permutation: Permutation) -> Built:
    with TemporaryDirectory(dir=folder) as place:
        store = Path(place) / "store"
        begun = time.perf_counter()
        graph = open_contents(card, folder)
        resources = BuildResources(memory, len(os.sched_getaffinity(0)))
        choice = DatasetChoice(name=card.name, permutation=permutation)
        write_store(StorePlan(graph, store, choice, resources=resources, side=GRID))
        seconds = time.perf_counter() - begun
        disk = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
        return Built(graph.n, read_manifest(store)[0].counts.nnz_adj, seconds, peak_bytes(), disk)


def rmat(scale: int) -> DatasetCard:
    source = {"kind": "rmat", "scale": scale}
    return DatasetCard.model_validate({"name": f"rmat-{scale}", "source": source, **PLAIN})


def twin(name: str, scale: str, width: int) -> DatasetCard:
    """A twin whose features are narrower."""
    card = load_card(find_root(), f"{name}@{scale}")
    return card.model_copy(update={"features": card.features.model_copy(update={"width": width})})


def text(lines: int, folder: Path) -> DatasetCard:
    """A file of so many random edges; prints the speed at which one thread reads the file."""
    path, n = folder / "edges.txt", lines // 16
    draw = np.random.default_rng(0)
    with path.open("wb") as file:
        for begin in range(0, lines, 1 << 20):
            pairs = draw.integers(0, n, (min(1 << 20, lines - begin), 2))
            file.write("".join(f"{a}\t{b}\n" for a, b in pairs.tolist()).encode())
    count_edges(cut_into_pairs(FileRef(path), 1 << 10, START, RuntimeError)[:1])
    begun = time.perf_counter()
    pairs_read = count_edges(cut_into_pairs(FileRef(path), 1 << 22, START, RuntimeError)).edges
    seconds = time.perf_counter() - begun
    size = path.stat().st_size
    print(
        f"{pairs_read:,} lines, {size / GIB:.2f} GiB, read by one thread in {seconds:.2f} s: "
        f"{pairs_read / seconds / 1e6:.1f} million lines/s\n"
    )
    source = {"kind": "edges", "path": str(path), "n": n}
    return DatasetCard.model_validate({"name": "text", "source": source, **PLAIN})


def drawn(builds: list[Built]) -> Figure:
    """Seconds over entries, and the line through the smallest that a linear cost would follow."""
    figure = Figure(figsize=(4.2, 3.0), layout="constrained")
    axes = figure.subplots()
    entries = [one.entries for one in builds]
    axes.plot(entries, [one.seconds for one in builds], marker="o", label="built")
    linear = [builds[0].seconds * one.entries / builds[0].entries for one in builds]
    axes.plot(entries, linear, linestyle="--", color="0.5", label="linear")
    axes.set(xscale="log", yscale="log", xlabel="entries of A", ylabel="seconds")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.legend()
    return figure


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--memory", type=float, default=4.0, metavar="GIB")
    parser.add_argument("--permutation", choices=("none", "single", "double"), default="none")
    parser.add_argument("--folder", type=Path, help="a disk with room (default: that of temporary files)")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("rmat").add_argument("--scale", type=int, default=22)
    kinds.add_parser("text").add_argument("--lines", type=int, default=20_000_000)
    of_twins = kinds.add_parser("twins")
    of_twins.add_argument("name")
    of_twins.add_argument("scales", nargs="+")
    of_twins.add_argument("--width", type=int, default=8)
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        del os.environ[name]
    with TemporaryDirectory(dir=options.folder) as place:
        folder = Path(place)
        if options.kind == "twins":
            cards = [twin(options.name, scale, options.width) for scale in options.scales]
            order = f"permutation {options.permutation}"
            print(f"Features of width {options.width}, {options.memory:g} GiB, {order}.\n")
        else:
            cards = [rmat(options.scale) if options.kind == "rmat" else text(options.lines, folder)]
        table = Table("graph", "vertices", "entries", "seconds", "million entries/s", "peak GiB", "store GiB")
        builds = []
        for card in cards:
            memory = int(options.memory * GIB)
            builds.append(in_a_process(warmed, card, folder, memory, options.permutation))
            table.row(card.name, *builds[-1].row())
    if len(builds) > 1:
        keep(lambda: drawn(builds), f"building-{options.name}", options.name)


if __name__ == "__main__":
    main()
