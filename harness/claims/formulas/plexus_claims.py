"""The formulas of the claims of Plexus."""

from collections.abc import Iterable
from math import prod, sqrt

from harness.claims.estimates import (
    Choices,
    Estimate,
    enclose,
    find_largest_estimate,
    find_smallest_estimate,
    is_falling,
)
from harness.claims.evidence import Evidence, require
from harness.claims.formula import Formula, Formulas, Value
from harness.claims.formulas.quantities import (
    count_classes,
    count_devices_per_node,
    count_directed_edges,
    count_distinct_edges,
    count_edges,
    count_features,
    count_nics_per_node,
    count_nonzeros,
    count_stored_edges,
    count_vertices,
    divide_epoch_times,
    divide_printed,
    find_common_classes,
    find_common_features,
    find_common_setting,
    find_device_memory,
    find_hardware,
    find_hardware_memory,
    find_largest,
    find_node_bandwidth,
    find_peak_tflops,
    find_setting,
    find_smallest,
    is_faster,
    is_faster_for_choices,
    is_scaling,
    list_faster,
    list_rank_counts,
    simplify,
)
from harness.claims.printed_units import in_unit
from harness.claims.selection import Selection, select
from harness.formatting import GIB
from harness.prediction.pricing import price_spmm
from harness.spec.machine_card import PlexusModel

PERLMUTTER = frozenset({"perlmutter", "perlmutter-80gb"})
MEASURED_CARD = "perlmutter-measured"
"""The card of Perlmutter with measured bandwidths."""
TRANSPORTS = (MEASURED_CARD, "perlmutter-gloo")
"""The machine cards for BNS-GCN. The paper does not say whether its program sent by NCCL or, by default, by gloo."""
SPARSITY_AWARE = frozenset({"cagnet-sa-1d", "cagnet-sa-1.5d"})
"""The algorithms of sparsity-aware CAGNET. The paper does not say which of them its figure shows."""
FIGURE_5, FIGURE_7, FIGURE_8, FIGURE_10 = (select(f"plexus-figure-{number}") for number in (5, 7, 8, 10))
FIGURE_6_LEFT, FIGURE_6_RIGHT = (select(f"plexus-figure-6-{side}") for side in ("left", "right"))
FIGURE_10_PERLMUTTER = select("plexus-figure-10", cards=(MEASURED_CARD,), machine=PERLMUTTER)
FIGURE_10_FRONTIER = select("plexus-figure-10", machine="frontier")
SIX = ("reddit", "ogbn-products", "isolate-3-8m", "products-14m", "europe-osm", "ogbn-papers100m")
"""The datasets of the paper."""
TWINS = {
    "reddit": "1/10,1/7,1/5",
    "isolate-3-8m": "1/512,1/256,1/128",
    "products-14m": "1/256,1/128,1/64",
}
"""The scales of the twins on which BNS-GCN is predicted."""
PARTITIONED_TWIN = "1/64w1"
"""The twin whose parts are counted."""


# Datasets.


def list_zero_shares(evidence: Evidence, datasets: Iterable[str]) -> list[float]:
    """List the shares of zeros in A."""
    facts = [evidence.load_facts(dataset) for dataset in datasets]
    return [1 - each.nonzeros / each.vertices**2 for each in facts]


@in_unit("percent")
def find_smallest_zero_percent(evidence: Evidence, *datasets: str) -> float:
    """Return the smallest percentage of zeros in A."""
    return 100 * min(list_zero_shares(evidence, datasets))


@in_unit("percent")
def find_largest_zero_percent(evidence: Evidence, *datasets: str) -> float:
    """Return the largest percentage of zeros in A."""
    return 100 * max(list_zero_shares(evidence, datasets))


def count_implied_loops(evidence: Evidence, dataset: str) -> int:
    """Count the loops among the edges, by the counts of nonzeros and vertices."""
    n, nonzeros = count_vertices(evidence, dataset), count_nonzeros(evidence, dataset)
    return count_edges(evidence, dataset) - (nonzeros - n) // 2


def count_implied_loops_of_stored(evidence: Evidence, dataset: str) -> int:
    """Count the loops among the stored edges, by the counts of nonzeros and vertices."""
    n, nonzeros = count_vertices(evidence, dataset), count_nonzeros(evidence, dataset)
    return count_stored_edges(evidence, dataset) - (nonzeros - n) // 2


