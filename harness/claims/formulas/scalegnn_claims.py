"""The formulas of the claims of ScaleGNN."""

from dataclasses import replace

from harness.claims.estimates import Estimate
from harness.claims.evidence import Evidence
from harness.claims.formula import Formula, Formulas, Value
from harness.claims.formulas.quantities import (
    count_devices_per_node,
    count_distinct_edges,
    count_nics_per_node,
    count_stored_edges,
    count_vertices,
    divide_epoch_times,
    divide_evaluation_times,
    divide_seconds_to_target,
    find_accuracy_percent,
    find_common_classes,
    find_common_features,
    find_common_setting,
    find_device_memory,
    find_epoch_seconds,
    find_evaluation_seconds,
    find_largest,
    find_node_bandwidth,
    find_percent,
    find_seconds_to_target,
    find_smallest,
    list_rank_counts,
    simplify,
    subtract_accuracies,
)
from harness.claims.printed_units import in_unit
from harness.claims.selection import Selection, TrainingSettings, select
from harness.ledger import MOVING, SAMPLING, AxisName, Direction, Phase

FIGURE_5, FIGURE_6, FIGURE_7 = (select(f"scalegnn-figure-{number}") for number in (5, 6, 7))
TABLE_1, TABLE_2 = (select(f"scalegnn-table-{number}") for number in (1, 2))
BATCH = 65536
OPTIMIZATIONS: tuple[TrainingSettings, ...] = (
    {"prefetch": False, "wire": "full", "fused": False, "overlap": False},
    {"prefetch": True, "wire": "full", "fused": False, "overlap": False},
    {"prefetch": True, "wire": "bf16", "fused": False, "overlap": False},
    {"prefetch": True, "wire": "bf16", "fused": True, "overlap": False},
    {"prefetch": True, "wire": "bf16", "fused": True, "overlap": True},
)
"""The bars of figure 5: no optimization, then one more at each step."""


# Replays.


@in_unit("bytes")
def count_bytes_of_sampling(evidence: Evidence) -> float:
    """Count the bytes that a rank sends while it samples."""
    replayed = evidence.replay_rank("scalegnn", "ogbn-products", 8, "1x2x2x2", batch=BATCH)
    return replayed.count_work(phase="sample").bytes


def count_shards(evidence: Evidence) -> float:
    """Count the shards of A that a rank holds for six layers: three layers take three."""

    def count_bytes(layers: int) -> int:
        replayed = evidence.replay_rank(
            "scalegnn", "ogbn-products", 27, "1x3x3x3", rank=5, layers=layers, batch=BATCH
        )
        return replayed.held_bytes["A"]

    return 3 * count_bytes(6) / count_bytes(3)


# Grids.


def find_shape(evidence: Evidence, runs: Selection) -> str:
    """Return the sizes of the grid without its data-parallel axis of size one, as 2x2x2."""
    (grid,) = evidence.list_values(runs, "grid")
    sizes = dict(axis.split("=") for axis in grid.split(","))
    return "x".join(size for axis, size in sizes.items() if axis != AxisName.D)


def find_smallest_replicas(evidence: Evidence, runs: Selection) -> Value:
    """Return the size of the data-parallel axis on the fewest ranks, the same for all datasets."""
    sizes = []
    for dataset in evidence.list_values(runs, "dataset"):
        line = runs.narrow(dataset=dataset)
        specs = evidence.list_runs(line.narrow(ranks=list_rank_counts(evidence, line)[0]))
        sizes += [spec.grid[AxisName.D] for spec in specs]
    return simplify(sizes)


# Figure 5: optimizations.


def figure_5(step: int, ranks: int) -> Selection:
    """Select the runs with the first `step` optimizations."""
    return FIGURE_5.narrow(ranks=ranks, **OPTIMIZATIONS[step])


@in_unit("percent")
def find_communication_percent(evidence: Evidence, ranks: int) -> Estimate:
    """Return the share of communication outside sampling in the epoch without optimizations."""
    times = evidence.time_epoch(figure_5(0, ranks))
    return times.compute_percent_under(lambda key: key.op in MOVING and key.phase not in SAMPLING)


