"""What cards, experiments and papers say, and arithmetic with the counts of graphs."""

from collections.abc import Callable, Iterable, Mapping
from math import ceil, sqrt
from statistics import mean
from typing import Any, Literal

from harness.base.formatting import GIB
from harness.claims.arguments import Graph, Machine, PrintedClaim, Ratio, Runs
from harness.claims.evidence import Evidence, require
from harness.claims.formula import Value, formula
from harness.ledger import AxisName
from harness.prediction.pricing import find_bandwidth, place_axis

Count = Literal[
    "vertices",
    "training vertices",
    "edges",
    "directed edges",
    "stored edges",
    "stored edges both ways",
    "half of the stored edges",
    "distinct edges",
    "nonzeros",
    "nonzeros off the diagonal",
    "pairs off the diagonal",
    "features",
    "classes",
]
"""What is counted in a graph. Edges count once in an undirected graph, and directed edges have no loops. Distinct edges
are the stored ones less one for each pair that is stored in both directions. The diagonal is that of A, which has
loops, and a pair is two nonzeros."""


def simplify(values: Iterable[object]) -> Value:
    """Return the one value of several equal ones; otherwise the different values, each once."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else different  # type: ignore[return-value]


# Graphs: the counts that a card expects, which a build checks.


def count_in(evidence: Evidence, what: Count, graph: str) -> int | float:
    """Count something in a graph."""
    card = evidence.load_card(graph)

    def expect(name: str) -> int:
        expected: int | None = getattr(card.expected, name)
        return require(expected, f"expected.{name} (dataset {graph})")

    def count_nonzeros() -> int:
        return require(card.nonzeros, f"expected.nnz_adj (dataset {graph})")

    counts: dict[Count, Callable[[], int | float]] = {
        "vertices": lambda: expect("n"),
        "training vertices": lambda: expect("training"),
        "edges": lambda: require(card.edges, f"a count of edges (dataset {graph})"),
        "directed edges": lambda: expect("nnz_sym"),
        "stored edges": lambda: expect("stored"),
        "stored edges both ways": lambda: 2 * expect("stored"),
        "half of the stored edges": lambda: expect("stored") / 2,
        "distinct edges": lambda: expect("stored") - expect("nnz_sym") // 2,
        "nonzeros": count_nonzeros,
        "nonzeros off the diagonal": lambda: count_nonzeros() - expect("n"),
        "pairs off the diagonal": lambda: (count_nonzeros() - expect("n")) // 2,
        "features": lambda: evidence.load_facts(graph).features,
        "classes": lambda: card.classes,
    }
    return counts[what]()


@formula()
def count(evidence: Evidence, what: Count, *graphs: Graph) -> Value:
    """Count something in a graph, or in several that have the same number of it."""
    return simplify(count_in(evidence, what, graph) for graph in graphs)


@formula()
def subtract_counts(evidence: Evidence, what: Count, less: Count, graph: Graph) -> float:
    """Return how many more there are of the one than of the other."""
    return count_in(evidence, what, graph) - count_in(evidence, less, graph)


@formula()
def average_per_vertex(evidence: Evidence, what: Count, graph: Graph) -> float:
    """Return a count over that of the vertices, such as the average degree."""
    return count_in(evidence, what, graph) / count_in(evidence, "vertices", graph)


@formula()
def count_batches(evidence: Evidence, what: Count, graph: Graph, batch: int, *, rounded_to: int = 1) -> int:
    """Count the mini-batches of some vertices, whose number is rounded as in the paper."""
    return ceil(round(count_in(evidence, what, graph) / rounded_to) * rounded_to / batch)


@formula()
def average_updates(evidence: Evidence, graph: Graph, batch: int, devices: int) -> float:
    """Return the model updates in an epoch of mini-batches on all devices, which need not be whole."""
    return count_in(evidence, "training vertices", graph) / (devices * batch)


@formula("percent")
def find_zero_percent(evidence: Evidence, take: Literal["smallest", "largest"], *graphs: Graph) -> float:
    """Return the smallest or the largest percentage of zeros in A among the graphs."""
    facts = [evidence.load_facts(graph) for graph in graphs]
    shares = [1 - each.nonzeros / each.vertices**2 for each in facts]
    return 100 * (min(shares) if take == "smallest" else max(shares))


@formula()
def find_imbalance(
    evidence: Evidence, permutation: Literal["single", "single by edges", "double"], graph: Graph
) -> float:
    """Return the nonzeros of the fullest of 8 x 8 blocks over the mean.

    A single permutation leaves all n loops in the eight blocks of the diagonal. A double permutation spreads nonzeros
    at random: the fullest block is expected to be 2.39 deviations above the mean.
    """
    n, nonzeros = count_in(evidence, "vertices", graph), count_in(evidence, "nonzeros", graph)
    if permutation == "double":
        return 1 + 2.39 * 7 / 8 / sqrt(nonzeros / 64)
    others = 2 * count_in(evidence, "edges", graph) if permutation == "single by edges" else nonzeros - n
    return (others + 8 * n) / nonzeros


@formula()
def divide_local_degrees(evidence: Evidence, graph: Graph) -> float:
    """Return the average degree over that of a block of 8 x 8, over sqrt(P)."""
    n, nonzeros = count_in(evidence, "vertices", graph), count_in(evidence, "nonzeros", graph)
    return (nonzeros / n) / ((nonzeros / 64) / (n / 8)) / 8


@formula("percent")
def find_feature_growth(evidence: Evidence, *graphs: Graph) -> float:
    """Return the mean percentage by which the widths of all layers grow as the hidden width does, from 16 to 64."""
    widths = [
        count_in(evidence, "features", name) + 16 + count_in(evidence, "classes", name) for name in graphs
    ]
    return mean(100 * (64 - 16) / width for width in widths)


# Memory that a graph needs. Memory of a device is in GB of 2^30 bytes.


def find_device_bytes(evidence: Evidence, machine: str) -> float:
    """Return the memory of a device in bytes."""
    return GIB * require(evidence.load_machine(machine).memory_gb, f"memory_gb (machine {machine})")


@formula()
def is_out_of_memory(evidence: Evidence, graph: Graph, ranks: int, *, replicas: int = 1) -> bool:
    """Return whether the matrices of a rank of CAGNET exceed the memory of a device of Summit.

    They take 40 bytes per edge and 12 per input feature, times c / P, and libraries take 1 GB.
    """
    edges, n = count_in(evidence, "stored edges", graph), count_in(evidence, "vertices", graph)
    needed = (40 * edges + 12 * n * count_in(evidence, "features", graph)) * replicas / ranks
    return needed > find_device_bytes(evidence, "summit") - GIB


@formula()
def list_rank_counts_out_of_memory(evidence: Evidence, graph: Graph, *ranks: int) -> list[int]:
    """List the numbers of ranks, among some, with too little memory for CAGNET without replicas."""
    return [count for count in ranks if is_out_of_memory(evidence, graph, count)]


@formula()
def is_beyond_device_memory(evidence: Evidence, graph: Graph, machine: Machine) -> bool:
    """Return whether the edges in both directions, row pointers and a byte per feature exceed a device's memory."""
    n, edges = count_in(evidence, "vertices", graph), count_in(evidence, "stored edges", graph)
    needed = 16 * edges + 8 * n + n * count_in(evidence, "features", graph)
    return needed > find_device_bytes(evidence, machine)