def count_stored_loops(evidence: Evidence, dataset: str) -> int:
    """Count the stored edges that are not edges between two vertices."""
    return count_stored_edges(evidence, dataset) - count_directed_edges(evidence, dataset)


def count_directed_loops(evidence: Evidence, dataset: str) -> int:
    """Count the loops of a directed graph, by the counts of nonzeros and vertices."""
    n, nonzeros = count_vertices(evidence, dataset), count_nonzeros(evidence, dataset)
    return count_stored_edges(evidence, dataset) + n - nonzeros


# The fullest of 8 x 8 blocks over the mean.


def find_imbalance_of_single_permutation(evidence: Evidence, dataset: str) -> float:
    """Return the imbalance where all n loops are in the eight blocks of the diagonal."""
    n, nonzeros = count_vertices(evidence, dataset), count_nonzeros(evidence, dataset)
    return (nonzeros + 7 * n) / nonzeros


def find_imbalance_of_double_permutation(evidence: Evidence, dataset: str) -> float:
    """Return the expected imbalance of nonzeros spread at random: 2.39 deviations above the mean."""
    return 1 + 2.39 * 7 / 8 / sqrt(count_nonzeros(evidence, dataset) / 64)


def find_imbalance_by_edges(evidence: Evidence, dataset: str) -> float:
    """Return the imbalance of a single permutation from the counts of edges and vertices."""
    n, edges = count_vertices(evidence, dataset), count_edges(evidence, dataset)
    return (2 * edges + 8 * n) / count_nonzeros(evidence, dataset)


# Partitions.


def count_vertices_of_parts(evidence: Evidence, dataset: str, parts: int, *, twin: str) -> float:
    """Count the vertices of all parts by METIS, those that a part needs of others included."""
    cut, n = evidence.read_cut(dataset, "metis", parts, twin), count_vertices(evidence, dataset)
    return n + n * sum(cut.needed) / cut.bounds[-1]


# Words, flops and memory of a rank.


def count_adjacency_bytes(evidence: Evidence, layers: int, permutation: str) -> int:
    """Count the bytes of A that a rank of 3 x 3 x 3 holds."""
    replayed = evidence.replay_rank(
        "plexus",
        "europe-osm",
        27,
        "3x3x3",
        rank=5,
        features=True,
        layers=layers,
        permutation=permutation,
    )
    return replayed.held_bytes["A"]


def count_shards(evidence: Evidence, layers: int, permutation: str = "none") -> int:
    """Count the shards of A that a rank holds."""
    sizes = [count_adjacency_bytes(evidence, count, permutation) for count in (layers, 1)]
    return round(sizes[0] / sizes[1])


def count_most_shards(evidence: Evidence, *layers: int) -> int:
    """Count the most shards of A that a rank holds for these numbers of layers."""
    return max(count_shards(evidence, count) for count in layers)


def has_shards_up_to(evidence: Evidence, most: int, layers: tuple[int, ...], permutation: str) -> bool:
    """Return whether a rank holds a shard of A for each layer, and at most `most`."""
    return all(count_shards(evidence, count, permutation) == min(most, count) for count in layers)


def divide_shards_of_permutations(evidence: Evidence, layers: int) -> float:
    """Return the bytes of A with a double permutation over those without."""
    double, none = (count_adjacency_bytes(evidence, layers, name) for name in ("double", "none"))
    return double / none


def divide_spmm_flops(evidence: Evidence) -> float:
    """Return the flops of the first layer's sparse product over 2 nnz D / G."""
    replayed = evidence.replay_rank("plexus", "ogbn-products", 64, "4x4x4", hidden=128, layers=3)
    flops = replayed.count_work(layer=0, op="spmm", direction="forward").flops
    return flops / (2 * count_nonzeros(evidence, "ogbn-products") * 100 / 64)


def divide_all_reduce_words(evidence: Evidence) -> float:
    """Return the words of the all-reduces of H over those of a ring, 2 (G - 1) / G for each word of payload."""
    replayed = evidence.replay_rank("plexus", "ogbn-products", 64, "4x4x4", hidden=128, layers=3)
    work = replayed.count_work(op="all_reduce", phase="convolve")
    return work.words / work.payload / (2 * (4 - 1) / 4)