@in_unit("percent")
def find_sampling_percent(evidence: Evidence, ranks: int) -> Estimate:
    """Return the share of sampling in the epoch without optimizations."""
    return evidence.time_epoch(figure_5(0, ranks)).compute_percent_under(lambda key: key.phase in SAMPLING)


@in_unit("percent")
def find_computation_percent(evidence: Evidence, ranks: int) -> Estimate:
    """Return the share of everything else in the epoch without optimizations."""
    times = evidence.time_epoch(figure_5(0, ranks))
    return times.compute_percent_under(lambda key: key.op not in MOVING and key.phase not in SAMPLING)


def find_speedup_of_optimizations(evidence: Evidence, ranks: int) -> Estimate:
    """Return the speed-up of all optimizations together."""
    return divide_epoch_times(evidence, figure_5(0, ranks), figure_5(-1, ranks))


@in_unit("percent")
def find_percent_saved(evidence: Evidence, step: int, ranks: int) -> Estimate:
    """Return the percentage of the epoch that one more optimization saves.

    It has no interval: that of a small difference has both signs, and contains every printed value.
    """
    ratio = divide_epoch_times(evidence, figure_5(step, ranks), figure_5(step - 1, ranks))
    return 100 * (1 - replace(ratio, low=ratio.least, high=ratio.largest))


# Figure 6, tables 1 and 2: runs to a target accuracy, accuracies, evaluations.


def figure_6(strategy: str, dataset: str, machine: str, ranks: int) -> Selection:
    """Select the runs of a bar of figure 6."""
    return FIGURE_6.narrow(strategy=strategy, dataset=dataset, machine=machine, ranks=ranks)


def find_speedup_to_target(evidence: Evidence, over: str, dataset: str, machine: str, ranks: int) -> float:
    """Return the speed-up of the time to the target accuracy over another strategy."""
    slower, faster = (figure_6(name, dataset, machine, ranks) for name in (over, "scalegnn"))
    return divide_seconds_to_target(evidence, slower, faster)


def list_rank_counts_below(
    evidence: Evidence, line: Selection, counts: tuple[int, ...], percent: float
) -> list[int]:
    """List the numbers of ranks, among some, on which the accuracy stays below a target."""
    return [ranks for ranks in counts if find_accuracy_percent(evidence, line.narrow(ranks=ranks)) < percent]


@in_unit("points")
def find_accuracy_gain_over(evidence: Evidence, strategy: str, dataset: str) -> float:
    """Return the percentage points by which ScaleGNN is more accurate than another strategy."""
    runs = TABLE_1.narrow(dataset=dataset)
    return subtract_accuracies(evidence, runs.narrow(strategy="scalegnn"), runs.narrow(strategy=strategy))


def list_same_accuracies_in_bf16(evidence: Evidence, *datasets: str) -> list[bool]:
    """List whether messages in bf16 change the accuracy on each dataset by less than one percentage point."""

    def is_same(runs: Selection) -> bool:
        return abs(subtract_accuracies(evidence, runs.narrow(wire="bf16"), runs.narrow(wire="full"))) < 1

    return [is_same(TABLE_1.narrow(strategy="scalegnn", dataset=dataset)) for dataset in datasets]


def find_evaluation_speedup(evidence: Evidence, over: str, dataset: str, ranks: int) -> Estimate:
    """Return the speed-up of an evaluation over another strategy."""
    runs = TABLE_2.narrow(dataset=dataset, ranks=ranks)
    return divide_evaluation_times(evidence, runs.narrow(strategy=over), runs.narrow(strategy="scalegnn"))


# DistDGL, MassiveGNN and SALIENT++ evaluate by sampling, as in training (section VII-B). Their evaluations here
# multiply the whole graph instead, so those of the paper are predicted from the sampling, the fetching and the forward
# pass of training.