# Machines: what a card says.


@formula()
def find_on_card(evidence: Evidence, path: str, *machines: Machine, times: Ratio = 1) -> Value:
    """Return what machine cards say, the same on all: the number at a dotted path, or how many entries there are."""
    return simplify(times * _find_number(evidence, path, machine) for machine in machines)


def _find_number(evidence: Evidence, path: str, machine: str) -> float:
    found: Any = evidence.load_machine(machine)
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    number = len(found) if isinstance(found, tuple) else getattr(found, "value", found)
    return require(number if isinstance(number, int | float) else None, f"{path} (machine {machine})")


@formula()
def divide_ring_bandwidths(evidence: Evidence, machine: Machine) -> float:
    """Return the bandwidth of one of two concurrent rings of eight ranks over that of a single one."""
    links = evidence.load_links(machine)
    one, two = (
        find_bandwidth(links, place_axis({AxisName.X: 8, AxisName.Y: rings}, "x", links)) for rings in (1, 2)
    )
    return two / one


@formula()
def format_coefficient(
    evidence: Evidence, term: Literal["flops", "forward", "backward"], machine: Machine
) -> str:
    """Format a coefficient of Plexus' equation 4.4 as the paper prints it. The exponent is not compared."""
    model = require(evidence.load_machine(machine).plexus_model, f"plexus_model (machine {machine})")
    digits = getattr(model, term) * (1e4 if term == "flops" else 1e10)
    return f"{digits:.1f} x 10^?"


