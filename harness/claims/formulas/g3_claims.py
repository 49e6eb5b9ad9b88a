"""The formulas of the claims of G3."""

from collections.abc import Sequence

from harness.claims.estimates import (
    Estimate,
    average,
    find_largest_estimate,
    find_smallest_estimate,
)
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
    find_epoch_seconds,
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

PRODUCTS, AMAZON, PAPERS, TWITTER = "ogbn-products", "graphsaint-amazon", "ogbn-papers100m", "twitter-2010"
FIGURE_2, FIGURE_7, FIGURE_11, FIGURE_12, FIGURE_13, FIGURE_14, FIGURE_15, FIGURE_17 = (
    select(f"g3-figure-{number}") for number in (2, 7, 11, 12, 13, 14, 15, 17)
)
BINS = FIGURE_11.narrow(strategy="g3")
SCALING = {
    dataset: select(f"g3-figure-{number}", dataset=dataset)
    for number, dataset in ((7, PRODUCTS), (8, AMAZON), (9, PAPERS), (10, TWITTER))
}
"""Figures 7 to 10, by dataset."""
MODELS = ("sage", "gcn", "gat")
TRANSPORTS = ("g3-cluster", "g3-cluster-gloo")
"""The machine cards for BNS-GCN. The paper does not say whether its program sent by NCCL or, by default, by gloo."""
SMALL_GRAPHS = (PRODUCTS, AMAZON)
"""The graphs on which the full-graph baselines finish. The paper says that they run out of memory on large graphs."""
TWINS = "1/64,1/32,1/16"
"""The scales of the twins for NeutronStar, whose sizes depend on the edges."""
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


# Comparisons with mini-batches, from the cards of the graphs: neighbours of a vertex may be anywhere, for both systems.


