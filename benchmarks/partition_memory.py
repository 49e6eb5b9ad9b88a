"""The memory that a partitioner takes, beside the estimate by which `harness data build` admits it.

    python benchmarks/partition_memory.py metis 8 ogbn-products@1/32 europe-osm@1/64 ogbn-papers100m@1/512
    python benchmarks/partition_memory.py hypergraph 8 europe-osm@1/256 sbm-4096

Each graph has a process of its own. The peak is of the whole process: of the graph and the partitioner's libraries too.
"""

from time import perf_counter

from measuring import Table, argument_parser, in_a_process, peak_bytes

from harness.formatting import GIB
from harness.graph.partition import METHODS, Method, compute_parts, estimate_partition_memory
from harness.spec.root import find_data_folder, find_root
from harness.store.catalog import load_card
from harness.store.contents import open_contents
from harness.store.pattern import load_pattern


def row(name: str, method: Method, parts: int) -> tuple[str, ...]:
    """The row of one graph."""
    root = find_root()
    card = load_card(root, name)
    A = load_pattern(open_contents(card, find_data_folder(root)))
    begun = perf_counter()
    compute_parts(A, method, parts, 0)
    seconds, peak = perf_counter() - begun, peak_bytes()
    estimate = estimate_partition_memory(method, A.rows, A.nnz, parts, directed=card.directed)
    numbers = f"{seconds:.1f}", f"{peak / GIB:.2f}", f"{estimate / GIB:.2f}"
    return name, f"{A.rows:,}", f"{A.nnz:,}", *numbers


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("method", choices=sorted(METHODS))
    parser.add_argument("parts", type=int)
    parser.add_argument("graphs", nargs="+")
    options = parser.parse_args()
    table = Table("graph", "vertices", "nonzeros", "seconds", "peak GiB", "estimated GiB")
    for name in options.graphs:
        table.row(*in_a_process(row, name, options.method, options.parts))


if __name__ == "__main__":
    main()