@formula()
def count_model_points(evidence: Evidence) -> int:
    """Count the grids among the measurements of products by the authors of Plexus."""
    rows = evidence.read_rows("benchmarks/data/plexus_spmm_points.csv")
    return len({(row["dataset"], row["x"], row["y"], row["z"]) for row in rows})


@formula()
def find_model_error(evidence: Evidence, column: str) -> float:
    """Return an error of Plexus' equation 4.4, as `benchmarks/plexus.py` fits it."""
    return float(evidence.read_rows("benchmarks/results/plexus-model.csv")[1][column])


# Settings of the papers' experiments.

Taken = Literal["every", "number", "smallest", "second smallest", "largest", "largest over smallest"]
TAKEN: dict[Taken, Callable[[list[Any]], Value]] = {
    "every": simplify,
    "number": len,
    "smallest": lambda values: values[0],
    "second smallest": lambda values: values[1],
    "largest": lambda values: values[-1],
    "largest over smallest": lambda values: values[-1] / values[0],
}


@formula()
def find_setting(evidence: Evidence, key: str, runs: Runs, *, take: Taken = "every") -> Value:
    """Return the value of a setting in the runs, or what is taken of the different values, ascending."""
    return TAKEN[take](evidence.list_values(runs, key))


@formula()
def add_settings(evidence: Evidence, runs: Runs, *keys: str) -> int:
    """Return the sum of settings that all runs share, such as all epochs of a run: timed ones and warm-up."""
    return sum(int(value) for key in keys for (value,) in [evidence.list_values(runs, key)])


@formula()
def count_layers_of_vertices(evidence: Evidence, runs: Runs) -> int:
    """Count the layers as CAGNET does: L layers of vertices have L - 1 weight matrices between them."""
    return add_settings(evidence, runs, "layers") + 1


@formula()
def find_largest_run_on_one_node(evidence: Evidence, runs: Runs, machine: Machine) -> int:
    """Return the largest number of ranks that fits on a node."""
    devices = evidence.load_links(machine).devices_per_node
    counts: list[int] = evidence.list_values(runs, "ranks")
    return max(ranks for ranks in counts if ranks <= devices)


@formula()
def pair_rank_counts(evidence: Evidence, runs: Runs) -> list[str]:
    """List the numbers of ranks of 2D and 3D that a figure of CAGNET shows side by side."""
    squares, cubes = (
        evidence.list_values(runs.narrow(strategy=name), "ranks") for name in ("cagnet-2d", "cagnet-3d")
    )
    return [f"{p}/{q}" if p != q else str(p) for p, q in zip(squares, cubes, strict=False)]


@formula()
def find_feature_range(evidence: Evidence, runs: Runs) -> str:
    """Return the smallest and the largest number of input features among the graphs of the runs."""
    widths = [count_in(evidence, "features", graph) for graph in evidence.list_values(runs, "dataset")]
    return f"{min(widths)}-{max(widths)}"


@formula()
def find_shape(evidence: Evidence, runs: Runs) -> str:
    """Return the sizes of the grid without its data-parallel axis of size one, as 2x2x2."""
    (grid,) = evidence.list_values(runs, "grid")
    sizes = dict(axis.split("=") for axis in grid.split(","))
    return "x".join(size for axis, size in sizes.items() if axis != AxisName.D)


@formula()
def find_smallest_replicas(evidence: Evidence, runs: Runs) -> Value:
    """Return the size of the data-parallel axis on the fewest ranks, the same for all graphs."""
    sizes = []
    for point in evidence.list_points(runs, "dataset"):
        specs = evidence.list_runs(runs.narrow(**point))
        fewest = min(spec.ranks for spec in specs)
        sizes += [spec.grid[AxisName.D] for spec in specs if spec.ranks == fewest]
    return simplify(sizes)


# Numbers that papers print.


@formula()
def find_printed(evidence: Evidence, claim: PrintedClaim) -> float:
    """Return the number that another claim prints."""
    return evidence.read_printed(claim)


@formula()
def divide_printed(evidence: Evidence, claim: PrintedClaim, other: PrintedClaim) -> float:
    """Return the ratio of the numbers of two claims."""
    return evidence.read_printed(claim) / evidence.read_printed(other)


@formula()
def is_printed_at_most(evidence: Evidence, smaller: PrintedClaim, larger: PrintedClaim) -> bool:
    """Return whether the number of one claim is at most that of another."""
    return evidence.read_printed(smaller) <= evidence.read_printed(larger)


@formula()
def divide_common_dimensions(_: Evidence, one: int, other: int) -> int:
    """Return the ratio of the common dimensions of two products."""
    return one // other
