"""What an engine takes of memory, beside what `harness data build` says before it asks one.

    python benchmarks/partition_memory.py metis 8 ogbn-products@1/32 europe-osm@1/64 ogbn-papers100m@1/512
    python benchmarks/partition_memory.py hypergraph 8 europe-osm@1/256 sbm-4096

Each graph in a process of its own: the most memory that it had, the graph and the engine's libraries among it.
"""

import argparse
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter

from harness.graph.partition import ENGINES, memory_of, parts_of
from harness.spec.root import project_root
from harness.store.build import data_folder
from harness.store.catalog import load_card
from harness.store.compose import contents
from harness.store.partitions import structure
from harness.store.task import GIB


def row(name: str, method: str, parts: int) -> str:
    """Of one graph."""
    root = project_root()
    card = load_card(root, name)
    A = structure(contents(card, data_folder(root)))
    begun = perf_counter()
    parts_of(A, method, parts, 0)  # type: ignore[arg-type]
    seconds = perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    said = memory_of(method, A.rows, A.nnz, parts, directed=card.directed)  # type: ignore[arg-type]
    return f"| {name} | {A.rows:,} | {A.nnz:,} | {seconds:.1f} | {peak / GIB:.2f} | {said / GIB:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=sorted(ENGINES))
    parser.add_argument("parts", type=int)
    parser.add_argument("graphs", nargs="+")
    options = parser.parse_args()
    print(
        "| graph | vertices | nonzeros | seconds | peak GiB | said GiB |\n" + "| --- " * 6 + "|", flush=True
    )
    for name in options.graphs:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            print(alone.submit(row, name, options.method, options.parts).result(), flush=True)


if __name__ == "__main__":
    main()
