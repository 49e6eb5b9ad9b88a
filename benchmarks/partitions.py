"""Words that a partition saves where rows are exchanged as they are needed, against random block rows.

    python benchmarks/partitions.py

For each graph and number of parts: rows of H that all ranks receive in one aggregation, and the most that one does, by
`harness.graph.volume`. CAGNET says of METIS on Reddit, 64 parts: 72 % fewer in all (CAG-021), 29 % fewer on the rank
that receives most (CAG-022). The last column is the balance of work: nonzeros of the fullest part over the mean.
"""

import argparse
from itertools import pairwise

from harness.graph.order import permuted
from harness.graph.partition import Method, in_order, parts_of
from harness.graph.volume import volumes
from harness.kernels import Csr
from harness.spec.root import project_root
from harness.store.build import data_folder
from harness.store.catalog import load_card
from harness.store.compose import compose

GRAPHS = ("sbm-4096", "amazon-shape", "reddit-shape")
METHODS: dict[str, tuple[Method, ...]] = {
    "sbm-4096": ("random", "metis", "hypergraph"),
    "amazon-shape": ("random", "metis", "hypergraph"),
    "reddit-shape": ("random", "metis"),
}
PARTS = (4, 16, 64)


def measured(A: Csr, method: Method, parts: int) -> tuple[int, int, float]:
    """Rows received in all, by the part that receives most, and nonzeros of the fullest part over the mean."""
    cut = in_order(parts_of(A, method, parts, 0), parts)
    B = permuted(A, cut.orders.p, cut.orders.q)
    needed = volumes(B, cut.bounds)
    nonzeros = [int(B.rowptr[stop] - B.rowptr[start]) for start, stop in pairwise(cut.bounds)]
    return sum(needed), max(needed), max(nonzeros) * parts / A.nnz


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    root = project_root()
    print(
        "| graph | parts | method | rows in all | saved | rows of the most | saved | nonzeros, most to mean |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for graph in GRAPHS:
        A = compose(load_card(root, graph), data_folder(root)).A
        for parts in PARTS:
            base = (0, 0, 0.0)
            for method in METHODS[graph]:
                found = measured(A, method, parts)
                base = found if method == "random" else base
                saved = [
                    f"{mine:,} | {1 - mine / its:.0%}" for mine, its in zip(found[:2], base[:2], strict=True)
                ]
                print(f"| {graph} | {parts} | {method} | {' | '.join(saved)} | {found[2]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