@in_unit("bytes")
def count_unsharded_bytes(evidence: Evidence) -> float:
    """Return the memory of ogbn-papers100M's features and of two permutations of A: rows, columns and values."""
    facts = evidence.load_facts("ogbn-papers100m")
    return facts.vertices * 128 * 4 + 2 * facts.nonzeros * (8 + 8 + 4)


@in_unit("bytes")
def count_sharded_bytes(evidence: Evidence) -> float:
    """Return the memory that a rank of 64 holds on ogbn-papers100M from step to step."""
    replayed = evidence.replay_rank("plexus", "ogbn-papers100m", 64, "4x8x2", hidden=128)
    return sum(replayed.held_bytes.values())


def divide_unsharded_by_sharded(evidence: Evidence) -> float:
    """Return the memory of a process that loads the whole graph over that of a rank that loads its shards."""
    return count_unsharded_bytes(evidence) / count_sharded_bytes(evidence)


def list_rank_counts_beyond_memory(evidence: Evidence, machine: str) -> list[int]:
    """List the numbers of ranks whose peak on ogbn-papers100M exceeds a device's memory."""

    def count_peak_bytes(ranks: int, grid: str) -> int:
        return evidence.replay_rank(
            "plexus", "ogbn-papers100m", ranks, grid, layers=3, hidden=128, permutation="double"
        ).peak_bytes

    memory = find_device_memory(evidence, machine) * GIB
    grids = ((64, "4x8x2"), (128, "4x16x2"), (256, "4x16x4"))
    return [ranks for ranks, grid in grids if count_peak_bytes(ranks, grid) > memory]


# The model of sparse products.


def divide_common_dimensions(_: Evidence, one: int, other: int) -> int:
    """Return the ratio of the common dimensions of two products."""
    return one // other


def find_product_seconds(evidence: Evidence, machine: str, grid: str) -> Estimate:
    """Return the time of the first sparse product on ogbn-products."""
    rates, sizes = evidence.load_rates(machine), [int(size) for size in grid.split("x")]
    replayed = evidence.replay_rank("plexus", "ogbn-products", prod(sizes), grid).replayed
    first = next(product for event in replayed.events for product in event.products if product.nonzeros)
    seconds = price_spmm(first, rates.spmm)
    return Estimate(seconds, seconds / rates.spmm.within, seconds * rates.spmm.within)


def divide_product_times(evidence: Evidence, slower: tuple[str, str], faster: tuple[str, str]) -> Estimate:
    """Return the time of a sparse product over that of another, each on a machine and a grid."""
    return find_product_seconds(evidence, *slower) / find_product_seconds(evidence, *faster)


def count_model_points(evidence: Evidence) -> int:
    """Count the grids among the authors' measurements of products."""
    rows = evidence.read_rows("benchmarks/data/plexus_spmm_points.csv")
    return len({(row["dataset"], row["x"], row["y"], row["z"]) for row in rows})


def find_model_error(evidence: Evidence, column: str) -> float:
    """Return the error of equation 4.4 as `benchmarks/plexus.py` fits it."""
    return float(evidence.read_rows("benchmarks/results/plexus-model.csv")[1][column])


@in_unit("ms")
def find_model_error_in_milliseconds(evidence: Evidence, column: str) -> float:
    """Return an error that is a time."""
    return find_model_error(evidence, column)


def load_coefficients(evidence: Evidence, machine: str) -> PlexusModel:
    """Load the coefficients of equation 4.4 that the card of a machine quotes."""
    return require(evidence.load_machine(machine).plexus_model, f"plexus_model (machine {machine})")


def format_coefficient(coefficient: float) -> str:
    """Format a coefficient as the paper prints it. The exponent is not compared."""
    return f"{coefficient:.1f} x 10^?"


def format_flops_coefficient(evidence: Evidence, machine: str) -> str:
    """Format the coefficient of the flops."""
    return format_coefficient(1e4 * load_coefficients(evidence, machine).flops)


def format_forward_coefficient(evidence: Evidence, machine: str) -> str:
    """Format the coefficient of the forward pass."""
    return format_coefficient(1e10 * load_coefficients(evidence, machine).forward)


