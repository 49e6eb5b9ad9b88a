"""Words that a partition saves where rows are exchanged as they are needed, against random block rows; how evenly.

    python benchmarks/partitions.py

For each graph and number of parts: rows of H that all ranks receive in one aggregation, and the most that one does, by
`harness.graph.partition`. CAGNET says of METIS on Reddit, 64 parts: 72 % fewer in all (CAG-021), 29 % fewer on the rank
that receives most (CAG-022). Then the balance of work: nonzeros and vertices of the fullest part over the mean; the
rows that the part with fewest receives over those of the part with most, which G3's second stage brings towards one;
and the seconds it took. `block` takes the vertices as they stand: chunks.

Below it G3's second stage alone, on a graph of 2^20 vertices and 16 million edges in 16 parts and on one of a quarter
of that, from a partition by METIS with two constraints: swaps, their milliseconds, and why they ended.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from harness.graph.order import permuted
from harness.graph.partition import Method, in_order, parts_of, volumes
from harness.graph.partition_swap import ratio, swapped
from harness.graph.partitioners import balanced_parts
from harness.kernels import Csr
from harness.spec.root import project_root
from harness.store.build import data_folder
from harness.store.catalog import load_card
from harness.store.compose import compose

Way = Method | Literal["block"]
GRAPHS = ("sbm-4096", "amazon-shape", "reddit-shape", "rmat-17", "osm-shape")
STAGES: tuple[Way, ...] = ("random", "block", "metis", "metis-balanced", "g3-literal", "g3-guarded")
SLOW: tuple[Way, ...] = ("hypergraph",)
METHODS = {graph: STAGES + (SLOW if graph in ("sbm-4096", "amazon-shape") else ()) for graph in GRAPHS}
PARTS = (4, 16, 64)
LARGE, LARGE_PARTS = ("ogbn-papers100m@1/424", "ogbn-papers100m@1/106"), 16


class Measured(NamedTuple):
    """Of one partition."""

    total: int
    """Rows received in all."""
    most: int
    """By the part that receives most."""
    nonzeros: float
    vertices: float
    """Of the fullest part over the mean."""
    even: float
    """Rows of the part that receives fewest over those of the one that receives most."""
    seconds: float


def measured(A: Csr, method: Way, parts: int) -> Measured:
    """A partition, and what it costs."""
    begun = time.perf_counter()
    part = torch.arange(A.rows) * parts // A.rows if method == "block" else parts_of(A, method, parts, 0)
    cut = in_order(part, parts)
    seconds = time.perf_counter() - begun
    B = permuted(A, cut.orders.p, cut.orders.q)
    needed = volumes(B, cut.bounds)
    nonzeros = [int(B.rowptr[stop] - B.rowptr[start]) for start, stop in pairwise(cut.bounds)]
    heaviest = max(nonzeros) * parts / A.nnz, max(map(len, cut.ranges)) * parts / A.rows
    return Measured(sum(needed), max(needed), *heaviest, min(needed) / max(*needed, 1), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, choices=GRAPHS)
    parser.add_argument("--parts", nargs="+", type=int, default=PARTS)
    parser.add_argument("--large", nargs="*", default=LARGE, metavar="GRAPH")
    options = parser.parse_args()
    root = project_root()
    print(
        "| graph | parts | method | rows in all | saved | rows of the most | saved "
        "| nonzeros, most to mean | vertices | rows, fewest to most | s |"
    )
    print(f"|{' --- |' * 11}")
    for graph in options.graphs:
        A = compose(load_card(root, graph), data_folder(root)).A
        for parts in options.parts:
            base = Measured(0, 0, 0, 0, 0, 0)
            for method in METHODS[graph]:
                found = measured(A, method, parts)
                base = found if method == "random" else base
                saved = [
                    f"{mine:,} | {1 - mine / its:.0%}" for mine, its in zip(found[:2], base[:2], strict=True)
                ]
                even = " | ".join(f"{number:.2f}" for number in found[2:])
                print(f"| {graph} | {parts} | {method} | {' | '.join(saved)} | {even} |", flush=True)
    if options.large:
        second_stage(root, options.large)


def second_stage(root: Path, graphs: Sequence[str]) -> None:
    """Both forms from the same start."""
    titles = ["graph", "vertices", "edges", "METIS s", "form", "swaps", "s", "ms a swap", "ended by"]
    print(f"\n| {' | '.join(titles)} | fewest to most, before | after |\n|{' --- |' * 11}")
    for graph in graphs:
        A = compose(load_card(root, graph), data_folder(root)).A
        begun = time.perf_counter()
        start = balanced_parts(A, LARGE_PARTS, 0)
        first = time.perf_counter() - begun
        for form in ("literal", "guarded"):
            begun = time.perf_counter()
            found = swapped(A, start, LARGE_PARTS, guarded=form == "guarded")
            seconds = time.perf_counter() - begun
            each = f"{1e3 * seconds / found.swaps:.1f}" if found.swaps else ""
            size = f"{A.rows:,} | {A.nnz:,} | {first:.1f}"
            ratios = f"{ratio(found.before):.3f} | {ratio(found.after):.3f}"
            told = f"{form} | {found.swaps:,} | {seconds:.1f} | {each} | {found.stopped} | {ratios}"
            print(f"| {graph} | {size} | {told} |", flush=True)


if __name__ == "__main__":
    main()
