"""The formulas of the claims of G3."""

from harness.claims.estimates import Estimate
from harness.claims.evidence import Evidence
from harness.claims.formula import Formula, Formulas
from harness.claims.formulas.quantities import (
    average_degree_both_ways,
    count_classes,
    count_directed_edges,
    count_features,
    count_stored_edges,
    count_training_vertices,
    count_vertices,
    divide_epoch_times,
    find_accuracy_percent,
    find_common_setting,
    find_node_bandwidth,
    find_setting,
    find_setting_milliseconds,
    find_setting_of_datasets,
    halve_stored_edges,
    is_printed_at_most,
    list_rank_counts,
    subtract_accuracies,
)
from harness.claims.printed_units import in_unit
from harness.claims.selection import Selection, select

FIGURE_7 = select("g3-figure-7")
FIGURE_12 = select("g3-figure-12")
FIGURE_13 = select("g3-figure-13")
FIGURE_14 = select("g3-figure-14")
FIGURE_11 = select("g3-figure-11", strategy="g3")
TWINS = "1/20,1/12,1/7"
"""The scales of the twins of ogbn-products: samplers of partitioned graphs need edges."""
BATCH, DEVICES = 1000, 16


def divide_largest_by_smallest_ranks(evidence: Evidence, runs: Selection) -> float:
    """Return the largest number of ranks over the smallest."""
    counts = list_rank_counts(evidence, runs)
    return counts[-1] / counts[0]


def average_degree_of_halved_edges(evidence: Evidence, dataset: str) -> float:
    """Return each edge once over the vertices, of a file that stores both directions."""
    return halve_stored_edges(evidence, dataset) / count_vertices(evidence, dataset)


def average_directed_degree(evidence: Evidence, dataset: str) -> float:
    """Return the edges in both directions over the vertices."""
    return count_directed_edges(evidence, dataset) / count_vertices(evidence, dataset)


def find_speedup_over_distdgl(evidence: Evidence, ranks: int) -> Estimate:
    """Return the speed-up of GraphSAGE's epoch on ogbn-products over DistDGL."""
    runs = FIGURE_7.narrow(dataset="ogbn-products", ranks=ranks, kind="sage")
    slower = runs.narrow(strategy="distdgl").with_twins(TWINS)
    return divide_epoch_times(evidence, slower, runs.narrow(strategy="g3"))


def find_largest_speedup_over_distdgl(evidence: Evidence, *counts: int) -> Estimate:
    """Return the largest of these speed-ups among some numbers of ranks."""
    return max(find_speedup_over_distdgl(evidence, ranks) for ranks in counts)


@in_unit("points")
def find_accuracy_gain_over(evidence: Evidence, strategy: str) -> float:
    """Return the percentage points by which G3 is more accurate on ogbn-papers100M."""
    runs = FIGURE_12.narrow(dataset="ogbn-papers100m")
    return subtract_accuracies(evidence, runs.narrow(strategy="g3"), runs.narrow(strategy=strategy))


def count_model_updates(evidence: Evidence, dataset: str) -> float:
    """Count the model updates in an epoch of mini-batches on all devices."""
    return count_training_vertices(evidence, dataset) / (DEVICES * BATCH)


def find_feature_range(evidence: Evidence, runs: Selection) -> str:
    """Return the smallest and the largest number of input features among the selected runs."""
    specs = evidence.list_runs(runs, any_grid=True)
    widths = sorted({count_features(evidence, spec.dataset.name) for spec in specs})
    return f"{widths[0]}-{widths[-1]}"