def format_backward_coefficient(evidence: Evidence, machine: str) -> str:
    """Format the coefficient of the backward pass."""
    return format_coefficient(1e10 * load_coefficients(evidence, machine).backward)


# Machines and settings.


def count_devices_per_gpu(evidence: Evidence, machine: str) -> float:
    """Count the devices of a GPU."""
    return count_devices_per_node(evidence, machine) // find_hardware(evidence, machine, "gpus_per_node")


def count_values(evidence: Evidence, runs: Selection, key: str) -> int:
    """Count the different values of a setting."""
    return len(evidence.list_values(runs, key))


def count_trials(evidence: Evidence, *selections: Selection) -> Value:
    """Count the launches of each run, the same in all selections."""
    return simplify([count_values(evidence, runs, "launch") for runs in selections])


def count_all_epochs(evidence: Evidence, runs: Selection) -> int:
    """Count the epochs of a run, warm-up included."""
    (epochs,), (warmup,) = (evidence.list_values(runs, key) for key in ("epochs", "warmup"))
    return int(epochs) + int(warmup)


# Epochs.


def predict_figure_8(strategy: str | frozenset[str], dataset: str, ranks: int = 0) -> Selection:
    """Select a line of figure 8, or one point of it."""
    runs = select("plexus-figure-8", cards=(MEASURED_CARD,), strategy=strategy, dataset=dataset)
    if strategy == SPARSITY_AWARE or strategy in SPARSITY_AWARE:
        runs = runs.narrow(permutation="single")
    if strategy == "bns-gcn":
        runs = runs.with_twins(TWINS[dataset]).with_cards(*TRANSPORTS)
    return runs.narrow(ranks=ranks) if ranks else runs


def find_speedup_over_sa(evidence: Evidence, dataset: str, ranks: int = 128) -> Estimate:
    """Return the speed-up over sparsity-aware CAGNET."""
    slower, faster = (predict_figure_8(name, dataset, ranks) for name in (SPARSITY_AWARE, "plexus"))
    return divide_epoch_times(evidence, slower, faster)


def find_speedups_over_sa(evidence: Evidence, *datasets: str) -> Estimate:
    """Return the range of these speed-ups over all numbers of ranks up to 128, and over the datasets."""
    return enclose(
        find_speedup_over_sa(evidence, dataset, ranks)
        for dataset in datasets
        for ranks in list_rank_counts(evidence, predict_figure_8("cagnet-sa-1d", dataset))
        if ranks <= 128
    )


def find_speedup_over_bns(evidence: Evidence, dataset: str, ranks: int) -> Estimate:
    """Return the speed-up over BNS-GCN."""
    slower, faster = (predict_figure_8(name, dataset, ranks) for name in ("bns-gcn", "plexus"))
    return divide_epoch_times(evidence, slower, faster)


def has_crossover_with_bns(evidence: Evidence, dataset: str, few: int, many: int) -> Choices:
    """Return whether BNS-GCN is faster on few ranks, and not on many."""
    on_few, on_many = (
        list_faster(evidence, *(predict_figure_8(name, dataset, ranks) for name in ("bns-gcn", "plexus")))
        for ranks in (few, many)
    )
    return Choices(tuple(one and not other for one, other in zip(on_few, on_many, strict=True)))


def has_crossover_of_datasets(evidence: Evidence, one: str, other: str, few: int, many: int) -> bool:
    """Return whether the first dataset is faster on few ranks of Perlmutter, and the other on many."""

    def select_runs(dataset: str, ranks: int) -> Selection:
        return FIGURE_10_PERLMUTTER.narrow(dataset=dataset, ranks=ranks)

    return is_faster(evidence, select_runs(one, few), select_runs(other, few)) and is_faster(
        evidence, select_runs(other, many), select_runs(one, many)
    )


def is_sa_scaling(evidence: Evidence, dataset: str) -> Choices:
    """Return whether sparsity-aware CAGNET has faster epochs on more ranks, up to 128, for each of its algorithms."""

    def is_scaling_to_128(line: Selection) -> bool:
        counts = [ranks for ranks in list_rank_counts(evidence, line) if ranks <= 128]
        return is_falling({ranks: evidence.time_epoch(line.narrow(ranks=ranks)) for ranks in counts})

    lines = (predict_figure_8(name, dataset) for name in sorted(SPARSITY_AWARE))
    return Choices(tuple(map(is_scaling_to_128, lines)))


