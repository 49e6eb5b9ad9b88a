"""What replayed ranks send, compute and hold, compared with the terms of papers; sparse products; and partitions.

CAGNET's analysis counts the elements and messages of one layer with n vertices and f features. Here 64 ranks replay the
second of four layers on Reddit, with f = 64. Functions named `divide_...` return our number over the paper's term,
which the claim's coefficient or factor is compared with.
"""

from collections.abc import Callable, Collection
from typing import Literal

from harness.claims.arguments import Graph, Machine, Ratio, Scheme, Tensors, TwoSchemes
from harness.claims.estimates import Estimate
from harness.claims.evidence import Evidence, RankReplay, RankWork
from harness.claims.formula import formula
from harness.claims.formulas.lookups import count_in, find_device_bytes
from harness.ledger import Op
from harness.prediction.pricing import price_spmm

F = 64
Permutation = Literal["none", "single", "double"]


# CAGNET: a layer of its analysis.


def replay_layers(evidence: Evidence, scheme: Scheme) -> RankReplay:
    """Replay a rank with the four layers of the analysis."""
    return evidence.replay_rank(scheme.strategy, "reddit", scheme.grid, hidden=F, layers=4)


def count_layer_work(
    evidence: Evidence, scheme: Scheme, op: Op | None = None, tensors: Collection[str] = ()
) -> RankWork:
    """Return the work of a rank in the layer of the analysis."""
    return replay_layers(evidence, scheme).count_work(layer=1, op=op or "", tensors=tensors)


@formula()
def divide_layer_elements(
    evidence: Evidence,
    scheme: Scheme,
    term: Literal["nf", "nnz", "f^2"],
    *,
    times: Ratio = 1,
    op: Op | None = None,
    tensors: Tensors = (),
) -> float:
    """Return the payload of an op or of some tensors over the paper's term. A nonzero is a value and a column."""
    sizes: dict[str, Callable[[], int | float]] = {
        "nf": lambda: F * count_in(evidence, "vertices", "reddit"),
        "nnz": lambda: 2 * count_in(evidence, "nonzeros", "reddit"),
        "f^2": lambda: F**2,
    }
    return count_layer_work(evidence, scheme, op, tensors).payload / (sizes[term]() * times)


@formula()
def divide_layer_calls(evidence: Evidence, scheme: Scheme, messages: int) -> float:
    """Return the calls of a layer over the paper's number of messages."""
    return count_layer_work(evidence, scheme).calls / messages


@formula()
def divide_schemes(
    evidence: Evidence,
    quantity: Literal["elements", "calls", "input bytes"],
    schemes: TwoSchemes,
    *,
    factor: Ratio,
    op: Op | None = None,
    tensors: Tensors = (),
) -> float:
    """Return a quantity of one scheme over that of another, over the paper's factor."""

    def measure(one: Scheme) -> float:
        if quantity == "input bytes":
            return replay_layers(evidence, one).held_bytes["X"]
        work = count_layer_work(evidence, one, op, tensors)
        return work.calls if quantity == "calls" else work.payload

    one, other = map(measure, schemes)
    return one / other / factor


@formula()
def divide_growth_of_saving(
    evidence: Evidence, few: TwoSchemes, many: TwoSchemes, *, graph: Graph, hidden: int, growth: float
) -> float:
    """Return how the elements of a scheme over another's grow from few ranks to many, over the paper's growth.

    The paper's factor is asymptotic, so its constant is not compared. Epochs have two layers.
    """

    def divide_elements(schemes: TwoSchemes) -> float:
        one, other = (
            evidence.replay_rank(scheme.strategy, graph, scheme.grid, hidden=hidden, layers=2)
            for scheme in schemes
        )
        return one.count_work().elements / other.count_work().elements

    return divide_elements(many) / divide_elements(few) / growth


# Plexus: shards of A, terms of its analysis, and memory.


def count_adjacency_bytes(evidence: Evidence, permutation: str, layers: int) -> int:
    """Count the bytes of A that a rank of 3 x 3 x 3 holds."""
    replayed = evidence.replay_rank(
        "plexus", "europe-osm", "3x3x3", rank=5, features=True, layers=layers, permutation=permutation
    )
    return replayed.held_bytes["A"]


@formula()
def count_shards(evidence: Evidence, permutation: Permutation, layers: int) -> int:
    """Count the shards of A that a rank of Plexus holds."""
    many, one = (count_adjacency_bytes(evidence, permutation, count) for count in (layers, 1))
    return round(many / one)


@formula()
def has_shards_up_to(evidence: Evidence, most: int, permutation: Permutation, *layers: int) -> bool:
    """Return whether a rank of Plexus holds a shard of A for each layer, and at most `most`."""
    return all(count_shards(evidence, permutation, count) == min(most, count) for count in layers)


@formula()
def divide_shards_of_permutations(evidence: Evidence, layers: int) -> float:
    """Return the bytes of A with a double permutation over those without."""
    double, none = (count_adjacency_bytes(evidence, name, layers) for name in ("double", "none"))
    return double / none


def replay_plexus(evidence: Evidence) -> RankReplay:
    """Replay the three layers of its analysis."""
    return evidence.replay_rank("plexus", "ogbn-products", "4x4x4", hidden=128, layers=3)