def find_speedup_over_distdgl(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the speed-up of an epoch over DistDGL's."""
    return divide_epoch_times(evidence, runs.narrow(strategy="distdgl"), runs.narrow(strategy="g3"))


def find_largest_speedup_over_distdgl(evidence: Evidence, dataset: str) -> Estimate:
    """Return the largest speed-up among all models and numbers of ranks of figures 7 to 10."""
    line = SCALING[dataset]
    counts = list_rank_counts(evidence, line)
    runs = (line.narrow(ranks=ranks, kind=kind) for ranks in counts for kind in MODELS)
    return find_largest_estimate(find_speedup_over_distdgl(evidence, each) for each in runs)


def average_speedup_over_distdgl(evidence: Evidence, dataset: str) -> Estimate:
    """Return the mean speed-up of the three models on 16 ranks."""
    runs = SCALING[dataset].narrow(ranks=DEVICES)
    return average(find_speedup_over_distdgl(evidence, runs.narrow(kind=kind)) for kind in MODELS)


def list_speedups_over_distdgl(evidence: Evidence, kinds: Sequence[str]) -> list[Estimate]:
    """List the speed-ups of some models on 16 ranks and all four graphs."""
    lines = (line.narrow(ranks=DEVICES, kind=kind) for line in SCALING.values() for kind in kinds)
    return [find_speedup_over_distdgl(evidence, runs) for runs in lines]


def find_least_speedup_of_models(evidence: Evidence, *kinds: str) -> Estimate:
    """Return the smallest speed-up of some models over DistDGL on 16 ranks."""
    return find_smallest_estimate(list_speedups_over_distdgl(evidence, kinds))


def find_largest_speedup_of_models(evidence: Evidence, *kinds: str) -> Estimate:
    """Return the largest speed-up of some models over DistDGL on 16 ranks."""
    return find_largest_estimate(list_speedups_over_distdgl(evidence, kinds))


def list_scaling(evidence: Evidence, dataset: str, strategy: str) -> list[Estimate]:
    """List the speed-ups of the three models from 8 to 16 ranks."""
    line = SCALING[dataset].narrow(strategy=strategy)
    lines = (line.narrow(kind=kind) for kind in MODELS)
    return [divide_epoch_times(evidence, each.narrow(ranks=8), each.narrow(ranks=16)) for each in lines]


def find_largest_scaling(evidence: Evidence, dataset: str, strategy: str) -> Estimate:
    """Return the largest speed-up of the three models from 8 to 16 ranks."""
    return find_largest_estimate(list_scaling(evidence, dataset, strategy))


def average_scaling(evidence: Evidence, dataset: str, strategy: str) -> Estimate:
    """Return the mean speed-up of the three models from 8 to 16 ranks."""
    return average(list_scaling(evidence, dataset, strategy))


# Comparisons with full-graph systems.


def find_speedup_over(evidence: Evidence, strategy: str, dataset: str, kind: str) -> Estimate:
    """Return the speed-up over another full-graph system, each with its own partitions."""
    runs = FIGURE_11.narrow(dataset=dataset, kind=kind)
    slower = runs.narrow(strategy=strategy)
    if strategy == "neutronstar":
        slower = slower.with_twins(TWINS)
    if strategy == "bns-gcn":
        slower = slower.with_cards(*TRANSPORTS)
    return divide_epoch_times(evidence, slower, runs.narrow(strategy="g3"))


def average_speedup_over(evidence: Evidence, strategy: str, kind: str) -> Estimate:
    """Return the mean of this speed-up over the graphs on which the other system finishes."""
    return average(find_speedup_over(evidence, strategy, dataset, kind) for dataset in SMALL_GRAPHS)


def list_speedups_over_systems(evidence: Evidence) -> list[Estimate]:
    """List the speed-ups over both systems, of both models, on the graphs on which the systems finish."""
    return [
        find_speedup_over(evidence, strategy, dataset, kind)
        for strategy in ("bns-gcn", "neutronstar")
        for dataset in SMALL_GRAPHS
        for kind in ("sage", "gat")
    ]


def find_least_speedup_over_systems(evidence: Evidence) -> Estimate:
    """Return the smallest speed-up over both systems."""
    return find_smallest_estimate(list_speedups_over_systems(evidence))


def find_largest_speedup_over_systems(evidence: Evidence) -> Estimate:
    """Return the largest speed-up over both systems."""
    return find_largest_estimate(list_speedups_over_systems(evidence))


def find_largest_speedup_of_pipeline(evidence: Evidence) -> Estimate:
    """Return the largest speed-up of the whole pipeline over the sequential order, on both graphs and all ranks."""
    lines = (FIGURE_17.narrow(strategy="g3", dataset=dataset) for dataset in SMALL_GRAPHS)
    runs = [line.narrow(ranks=ranks) for line in lines for ranks in list_rank_counts(evidence, line)]
    return find_largest_estimate(
        divide_epoch_times(evidence, each.narrow(pipeline="sequential"), each.narrow(pipeline="full"))
        for each in runs
    )


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
    "G3-008": Formula(divide_epoch_times, FIGURE_2.narrow(ranks=2), FIGURE_2.narrow(ranks=16)),
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
    "G3-057": Formula(
        find_setting_of_datasets,
        FIGURE_11.narrow(strategy="g3"),
        "bin_nodes",
        "ogbn-products",
        "graphsaint-amazon",
    ),
    "G3-058": Formula(
        find_setting_of_datasets,
        FIGURE_11.narrow(strategy="g3"),
        "bin_nodes",
        "ogbn-papers100m",
        "twitter-2010",
    ),
    "G3-059": Formula(
        find_common_setting,
        "bin_nodes",
        *(select(f"g3-figure-{number}", strategy="g3") for number in (7, 8, 9, 10)),
    ),
    "G3-060": Formula(find_largest_speedup_over_distdgl, PRODUCTS),
    "G3-061": Formula(find_largest_speedup_over_distdgl, AMAZON),
    "G3-062": Formula(find_largest_speedup_over_distdgl, PAPERS),
    "G3-063": Formula(find_largest_speedup_over_distdgl, TWITTER),
    "G3-064": Formula(find_largest_scaling, PAPERS, "distdgl"),
    "G3-065": Formula(average_scaling, PAPERS, "g3"),
    "G3-066": Formula(average_scaling, TWITTER, "g3"),
    "G3-067": Formula(average_scaling, TWITTER, "distdgl"),
    "G3-068": Formula(average_speedup_over_distdgl, PRODUCTS),
    "G3-069": Formula(average_speedup_over_distdgl, AMAZON),
    "G3-070": Formula(average_speedup_over_distdgl, PAPERS),
    "G3-071": Formula(is_printed_at_most, "G3-072", "G3-071"),
    "G3-072": Formula(find_least_speedup_of_models, "sage", "gcn"),
    "G3-073": Formula(find_largest_speedup_of_models, "sage", "gcn"),
    "G3-074": Formula(find_least_speedup_of_models, "gat"),
    "G3-075": Formula(find_largest_speedup_of_models, "gat"),
    "G3-076": Formula(find_least_speedup_over_systems),
    "G3-077": Formula(find_largest_speedup_over_systems),
    "G3-078": Formula(average_speedup_over, "bns-gcn", "sage"),
    "G3-079": Formula(average_speedup_over, "bns-gcn", "gat"),
    "G3-080": Formula(average_speedup_over, "neutronstar", "sage"),
    "G3-081": Formula(average_speedup_over, "neutronstar", "gat"),
    "G3-082": Formula(find_accuracy_percent, FIGURE_12.narrow(strategy="g3", dataset="ogbn-products")),
    "G3-083": Formula(find_accuracy_percent, FIGURE_12.narrow(strategy="g3", dataset="graphsaint-amazon")),
    "G3-084": Formula(find_accuracy_percent, FIGURE_12.narrow(strategy="g3", dataset="ogbn-papers100m")),
    "G3-085": Formula(is_printed_at_most, "G3-085", "G3-078"),
    "G3-086": Formula(Evidence.read_printed, "G3-077"),
    "G3-087": Formula(find_epoch_seconds, FIGURE_12.narrow(strategy="cluster-gcn", dataset=PAPERS)),
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
    **{
        claim: Formula(find_speedup_over_distdgl, FIGURE_14.narrow(dataset=dataset, layers=4))
        for claim, dataset in (
            ("G3-003", PRODUCTS),
            ("G3-111", PRODUCTS),
            ("G3-112", AMAZON),
            ("G3-113", PAPERS),
            ("G3-114", TWITTER),
        )
    },
    **{
        claim: Formula(find_speedup_over_distdgl, FIGURE_15.narrow(dataset=f"{AMAZON}@1w256"))
        for claim in ("G3-004", "G3-116")
    },
    "G3-118": Formula(find_largest_speedup_of_pipeline),
    "G3-115": Formula(find_feature_range, select("g3-figure-15")),
}