def is_sa_not_scaling(evidence: Evidence, dataset: str) -> Choices:
    """Return whether some epoch of sparsity-aware CAGNET is not faster on more ranks, for each of its algorithms."""
    return Choices(tuple(not value for value in is_sa_scaling(evidence, dataset).values))


@in_unit("s")
def find_longest_seconds(evidence: Evidence, line: Selection, counts: tuple[int, ...]) -> Estimate:
    """Return the longest epoch of a line at these numbers of ranks."""
    times = evidence.time_line(line)
    return find_largest_estimate(times[ranks].seconds for ranks in counts)


def list_reductions(evidence: Evidence, runs: Selection) -> list[Estimate]:
    """List, by dataset, the epoch on the fewest ranks over that on the most."""

    def divide_ends(line: Selection) -> Estimate:
        counts = list_rank_counts(evidence, line)
        return divide_epoch_times(evidence, line.narrow(ranks=counts[0]), line.narrow(ranks=counts[-1]))

    return [divide_ends(runs.narrow(dataset=dataset)) for dataset in SIX]


def find_smallest_reduction(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the smallest reduction of the epoch."""
    return find_smallest_estimate(list_reductions(evidence, runs))


def find_largest_reduction(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the largest reduction of the epoch."""
    return find_largest_estimate(list_reductions(evidence, runs))


FORMULAS: Formulas = {
    "PLX-001": Formula(find_speedup_over_sa, "products-14m"),
    "PLX-002": Formula(find_speedups_over_sa, "reddit", "products-14m"),
    "PLX-003": Formula(find_smallest_reduction, FIGURE_10_PERLMUTTER),
    "PLX-004": Formula(find_largest_reduction, FIGURE_10_PERLMUTTER),
    "PLX-005": Formula(find_smallest_reduction, FIGURE_10_FRONTIER),
    "PLX-006": Formula(find_largest_reduction, FIGURE_10_FRONTIER),
    "PLX-007": Formula(find_largest, FIGURE_10.narrow(machine=PERLMUTTER), "ranks"),
    "PLX-008": Formula(find_largest, FIGURE_10.narrow(machine="frontier", dataset="isolate-3-8m"), "ranks"),
    "PLX-009": Formula(count_values, FIGURE_10, "dataset"),
    "PLX-010": Formula(find_smallest_zero_percent, *SIX),
    "PLX-011": Formula(find_largest_zero_percent, *SIX),
    "PLX-012": Formula(count_vertices, "ogbn-papers100m"),
    "PLX-013": Formula(count_stored_edges, "ogbn-papers100m"),
    "PLX-050": Formula(count_vertices, "cagnet-amazon"),
    "PLX-051": Formula(count_stored_edges, "cagnet-protein"),
    "PLX-059": Formula(count_vertices, "ogbn-papers100m"),
    "PLX-060": Formula(count_stored_edges, "ogbn-papers100m"),
    "PLX-061": Formula(find_largest, FIGURE_10.narrow(machine=PERLMUTTER), "ranks"),
    "PLX-063": Formula(count_most_shards, 1, 2, 3, 4, 5, 6),
    "PLX-064": Formula(has_shards_up_to, 3, (1, 2, 3, 4, 7), "none"),
    "PLX-065": Formula(has_shards_up_to, 6, (1, 2, 3, 4, 5, 6, 7), "double"),
    "PLX-066": Formula(divide_shards_of_permutations, 3),
    "PLX-067": Formula(divide_spmm_flops),
    "PLX-068": Formula(divide_all_reduce_words),
    "PLX-069": Formula(divide_product_times, ("perlmutter", "1x64x1"), ("perlmutter", "64x1x1")),
    "PLX-070": Formula(divide_printed, "PLX-073", "PLX-072"),
    "PLX-071": Formula(divide_common_dimensions, 64, 1),
    "PLX-080": Formula(count_model_points),
    "PLX-083": Formula(find_model_error, "R^2 fitted"),
    "PLX-084": Formula(find_model_error_in_milliseconds, "RMSE fitted"),
    "PLX-085": Formula(find_model_error, "R^2 rest"),
    "PLX-086": Formula(find_model_error_in_milliseconds, "RMSE rest"),
    "PLX-087": Formula(format_flops_coefficient, "perlmutter"),
    "PLX-088": Formula(format_forward_coefficient, "perlmutter"),
    "PLX-089": Formula(format_backward_coefficient, "perlmutter"),
    "PLX-090": Formula(find_setting, FIGURE_5, "ranks"),
    "PLX-092": Formula(find_imbalance_of_single_permutation, "europe-osm"),
    "PLX-093": Formula(find_imbalance_of_double_permutation, "europe-osm"),
    "PLX-094": Formula(find_imbalance_by_edges, "europe-osm"),
    "PLX-097": Formula(find_smallest, FIGURE_6_LEFT, "ranks"),
    "PLX-098": Formula(find_smallest, FIGURE_6_LEFT, "ranks", 1),
    "PLX-101": Formula(find_smallest, FIGURE_6_RIGHT, "ranks"),
    "PLX-102": Formula(find_smallest, FIGURE_6_RIGHT, "ranks", 1),
    "PLX-103": Formula(count_unsharded_bytes),
    "PLX-104": Formula(count_sharded_bytes),
    "PLX-107": Formula(divide_unsharded_by_sharded),
    "PLX-109": Formula(find_hardware, "perlmutter", "nodes_of_40_gb"),
    "PLX-110": Formula(find_hardware, "perlmutter", "nodes_of_80_gb"),
    "PLX-111": Formula(find_device_memory, "perlmutter"),
    "PLX-112": Formula(find_hardware_memory, "perlmutter", "memory_gb_of_large_nodes"),
    "PLX-113": Formula(find_hardware, "frontier", "nodes"),
    "PLX-114": Formula(find_device_memory, "frontier", 2),
    "PLX-115": Formula(find_peak_tflops, "perlmutter"),
    "PLX-116": Formula(find_peak_tflops, "frontier", 2),
    "PLX-117": Formula(count_nics_per_node, "perlmutter", "frontier"),
    "PLX-118": Formula(find_node_bandwidth, "perlmutter", 4),
    "PLX-119": Formula(count_devices_per_node, "perlmutter"),
    "PLX-120": Formula(count_devices_per_node, "frontier", 2),
    "PLX-121": Formula(count_devices_per_gpu, "frontier"),
    "PLX-126": Formula(list_rank_counts_beyond_memory, "perlmutter"),
    "PLX-127": Formula(count_vertices, "reddit"),
    "PLX-128": Formula(count_edges, "reddit"),
    "PLX-129": Formula(count_nonzeros, "reddit"),
    "PLX-130": Formula(count_features, "reddit"),
    "PLX-131": Formula(count_classes, "reddit"),
    "PLX-132": Formula(count_vertices, "ogbn-products"),
    "PLX-133": Formula(count_stored_edges, "ogbn-products"),
    "PLX-134": Formula(count_nonzeros, "ogbn-products"),
    "PLX-135": Formula(count_features, "ogbn-products"),
    "PLX-136": Formula(count_classes, "ogbn-products"),
    "PLX-137": Formula(count_vertices, "isolate-3-8m"),
    "PLX-138": Formula(count_edges, "isolate-3-8m"),
    "PLX-139": Formula(count_nonzeros, "isolate-3-8m"),
    "PLX-140": Formula(count_features, "isolate-3-8m"),
    "PLX-141": Formula(count_classes, "isolate-3-8m"),
    "PLX-142": Formula(count_vertices, "products-14m"),
    "PLX-143": Formula(count_distinct_edges, "cagnet-amazon"),
    "PLX-144": Formula(count_nonzeros, "products-14m"),
    "PLX-145": Formula(count_features, "products-14m"),
    "PLX-146": Formula(count_classes, "products-14m"),
    "PLX-147": Formula(count_vertices, "europe-osm"),
    "PLX-148": Formula(count_edges, "europe-osm"),
    "PLX-149": Formula(count_nonzeros, "europe-osm"),
    "PLX-150": Formula(count_features, "europe-osm"),
    "PLX-151": Formula(count_classes, "europe-osm"),
    "PLX-152": Formula(count_vertices, "ogbn-papers100m"),
    "PLX-153": Formula(count_stored_edges, "ogbn-papers100m"),
    "PLX-154": Formula(count_nonzeros, "ogbn-papers100m"),
    "PLX-155": Formula(count_features, "ogbn-papers100m"),
    "PLX-156": Formula(count_classes, "ogbn-papers100m"),
    "PLX-157": Formula(count_implied_loops, "reddit"),
    "PLX-158": Formula(count_implied_loops_of_stored, "ogbn-products"),
    "PLX-159": Formula(count_implied_loops, "isolate-3-8m"),
    "PLX-160": Formula(count_stored_loops, "cagnet-amazon"),
    "PLX-161": Formula(count_implied_loops, "europe-osm"),
    "PLX-162": Formula(count_directed_loops, "ogbn-papers100m"),
    "PLX-163": Formula(find_common_features, "isolate-3-8m", "products-14m", "europe-osm"),
    "PLX-164": Formula(find_common_classes, "isolate-3-8m", "products-14m", "europe-osm"),
    "PLX-165": Formula(find_common_setting, "layers", FIGURE_8, FIGURE_10),
    "PLX-166": Formula(find_common_setting, "hidden", FIGURE_8, FIGURE_10),
    "PLX-167": Formula(count_all_epochs, FIGURE_10),
    "PLX-168": Formula(find_common_setting, "epochs", FIGURE_8, FIGURE_10),
    "PLX-169": Formula(count_trials, FIGURE_8, FIGURE_10),
    "PLX-171": Formula(find_setting, FIGURE_7.narrow(strategy="plexus"), "ranks"),
    "PLX-172": Formula(find_setting, FIGURE_8.narrow(strategy="bns-gcn"), "p"),
    "PLX-174": Formula(is_scaling, predict_figure_8("plexus", "reddit")),
    "PLX-176": Formula(is_sa_not_scaling, "reddit"),
    "PLX-177": Formula(find_speedup_over_bns, "reddit", 32),
    "PLX-178": Formula(find_speedup_over_sa, "reddit"),
    "PLX-179": Formula(
        is_faster_for_choices,
        predict_figure_8("bns-gcn", "isolate-3-8m", 64),
        predict_figure_8("bns-gcn", "isolate-3-8m", 128),
    ),
    "PLX-180": Formula(find_speedup_over_bns, "isolate-3-8m", 256),
    "PLX-181": Formula(is_scaling, predict_figure_8("plexus", "isolate-3-8m")),
    "PLX-182": Formula(
        is_faster_for_choices,
        predict_figure_8("bns-gcn", "products-14m", 64),
        predict_figure_8("bns-gcn", "products-14m", 128),
    ),
    "PLX-183": Formula(is_sa_scaling, "products-14m"),
    "PLX-186": Formula(is_scaling, predict_figure_8("plexus", "products-14m")),
    "PLX-187": Formula(find_speedup_over_sa, "products-14m"),
    "PLX-188": Formula(find_speedup_over_bns, "products-14m", 256),
    "PLX-189": Formula(has_crossover_with_bns, "products-14m", 32, 64),
    "PLX-190": Formula(count_vertices_of_parts, "products-14m", 32, twin=PARTITIONED_TWIN),
    "PLX-191": Formula(count_vertices_of_parts, "products-14m", 256, twin=PARTITIONED_TWIN),
    "PLX-192": Formula(find_longest_seconds, predict_figure_8("plexus", "products-14m"), (32, 64, 128, 256)),
    "PLX-194": Formula(has_crossover_of_datasets, "products-14m", "isolate-3-8m", 16, 128),
    "PLX-195": Formula(find_smallest, FIGURE_10.narrow(dataset="isolate-3-8m", machine=PERLMUTTER), "ranks"),
    "PLX-196": Formula(is_scaling, FIGURE_10_PERLMUTTER.narrow(dataset="europe-osm")),
    "PLX-197": Formula(is_scaling, FIGURE_10_PERLMUTTER.narrow(dataset="ogbn-papers100m")),
    "PLX-198": Formula(is_scaling, FIGURE_10_FRONTIER.narrow(dataset="ogbn-papers100m")),
    "PLX-199": Formula(divide_product_times, ("frontier", "4x4x4"), ("perlmutter", "4x4x4")),
}