EVALUATION_TWINS = {"reddit": "1/10,1/7,1/5", "ogbn-products": "1/40,1/24,1/12"}
"""The scales of the twins for SALIENT++, whose cache depends on the edges."""


@in_unit("s")
def find_sampled_evaluation_seconds(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the time of sampling, fetching and the forward pass for all vertices, with the batches of training.

    The paper names neither the batch nor the vertices of an evaluation.
    """
    return time_sampled_evaluation(evidence, runs)


def time_sampled_evaluation(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the seconds of a sampled evaluation: the epoch without its backward pass, for all vertices."""
    (dataset,) = evidence.list_values(runs, "dataset")
    (strategy,) = evidence.list_values(runs, "strategy")
    if strategy == "salient":
        runs = runs.with_twins(EVALUATION_TWINS[dataset])
    seconds = evidence.time_epoch(runs).compute_seconds_under(
        lambda key: key.direction == Direction.FORWARD and key.phase not in (Phase.SYNC, Phase.OPTIMIZE)
    )
    facts = evidence.load_facts(dataset)
    return seconds * (facts.vertices / facts.training)


def find_sampled_evaluation_speedup(evidence: Evidence, over: str, dataset: str, ranks: int) -> Estimate:
    """Return the speed-up of an evaluation over another strategy's sampled one."""
    runs = TABLE_2.narrow(dataset=dataset, ranks=ranks)
    mine = evidence.time_evaluation(runs.narrow(strategy="scalegnn")).seconds
    return time_sampled_evaluation(evidence, runs.narrow(strategy=over)) / mine


# Figure 7: strong scaling.


def find_speedup(evidence: Evidence, dataset: str, machine: str, few: int, many: int) -> Estimate:
    """Return the speed-up of many ranks over few."""
    line = FIGURE_7.narrow(dataset=dataset, machine=machine)
    return divide_epoch_times(evidence, line.narrow(ranks=few), line.narrow(ranks=many))


@in_unit("percent")
def find_parallel_efficiency(evidence: Evidence, dataset: str, machine: str, few: int, many: int) -> Estimate:
    """Return the speed-up over the ideal one, in percent."""
    return 100 * find_speedup(evidence, dataset, machine, few, many) * (few / many)


FORMULAS: Formulas = {
    "SGN-001": Formula(find_speedup_to_target, "salient", "ogbn-products", "perlmutter", 64),
    "SGN-002": Formula(find_largest, FIGURE_7.narrow(machine="perlmutter"), "ranks"),
    "SGN-003": Formula(find_largest, FIGURE_7.narrow(machine="frontier"), "ranks"),
    "SGN-004": Formula(find_largest, FIGURE_7.narrow(machine="tuolumne"), "ranks"),
    "SGN-008": Formula(count_bytes_of_sampling),
    "SGN-009": Formula(count_shards),
    "SGN-012": Formula(list_same_accuracies_in_bf16, "ogbn-products", "reddit"),
    "SGN-013": Formula(find_shape, FIGURE_5.narrow(ranks=8)),
    "SGN-014": Formula(find_communication_percent, 8),
    "SGN-015": Formula(find_sampling_percent, 8),
    "SGN-016": Formula(find_computation_percent, 8),
    "SGN-017": Formula(find_speedup_of_optimizations, 8),
    "SGN-018": Formula(find_speedup_of_optimizations, 32),
    "SGN-019": Formula(find_percent_saved, 1, 8),
    "SGN-020": Formula(find_percent_saved, 1, 32),
    "SGN-021": Formula(find_percent_saved, 2, 8),
    "SGN-022": Formula(find_percent_saved, 2, 32),
    "SGN-023": Formula(find_percent_saved, 3, 8),
    "SGN-024": Formula(find_percent_saved, 3, 32),
    "SGN-025": Formula(find_percent_saved, 4, 8),
    "SGN-026": Formula(find_percent_saved, 4, 32),
    "SGN-027": Formula(count_devices_per_node, "perlmutter"),
    "SGN-028": Formula(count_nics_per_node, "perlmutter"),
    "SGN-029": Formula(find_node_bandwidth, "perlmutter"),
    "SGN-030": Formula(count_devices_per_node, "frontier", 2),
    "SGN-031": Formula(count_devices_per_node, "frontier"),
    "SGN-032": Formula(find_device_memory, "frontier"),
    "SGN-033": Formula(find_node_bandwidth, "frontier"),
    "SGN-034": Formula(count_devices_per_node, "tuolumne"),
    "SGN-035": Formula(find_device_memory, "tuolumne"),
    "SGN-036": Formula(count_nics_per_node, "tuolumne"),
    "SGN-037": Formula(find_node_bandwidth, "tuolumne"),
    "SGN-038": Formula(
        find_common_setting, "p", FIGURE_6.narrow(strategy="bns-gcn"), TABLE_2.narrow(strategy="bns-gcn")
    ),
    "SGN-039": Formula(count_vertices, "isolate-3-8m"),
    "SGN-040": Formula(count_vertices, "products-14m"),
    "SGN-041": Formula(count_distinct_edges, "cagnet-amazon"),
    "SGN-042": Formula(count_vertices, "ogbn-papers100m"),
    "SGN-043": Formula(count_stored_edges, "ogbn-papers100m"),
    "SGN-044": Formula(find_common_features, "isolate-3-8m", "products-14m"),
    "SGN-045": Formula(find_common_classes, "isolate-3-8m", "products-14m"),
    "SGN-046": Formula(find_percent, FIGURE_6.narrow(dataset="reddit"), "target"),
    "SGN-047": Formula(find_percent, FIGURE_6.narrow(dataset="ogbn-products"), "target"),
    "SGN-048": Formula(find_accuracy_percent, TABLE_1.narrow(strategy="graphsaint-node", dataset="reddit")),
    "SGN-049": Formula(
        find_accuracy_percent, TABLE_1.narrow(strategy="graphsaint-node", dataset="ogbn-products")
    ),
    "SGN-050": Formula(find_accuracy_percent, TABLE_1.narrow(strategy="graphsage", dataset="reddit")),
    "SGN-051": Formula(find_accuracy_percent, TABLE_1.narrow(strategy="graphsage", dataset="ogbn-products")),
    "SGN-052": Formula(find_accuracy_percent, TABLE_1.narrow(strategy="scalegnn", dataset="reddit")),
    "SGN-053": Formula(find_accuracy_percent, TABLE_1.narrow(strategy="scalegnn", dataset="ogbn-products")),
    "SGN-054": Formula(find_accuracy_gain_over, "graphsaint-node", "ogbn-products"),
    "SGN-055": Formula(find_accuracy_gain_over, "graphsage", "ogbn-products"),
    "SGN-056": Formula(
        find_smallest,
        FIGURE_6.narrow(strategy="massivegnn", dataset="ogbn-products", machine="perlmutter"),
        "ranks",
    ),
    "SGN-057": Formula(
        find_smallest,
        FIGURE_6.narrow(strategy="massivegnn", dataset="ogbn-products", machine="frontier"),
        "ranks",
    ),
    "SGN-058": Formula(find_seconds_to_target, figure_6("scalegnn", "reddit", "perlmutter", 4)),
    "SGN-059": Formula(find_seconds_to_target, figure_6("scalegnn", "reddit", "perlmutter", 16)),
    "SGN-060": Formula(find_seconds_to_target, figure_6("salient", "reddit", "perlmutter", 4)),
    "SGN-061": Formula(find_seconds_to_target, figure_6("salient", "reddit", "perlmutter", 16)),
    "SGN-062": Formula(find_seconds_to_target, figure_6("bns-gcn", "reddit", "perlmutter", 4)),
    "SGN-063": Formula(find_seconds_to_target, figure_6("bns-gcn", "reddit", "perlmutter", 16)),
    "SGN-064": Formula(find_seconds_to_target, figure_6("scalegnn", "ogbn-products", "perlmutter", 8)),
    "SGN-065": Formula(find_seconds_to_target, figure_6("salient", "ogbn-products", "perlmutter", 8)),
    "SGN-066": Formula(find_seconds_to_target, figure_6("bns-gcn", "ogbn-products", "perlmutter", 8)),
    "SGN-067": Formula(find_seconds_to_target, figure_6("scalegnn", "ogbn-products", "perlmutter", 64)),
    "SGN-068": Formula(find_seconds_to_target, figure_6("salient", "ogbn-products", "perlmutter", 64)),
    "SGN-069": Formula(find_seconds_to_target, figure_6("bns-gcn", "ogbn-products", "perlmutter", 64)),
    "SGN-070": Formula(find_seconds_to_target, figure_6("scalegnn", "reddit", "frontier", 16)),
    "SGN-071": Formula(find_seconds_to_target, figure_6("distdgl", "reddit", "frontier", 16)),
    "SGN-072": Formula(find_seconds_to_target, figure_6("massivegnn", "reddit", "frontier", 16)),
    "SGN-073": Formula(find_seconds_to_target, figure_6("scalegnn", "ogbn-products", "frontier", 32)),
    "SGN-074": Formula(find_seconds_to_target, figure_6("massivegnn", "ogbn-products", "frontier", 32)),
    "SGN-075": Formula(find_seconds_to_target, figure_6("distdgl", "ogbn-products", "frontier", 32)),
    "SGN-076": Formula(find_speedup_to_target, "salient", "reddit", "perlmutter", 16),
    "SGN-077": Formula(find_speedup_to_target, "bns-gcn", "reddit", "perlmutter", 16),
    "SGN-078": Formula(find_speedup_to_target, "salient", "ogbn-products", "perlmutter", 8),
    "SGN-079": Formula(find_speedup_to_target, "bns-gcn", "ogbn-products", "perlmutter", 8),
    "SGN-080": Formula(find_speedup_to_target, "salient", "ogbn-products", "perlmutter", 64),
    "SGN-081": Formula(find_speedup_to_target, "bns-gcn", "ogbn-products", "perlmutter", 64),
    "SGN-082": Formula(find_speedup_to_target, "massivegnn", "ogbn-products", "frontier", 32),
    "SGN-083": Formula(find_speedup_to_target, "distdgl", "ogbn-products", "frontier", 32),
    "SGN-084": Formula(find_speedup_to_target, "distdgl", "reddit", "perlmutter", 16),
    "SGN-085": Formula(
        list_rank_counts_below,
        FIGURE_6.narrow(strategy="distdgl", dataset="ogbn-products", machine="frontier"),
        (8, 16),
        79,
    ),
    "SGN-086": Formula(
        find_sampled_evaluation_seconds, TABLE_2.narrow(strategy="distdgl", dataset="reddit", ranks=4)
    ),
    "SGN-087": Formula(
        find_sampled_evaluation_seconds, TABLE_2.narrow(strategy="distdgl", dataset="ogbn-products", ranks=8)
    ),
    "SGN-088": Formula(
        find_sampled_evaluation_seconds, TABLE_2.narrow(strategy="salient", dataset="reddit", ranks=4)
    ),
    "SGN-089": Formula(
        find_sampled_evaluation_seconds, TABLE_2.narrow(strategy="salient", dataset="ogbn-products", ranks=8)
    ),
    "SGN-090": Formula(
        find_evaluation_seconds, TABLE_2.narrow(strategy="bns-gcn", dataset="reddit", ranks=4)
    ),
    "SGN-091": Formula(
        find_evaluation_seconds, TABLE_2.narrow(strategy="bns-gcn", dataset="ogbn-products", ranks=8)
    ),
    "SGN-092": Formula(
        find_evaluation_seconds, TABLE_2.narrow(strategy="scalegnn", dataset="reddit", ranks=4)
    ),
    "SGN-093": Formula(
        find_evaluation_seconds, TABLE_2.narrow(strategy="scalegnn", dataset="ogbn-products", ranks=8)
    ),
    "SGN-094": Formula(find_evaluation_speedup, "bns-gcn", "ogbn-products", 8),
    "SGN-095": Formula(find_sampled_evaluation_speedup, "salient", "ogbn-products", 8),
    "SGN-096": Formula(find_sampled_evaluation_speedup, "distdgl", "ogbn-products", 8),
    "SGN-097": Formula(find_evaluation_speedup, "bns-gcn", "reddit", 4),
    "SGN-098": Formula(find_sampled_evaluation_speedup, "salient", "reddit", 4),
    "SGN-099": Formula(find_sampled_evaluation_speedup, "distdgl", "reddit", 4),
    "SGN-100": Formula(find_speedup, "ogbn-papers100m", "perlmutter", 64, 2048),
    "SGN-101": Formula(find_parallel_efficiency, "ogbn-papers100m", "perlmutter", 64, 2048),
    "SGN-102": Formula(find_speedup, "products-14m", "perlmutter", 32, 1024),
    "SGN-103": Formula(find_parallel_efficiency, "products-14m", "perlmutter", 32, 1024),
    "SGN-104": Formula(find_speedup, "isolate-3-8m", "perlmutter", 16, 256),
    "SGN-105": Formula(find_parallel_efficiency, "isolate-3-8m", "perlmutter", 16, 256),
    "SGN-106": Formula(find_speedup, "ogbn-products", "perlmutter", 8, 128),
    "SGN-107": Formula(find_parallel_efficiency, "ogbn-products", "perlmutter", 8, 128),
    "SGN-108": Formula(find_speedup, "products-14m", "frontier", 32, 1024),
    "SGN-109": Formula(find_parallel_efficiency, "products-14m", "frontier", 32, 1024),
    "SGN-110": Formula(find_speedup, "isolate-3-8m", "frontier", 16, 512),
    "SGN-111": Formula(find_parallel_efficiency, "isolate-3-8m", "frontier", 16, 512),
    "SGN-112": Formula(find_speedup, "ogbn-papers100m", "frontier", 64, 2048),
    "SGN-113": Formula(find_parallel_efficiency, "ogbn-papers100m", "frontier", 64, 2048),
    "SGN-114": Formula(find_speedup, "products-14m", "tuolumne", 32, 1024),
    "SGN-115": Formula(find_parallel_efficiency, "products-14m", "tuolumne", 32, 1024),
    "SGN-116": Formula(find_speedup, "ogbn-papers100m", "tuolumne", 64, 1024),
    "SGN-117": Formula(find_parallel_efficiency, "ogbn-papers100m", "tuolumne", 64, 1024),
    "SGN-118": Formula(find_speedup, "isolate-3-8m", "tuolumne", 16, 512),
    "SGN-119": Formula(find_parallel_efficiency, "isolate-3-8m", "tuolumne", 16, 512),
    "SGN-120": Formula(
        find_epoch_seconds, FIGURE_7.narrow(dataset="ogbn-papers100m", machine="perlmutter", ranks=64)
    ),
    "SGN-121": Formula(
        find_epoch_seconds, FIGURE_7.narrow(dataset="ogbn-papers100m", machine="perlmutter", ranks=2048)
    ),
    "SGN-122": Formula(
        find_epoch_seconds, FIGURE_7.narrow(dataset="products-14m", machine="frontier", ranks=32)
    ),
    "SGN-123": Formula(
        find_epoch_seconds, FIGURE_7.narrow(dataset="products-14m", machine="frontier", ranks=1024)
    ),
    "SGN-124": Formula(
        find_epoch_seconds, FIGURE_7.narrow(dataset="products-14m", machine="tuolumne", ranks=32)
    ),
    "SGN-125": Formula(
        find_epoch_seconds, FIGURE_7.narrow(dataset="products-14m", machine="tuolumne", ranks=1024)
    ),
    "SGN-126": Formula(find_smallest_replicas, FIGURE_7),
}