FORMULAS: Formulas = {
    "G3-001": Formula(Evidence.read_printed, "G3-077"),
    "G3-002": Formula(find_accuracy_gain_over, "distdgl"),
    "G3-010": Formula(divide_largest_by_smallest_ranks, FIGURE_7),
    "G3-016": Formula(count_vertices, "ogbn-products"),
    "G3-017": Formula(count_stored_edges, "ogbn-products"),
    "G3-018": Formula(count_features, "ogbn-products"),
    "G3-019": Formula(count_classes, "ogbn-products"),
    "G3-020": Formula(average_degree_both_ways, "ogbn-products"),
    "G3-021": Formula(count_vertices, "graphsaint-amazon"),
    "G3-022": Formula(halve_stored_edges, "graphsaint-amazon"),
    "G3-023": Formula(count_features, "graphsaint-amazon"),
    "G3-024": Formula(count_classes, "graphsaint-amazon"),
    "G3-025": Formula(average_degree_of_halved_edges, "graphsaint-amazon"),
    "G3-026": Formula(count_vertices, "ogbn-papers100m"),
    "G3-027": Formula(count_stored_edges, "ogbn-papers100m"),
    "G3-028": Formula(count_features, "ogbn-papers100m"),
    "G3-029": Formula(count_classes, "ogbn-papers100m"),
    "G3-030": Formula(average_degree_both_ways, "ogbn-papers100m"),
    "G3-031": Formula(count_vertices, "twitter-2010"),
    "G3-032": Formula(count_directed_edges, "twitter-2010"),
    "G3-033": Formula(count_features, "twitter-2010"),
    "G3-034": Formula(count_classes, "twitter-2010"),
    "G3-035": Formula(average_directed_degree, "twitter-2010"),
    "G3-044": Formula(find_node_bandwidth, "g3-cluster"),
    "G3-051": Formula(find_setting, FIGURE_7, "layers"),
    "G3-052": Formula(find_setting, FIGURE_7, "hidden"),
    "G3-053": Formula(find_setting, FIGURE_7.narrow(kind="gat"), "heads"),
    "G3-054": Formula(find_setting, FIGURE_13.narrow(strategy="bns-gcn"), "p"),
    "G3-055": Formula(find_setting, FIGURE_7.narrow(strategy="distdgl"), "batch"),
    "G3-056": Formula(find_setting, FIGURE_7.narrow(strategy="distdgl"), "fanouts"),
    "G3-057": Formula(find_setting_of_datasets, FIGURE_11, "bin_nodes", "ogbn-products", "graphsaint-amazon"),
    "G3-058": Formula(find_setting_of_datasets, FIGURE_11, "bin_nodes", "ogbn-papers100m", "twitter-2010"),
    "G3-059": Formula(
        find_common_setting,
        "bin_nodes",
        *(select(f"g3-figure-{number}", strategy="g3") for number in (7, 8, 9, 10)),
    ),
    "G3-060": Formula(find_largest_speedup_over_distdgl, 8, 16),
    "G3-068": Formula(find_speedup_over_distdgl, 16),
    "G3-071": Formula(is_printed_at_most, "G3-072", "G3-071"),
    "G3-082": Formula(find_accuracy_percent, FIGURE_12.narrow(strategy="g3", dataset="ogbn-products")),
    "G3-083": Formula(find_accuracy_percent, FIGURE_12.narrow(strategy="g3", dataset="graphsaint-amazon")),
    "G3-084": Formula(find_accuracy_percent, FIGURE_12.narrow(strategy="g3", dataset="ogbn-papers100m")),
    "G3-085": Formula(is_printed_at_most, "G3-085", "G3-078"),
    "G3-086": Formula(Evidence.read_printed, "G3-077"),
    "G3-088": Formula(
        find_accuracy_percent, FIGURE_12.narrow(strategy="cluster-gcn", dataset="ogbn-papers100m")
    ),
    "G3-089": Formula(find_accuracy_gain_over, "distdgl"),
    "G3-090": Formula(find_accuracy_gain_over, "distdgl"),
    "G3-091": Formula(find_accuracy_gain_over, "cluster-gcn"),
    "G3-092": Formula(count_model_updates, "ogbn-papers100m"),
    "G3-106": Formula(find_setting_milliseconds, FIGURE_13, "utilisation_ms"),
    "G3-108": Formula(find_setting, FIGURE_14.narrow(strategy="distdgl", layers=2), "fanouts"),
    "G3-109": Formula(find_setting, FIGURE_14.narrow(strategy="distdgl", layers=3), "fanouts"),
    "G3-110": Formula(find_setting, FIGURE_14.narrow(strategy="distdgl", layers=4), "fanouts"),
    "G3-115": Formula(find_feature_range, select("g3-figure-15")),
}
