"""The formulas of the claims on bulk sampling by products of matrices."""

from harness.claims.estimates import Estimate, enclose
from harness.claims.evidence import Evidence
from harness.claims.formula import Formula, Formulas
from harness.claims.formulas.quantities import (
    average_degree,
    average_degree_both_ways,
    average_nonzeros_per_vertex,
    count_batches_of_all,
    count_batches_of_rounded,
    count_devices_per_node,
    count_features,
    count_nics_per_node,
    count_nonzeros,
    count_stored_edges,
    count_twice_stored_edges,
    count_vertices,
    divide_epoch_times,
    find_accuracy_percent,
    find_device_memory,
    find_largest,
    find_node_bandwidth,
    find_setting,
    list_rank_counts,
)
from harness.claims.printed_units import in_unit
from harness.claims.selection import Selection, select
from harness.formatting import GIB
from harness.ledger import SAMPLING

FIGURE_4 = select("bulk-sampling-figure-4")
TABLES_3_4 = select("bulk-sampling-tables-3-4")
BATCH = 1024


def has_published_accuracy(evidence: Evidence, runs: Selection) -> bool:
    """Return whether the accuracy is about that of existing work, 79.6 percent."""
    return abs(find_accuracy_percent(evidence, runs) - 79.6) < 8


@in_unit("bytes")
def count_bytes_of_sampling(evidence: Evidence) -> float:
    """Count the bytes that a rank sends while it samples from a replicated graph."""
    replayed = evidence.replay_rank("bulk-sage", "ogbn-products", 4, "4x1", batch=BATCH)
    return replayed.count_work(phase="sample").bytes


def divide_steps_of_4_and_16_ranks(evidence: Evidence) -> float:
    """Return the steps of 4 ranks over those of 16, over the 4 that linear scaling gives."""
    few = evidence.count_steps("bulk-sage", "ogbn-products", 4, "4x1", batch=BATCH)
    many = evidence.count_steps("bulk-sage", "ogbn-products", 16, "16x1", batch=BATCH)
    return few / many / 4


def divide_words_by_harmonic_mean(evidence: Evidence) -> float:
    """Return the payload of a layer of CAGNET's 1.5D over 2nf (1/c + c/P), with P = 64 and c = 2."""
    replayed = evidence.replay_rank("cagnet-1.5d", "reddit", 64, "32x2", hidden=64, layers=4)
    dense = 64 * count_vertices(evidence, "reddit")
    return replayed.count_work(layer=1).payload / (2 * dense * (1 / 2 + 2 / 64))


@in_unit("percent")
def find_parallel_efficiency(evidence: Evidence, dataset: str) -> Estimate:
    """Return the speed-up of GraphSAGE's epoch over the ideal one, from one node to each larger number of ranks.

    Our copy of the paper lacks the number.
    """
    line = FIGURE_4.narrow(strategy="bulk-sage", dataset=dataset)
    few, *larger = list_rank_counts(evidence, line)
    return enclose(
        divide_epoch_times(evidence, line.narrow(ranks=few), line.narrow(ranks=many)) * (100 * few / many)
        for many in larger
    )


@in_unit("percent")
def find_sampling_percent(evidence: Evidence, dataset: str) -> Estimate:
    """Return the share of sampling in GraphSAGE's epoch on each number of ranks."""
    line = FIGURE_4.narrow(strategy="bulk-sage", dataset=dataset)
    return enclose(
        times.compute_percent_under(lambda key: key.phase in SAMPLING)
        for times in evidence.time_line(line).values()
    )


def is_beyond_device_memory(evidence: Evidence, dataset: str, machine: str) -> bool:
    """Return whether the edges in both directions, row pointers and a byte per feature exceed a device's memory."""
    n, edges = count_vertices(evidence, dataset), count_stored_edges(evidence, dataset)
    return (
        16 * edges + 8 * n + n * count_features(evidence, dataset)
        > find_device_memory(evidence, machine) * GIB
    )


FORMULAS: Formulas = {
    "MBS-001": Formula(find_largest, FIGURE_4, "ranks"),
    "MBS-003": Formula(find_setting, FIGURE_4, "layers"),
    "MBS-005": Formula(count_vertices, "ogbn-products"),
    "MBS-006": Formula(count_nonzeros, "ogbn-products"),
    "MBS-007": Formula(count_batches_of_rounded, "ogbn-products", 1024),
    "MBS-008": Formula(count_features, "ogbn-products"),
    "MBS-009": Formula(average_nonzeros_per_vertex, "ogbn-products"),
    "MBS-010": Formula(count_vertices, "cagnet-protein"),
    "MBS-011": Formula(count_stored_edges, "cagnet-protein"),
    "MBS-012": Formula(count_batches_of_all, "cagnet-protein", 1024),
    "MBS-013": Formula(count_features, "cagnet-protein"),
    "MBS-014": Formula(average_degree, "cagnet-protein"),
    "MBS-015": Formula(count_vertices, "ogbn-papers100m"),
    "MBS-016": Formula(count_twice_stored_edges, "ogbn-papers100m"),
    "MBS-017": Formula(count_batches_of_rounded, "ogbn-papers100m", 1024),
    "MBS-018": Formula(count_features, "ogbn-papers100m"),
    "MBS-019": Formula(average_degree_both_ways, "ogbn-papers100m"),
    "MBS-020": Formula(find_setting, TABLES_3_4.narrow(strategy="bulk-sage"), "batch"),
    "MBS-021": Formula(find_setting, TABLES_3_4.narrow(strategy="bulk-sage"), "fanouts"),
    "MBS-022": Formula(find_setting, TABLES_3_4.narrow(strategy="bulk-sage"), "layers"),
    "MBS-023": Formula(find_setting, TABLES_3_4.narrow(strategy="bulk-ladies"), "batch"),
    "MBS-024": Formula(find_setting, TABLES_3_4.narrow(strategy="bulk-ladies"), "size"),
    "MBS-025": Formula(find_setting, TABLES_3_4.narrow(strategy="bulk-ladies"), "layers"),
    "MBS-026": Formula(
        has_published_accuracy, FIGURE_4.narrow(strategy="bulk-sage", dataset="ogbn-products")
    ),
    "MBS-028": Formula(count_devices_per_node, "perlmutter"),
    "MBS-029": Formula(count_nics_per_node, "perlmutter"),
    "MBS-030": Formula(find_device_memory, "perlmutter"),
    "MBS-031": Formula(find_node_bandwidth, "perlmutter", 4),
    "MBS-036": Formula(find_setting, FIGURE_4, "hidden"),
    "MBS-037": Formula(find_setting, FIGURE_4.narrow(dataset="ogbn-products"), "epochs"),
    "MBS-038": Formula(
        find_setting, FIGURE_4.narrow(strategy="bulk-sage", dataset="ogbn-products", ranks=4), "bulk"
    ),
    "MBS-040": Formula(find_parallel_efficiency, "ogbn-products"),
    "MBS-041": Formula(find_parallel_efficiency, "ogbn-papers100m"),
    "MBS-042": Formula(find_parallel_efficiency, "cagnet-protein"),
    "MBS-043": Formula(find_sampling_percent, "ogbn-papers100m"),
    "MBS-044": Formula(count_bytes_of_sampling),
    "MBS-045": Formula(divide_steps_of_4_and_16_ranks),
    "MBS-046": Formula(divide_words_by_harmonic_mean),
    "MBS-048": Formula(is_beyond_device_memory, "ogbn-papers100m", "perlmutter"),
}