@formula()
def divide_spmm_flops(evidence: Evidence) -> float:
    """Return the flops of the first layer's sparse product over 2 nnz D / G."""
    flops = replay_plexus(evidence).count_work(layer=0, op="spmm", direction="forward").flops
    return flops / (2 * count_in(evidence, "nonzeros", "ogbn-products") * 100 / 64)


@formula()
def divide_all_reduce_elements(evidence: Evidence) -> float:
    """Return the elements of the all-reduces of H over those of a ring, 2 (G - 1) / G for each element of payload."""
    work = replay_plexus(evidence).count_work(op="all_reduce", phase="convolve")
    return work.elements / work.payload / (2 * (4 - 1) / 4)


@formula("bytes")
def count_unsharded_bytes(evidence: Evidence) -> float:
    """Return the memory of ogbn-papers100M's features and of two permutations of A: rows, columns and values."""
    facts = evidence.load_facts("ogbn-papers100m")
    return facts.vertices * 128 * 4 + 2 * facts.nonzeros * (8 + 8 + 4)


@formula("bytes")
def count_sharded_bytes(evidence: Evidence) -> float:
    """Return the memory that a rank of 64 holds on ogbn-papers100M from step to step."""
    replayed = evidence.replay_rank("plexus", "ogbn-papers100m", "4x8x2", hidden=128)
    return sum(replayed.held_bytes.values())


@formula()
def divide_unsharded_by_sharded(evidence: Evidence) -> float:
    """Return the memory of a process that loads the whole graph over that of a rank that loads its shards."""
    return count_unsharded_bytes(evidence) / count_sharded_bytes(evidence)


@formula()
def list_rank_counts_beyond_memory(evidence: Evidence, machine: Machine) -> list[int]:
    """List the numbers of ranks whose peak on ogbn-papers100M exceeds a device's memory."""

    def count_peak_bytes(grid: str) -> int:
        return evidence.replay_rank(
            "plexus", "ogbn-papers100m", grid, layers=3, hidden=128, permutation="double"
        ).peak_bytes

    memory = find_device_bytes(evidence, machine)
    grids = {64: "4x8x2", 128: "4x16x2", 256: "4x16x4"}
    return [ranks for ranks, grid in grids.items() if count_peak_bytes(grid) > memory]


# Sampling.


@formula("bytes")
def count_bytes_of_sampling(evidence: Evidence, scheme: Scheme, graph: Graph, batch: int) -> float:
    """Count the bytes that a rank sends while it samples."""
    replayed = evidence.replay_rank(scheme.strategy, graph, scheme.grid, batch=batch)
    return replayed.count_work(phase="sample").bytes


@formula()
def count_shards_of_six_layers(evidence: Evidence) -> float:
    """Count the shards of A that a rank of ScaleGNN holds for six layers: three layers take three."""

    def count_bytes(layers: int) -> int:
        replayed = evidence.replay_rank(
            "scalegnn", "ogbn-products", "1x3x3x3", rank=5, layers=layers, batch=65536
        )
        return replayed.held_bytes["A"]

    return 3 * count_bytes(6) / count_bytes(3)


@formula()
def divide_steps(evidence: Evidence, schemes: TwoSchemes, graph: Graph, batch: int) -> float:
    """Return the steps of few ranks over those of many, over what linear scaling gives."""
    few, many = schemes
    steps = [evidence.count_steps(scheme.strategy, graph, scheme.grid, batch=batch) for scheme in schemes]
    return steps[0] / steps[1] / (many.ranks / few.ranks)


# Sparse products.


def find_product_seconds(evidence: Evidence, machine: str, grid: str) -> Estimate:
    """Return the time of Plexus' first sparse product on ogbn-products."""
    rates = evidence.load_rates(machine)
    replayed = evidence.replay_rank("plexus", "ogbn-products", grid).replayed
    first = next(product for event in replayed.events for product in event.products if product.nonzeros)
    seconds = price_spmm(first, rates.spmm)
    return Estimate(seconds, seconds / rates.spmm.within, seconds * rates.spmm.within)


@formula()
def divide_product_times(
    evidence: Evidence, machine: Machine, grid: str, other_machine: Machine, other_grid: str
) -> Estimate:
    """Return the time of a sparse product over that of another, each on a machine and a grid."""
    slower = find_product_seconds(evidence, machine, grid)
    return slower / find_product_seconds(evidence, other_machine, other_grid)


# Partitions, of a twin of the graph if its store is not built.


@formula()
def count_vertices_of_parts(evidence: Evidence, graph: Graph, parts: int, *, twin: str) -> float:
    """Count the vertices of all parts by METIS, those that a part needs of others included."""
    cut, n = evidence.read_cut(graph, "metis", parts, twin), count_in(evidence, "vertices", graph)
    return n + n * sum(cut.needed) / cut.bounds[-1]


@formula("percent")
def find_rows_saved_percent(evidence: Evidence, graph: Graph, parts: int, *, twin: str) -> float:
    """Return how many fewer rows of others the parts of METIS need together than random block rows."""
    metis, random = (sum(evidence.read_cut(graph, way, parts, twin).needed) for way in ("metis", "random"))
    return 100 * (1 - metis / random)
