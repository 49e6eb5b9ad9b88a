"""The words that a partition saves against random block rows if rows are exchanged as needed, and the balance of parts.

    python benchmarks/partitions.py

For each graph and number of parts: the rows of H that all ranks receive in one aggregation, and the most that one
rank does, by `harness.graph.partition`. CAGNET reports for METIS on Reddit, 64 parts: 72 % fewer in all (CAG-021), 29
% fewer on the rank that receives most (CAG-022). Then the balance of work: nonzeros and vertices of the fullest part
over the mean; the rows that the part with fewest receives over those of the part with most, which G3's second stage
brings towards one; and the seconds of partitioning. `block` takes the vertices in the order of the file: chunks.

The second table has G3's second stage alone, in 16 parts, from a partition by METIS with two constraints, on a graph of
2^20 vertices and 16 million edges and on one of a quarter of that: its swaps, their milliseconds, and why they ended.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from measuring import Table, argument_parser

from harness.graph.metis_partition import partition_with_balanced_metis
from harness.graph.order import permute_matrix
from harness.graph.partition import Method, compute_parts, count_needed_rows, order_by_part
from harness.graph.partition_swap import balance_by_swaps, compute_balance
from harness.kernels import Csr
from harness.spec.root import find_data_folder, find_root
from harness.store.catalog import load_card
from harness.store.contents import load_graph

Way = Method | Literal["block"]
GRAPHS = ("sbm-4096", "amazon-shape", "reddit-shape", "rmat-17", "osm-shape")
STAGES: tuple[Way, ...] = ("random", "block", "metis", "metis-balanced", "g3-literal", "g3-guarded")
SLOW: tuple[Way, ...] = ("hypergraph",)
METHODS = {graph: STAGES + (SLOW if graph in ("sbm-4096", "amazon-shape") else ()) for graph in GRAPHS}
PARTS = (4, 16, 64)
LARGE, LARGE_PARTS = ("ogbn-papers100m@1/424", "ogbn-papers100m@1/106"), 16


class Measured(NamedTuple):
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


def measured(A: Csr, method: Way, parts: int) -> Measured:
    """A partition by a method."""
    begun = time.perf_counter()
    part = torch.arange(A.rows) * parts // A.rows if method == "block" else compute_parts(A, method, parts, 0)
    cut = order_by_part(part, parts)
    seconds = time.perf_counter() - begun
    B = permute_matrix(A, cut.orders.p, cut.orders.q)
    needed = count_needed_rows(B, cut.bounds)
    nonzeros = [int(B.rowptr[stop] - B.rowptr[start]) for start, stop in pairwise(cut.bounds)]
    heaviest = max(nonzeros) * parts / A.nnz, max(map(len, cut.ranges)) * parts / A.rows
    return Measured(sum(needed), max(needed), *heaviest, min(needed) / max(*needed, 1), seconds)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, choices=GRAPHS)
    parser.add_argument("--parts", nargs="+", type=int, default=PARTS)
    parser.add_argument("--large", nargs="*", default=LARGE, metavar="GRAPH")
    options = parser.parse_args()
    root = find_root()
    rows = ("rows in all", "saved", "rows of the most", "saved")
    balance = ("nonzeros, most to mean", "vertices", "rows, fewest to most", "s")
    table = Table("graph", "parts", "method", *rows, *balance)
    for graph in options.graphs:
        A = load_graph(load_card(root, graph), find_data_folder(root)).A
        for parts in options.parts:
            base = measured(A, "random", parts)
            for method in METHODS[graph]:
                each = base if method == "random" else measured(A, method, parts)
                saved = (
                    cell
                    for count, reference in zip(each[:2], base[:2], strict=True)
                    for cell in (f"{count:,}", f"{1 - count / reference:.0%}")
                )
                table.row(graph, parts, method, *saved, *(f"{number:.2f}" for number in each[2:]))
    if options.large:
        second_stage(root, options.large)


def second_stage(root: Path, graphs: Sequence[str]) -> None:
    """Both forms from the same start."""
    print()
    sizes = ("graph", "vertices", "edges", "METIS s")
    swaps = ("form", "swaps", "s", "ms a swap", "ended by", "fewest to most, before", "after")
    table = Table(*sizes, *swaps)
    for graph in graphs:
        A = load_graph(load_card(root, graph), find_data_folder(root)).A
        begun = time.perf_counter()
        start = partition_with_balanced_metis(A, LARGE_PARTS, 0)
        first = time.perf_counter() - begun
        for form in ("literal", "guarded"):
            begun = time.perf_counter()
            end = balance_by_swaps(A, start, LARGE_PARTS, guarded=form == "guarded")
            seconds = time.perf_counter() - begun
            each = f"{1e3 * seconds / end.swaps:.1f}" if end.swaps else ""
            size = graph, f"{A.rows:,}", f"{A.nnz:,}", f"{first:.1f}"
            cost = form, f"{end.swaps:,}", f"{seconds:.1f}", each, end.stopped
            table.row(*size, *cost, f"{compute_balance(end.before):.3f}", f"{compute_balance(end.after):.3f}")


if __name__ == "__main__":
    main()
