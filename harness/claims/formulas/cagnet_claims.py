"""The formulas of the claims of CAGNET.

The paper's analysis counts the words and messages of one layer with n vertices and f features. Here P = 64 ranks replay
the second of four layers on Reddit, with f = 64. Functions named `divide_...` return our number over the paper's term,
which the claim's coefficient or factor is compared with.
"""

from math import log2, prod, sqrt
from statistics import mean
from typing import Unpack

from harness.claims.estimates import Estimate, find_largest_estimate, is_falling
from harness.claims.evidence import Evidence, LedgerFilter, RankReplay, RankWork
from harness.claims.formula import Formula, Formulas
from harness.claims.formulas.quantities import (
    count_classes,
    count_devices_per_node,
    count_features,
    count_nonzeros,
    count_stored_edges,
    count_vertices,
    find_common_setting,
    find_device_memory,
    find_hardware,
    find_hardware_bandwidth,
    find_node_bandwidth,
    find_setting,
    find_setting_of_datasets,
    is_faster,
    is_scaling,
    list_rank_counts,
)
from harness.claims.printed_units import in_unit
from harness.claims.selection import Selection, select
from harness.formatting import GIB
from harness.ledger import AxisName
from harness.prediction.pricing import find_bandwidth, place_axis

FIGURE_1, FIGURE_2, FIGURE_3 = (select(f"cagnet-figure-{number}") for number in (1, 2, 3))
GRAPHS = ("reddit", "cagnet-amazon", "cagnet-protein")
PARTITIONED_TWIN = "1/5w1"
"""The twin of Reddit whose parts are counted. Much smaller ones have no room for 64 communities."""

Scheme = tuple[str, str]
"""A strategy and its grid of 64 ranks."""
ONE_D: Scheme = ("cagnet-1d", "")
ONE_AND_A_HALF_D: Scheme = ("cagnet-1.5d", "32x2")
FOUR_REPLICAS: Scheme = ("cagnet-1.5d", "16x4")
TWO_D: Scheme = ("cagnet-2d", "8x8")
THREE_D: Scheme = ("cagnet-3d", "4x4x4")
P, F = 64, 64
CUBE_ROOT: float = P ** (1 / 3)
DENSE = ("H", "T", "G", "S")
"""The dense matrices that are broadcast."""


# The words, messages and memory of the analysis.


def count_layer_work(evidence: Evidence, scheme: Scheme, **parts: Unpack[LedgerFilter]) -> RankWork:
    """Return the work of a rank in the layer of the analysis."""
    strategy, grid = scheme
    replayed = evidence.replay_rank(strategy, "reddit", P, grid, hidden=F, layers=4)
    return replayed.count_work(layer=1, **parts)


def count_dense_elements(evidence: Evidence) -> int:
    """Count the elements of a dense matrix, nf."""
    return F * count_vertices(evidence, "reddit")


def count_words_of_epoch(evidence: Evidence, scheme: Scheme, dataset: str, hidden: int) -> float:
    """Count the words that a rank receives in an epoch of two layers."""
    strategy, grid = scheme
    ranks = prod(map(int, grid.split("x")))
    replayed = evidence.replay_rank(strategy, dataset, ranks, grid, hidden=hidden, layers=2)
    return replayed.count_work().words


def divide_growth_of_saving(
    evidence: Evidence,
    few: tuple[Scheme, Scheme],
    many: tuple[Scheme, Scheme],
    *,
    dataset: str,
    hidden: int,
    growth: float,
) -> float:
    """Return how the words of one scheme over those of another grow from few ranks to many, over the paper's growth.

    The paper's factor is asymptotic, so its constant is not compared.
    """
    savings = [
        count_words_of_epoch(evidence, one, dataset, hidden)
        / count_words_of_epoch(evidence, other, dataset, hidden)
        for one, other in (few, many)
    ]
    return savings[1] / savings[0] / growth


def divide_broadcast_words_of_1d_and_15d(evidence: Evidence) -> float:
    """Return the payload of 1D's broadcasts over that of 1.5D's, over c = 4."""
    one, four = (count_layer_work(evidence, scheme, op="broadcast") for scheme in (ONE_D, FOUR_REPLICAS))
    return one.payload / four.payload / 4


def divide_broadcast_words_of_15d_and_1d(evidence: Evidence) -> float:
    """Return the payload of 1.5D's broadcasts over that of 1D's, over 1/c with c = 4."""
    four, one = (count_layer_work(evidence, scheme, op="broadcast") for scheme in (FOUR_REPLICAS, ONE_D))
    return four.payload * 4 / one.payload


def divide_broadcast_calls_of_1d_and_15d(evidence: Evidence) -> float:
    """Return the broadcasts of 1D over those of 1.5D, over c^2 = 16."""
    one, four = (count_layer_work(evidence, scheme, op="broadcast") for scheme in (ONE_D, FOUR_REPLICAS))
    return one.calls / four.calls / 4**2


def divide_input_memory_of_15d_and_1d(evidence: Evidence) -> float:
    """Return the bytes of input features of 1.5D over those of 1D, over c = 4."""

    def count_bytes(scheme: Scheme) -> int:
        strategy, grid = scheme
        replayed: RankReplay = evidence.replay_rank(strategy, "reddit", P, grid, hidden=F, layers=2)
        return replayed.held_bytes["X"]

    return count_bytes(FOUR_REPLICAS) / count_bytes(ONE_D) / 4


def divide_broadcast_words(evidence: Evidence, scheme: Scheme, replicas: int) -> float:
    """Return the payload of the broadcasts over nf/c."""
    payload = count_layer_work(evidence, scheme, op="broadcast").payload
    return payload / (count_dense_elements(evidence) / replicas)


def divide_gradient_words(evidence: Evidence, scheme: Scheme, op: str) -> float:
    """Return the payload of the collective on the gradient of W over f^2."""
    return count_layer_work(evidence, scheme, op=op).payload / F**2


def divide_reduction_words_of_15d(evidence: Evidence) -> float:
    """Return the payload of the all-reduces of partial sums over nfc/P."""
    payload = sum(count_layer_work(evidence, ONE_AND_A_HALF_D, tensor=name).payload for name in ("T", "S"))
    return payload / (count_dense_elements(evidence) * 2 / P)


def divide_dense_broadcast_words_of_2d(evidence: Evidence) -> float:
    """Return the payload of the broadcasts of dense blocks over nf/sqrt(P)."""
    payload = sum(count_layer_work(evidence, TWO_D, op="broadcast", tensor=name).payload for name in DENSE)
    return payload / (count_dense_elements(evidence) / 8)


def divide_dense_broadcast_words_of_2d_by_1d(evidence: Evidence) -> float:
    """Return the coefficient of 2D's broadcasts of dense blocks over that of 1D's."""
    return divide_dense_broadcast_words_of_2d(evidence) / divide_broadcast_words(evidence, ONE_D, 1)


def divide_dense_words_of_3d(evidence: Evidence) -> float:
    """Return the payload of dense blocks over nf/P^(2/3)."""
    payload = sum(count_layer_work(evidence, THREE_D, tensor=name).payload for name in DENSE)
    return payload / (count_dense_elements(evidence) / 16)


def divide_sparse_words(evidence: Evidence, scheme: Scheme, parts: int) -> float:
    """Return the nonzeros in the payload of blocks of A over nnz / parts. A nonzero is a value and a column."""
    sent = count_layer_work(evidence, scheme, tensor="A").payload / 2
    return sent / (count_nonzeros(evidence, "reddit") / parts)


def divide_calls(evidence: Evidence, scheme: Scheme, messages: float) -> float:
    """Return the calls of a layer over the paper's number of messages."""
    return count_layer_work(evidence, scheme).calls / messages


def divide_partial_sums_of_3d(evidence: Evidence) -> float:
    """Return the replicas of a rank's share of T before their sum, over P^(1/3)."""
    payload = count_layer_work(evidence, THREE_D, op="reduce_scatter", tensor="T").payload
    return payload / (count_dense_elements(evidence) / P) / CUBE_ROOT


def divide_local_degrees(evidence: Evidence, dataset: str) -> float:
    """Return the average degree over that of a block of 8 x 8, over sqrt(P)."""
    n, nonzeros = count_vertices(evidence, dataset), count_nonzeros(evidence, dataset)
    return (nonzeros / n) / ((nonzeros / P) / (n / sqrt(P))) / sqrt(P)


# Summit.


def count_ranks_per_node(evidence: Evidence, machine: str) -> int:
    """Count the ranks of a node."""
    return evidence.load_slurm(machine).ranks_per_node


def count_devices_per_socket(evidence: Evidence, machine: str) -> float:
    """Count the GPUs of a socket."""
    return count_devices_per_node(evidence, machine) // find_hardware(evidence, machine, "sockets")


@in_unit("GiB/s")
def find_intra_node_bandwidth(evidence: Evidence, machine: str) -> float:
    """Return the bandwidth between devices of a node."""
    return evidence.load_links(machine).intra_gbs.value


@in_unit("GiB/s")
def find_socket_bandwidth(evidence: Evidence, machine: str) -> float:
    """Return a socket's share of the node's bandwidth."""
    return find_node_bandwidth(evidence, machine) / find_hardware(evidence, machine, "sockets")


@in_unit("GiB/s")
def find_bandwidth_per_device(evidence: Evidence, machine: str) -> float:
    """Return a device's share of the node's bandwidth."""
    return find_node_bandwidth(evidence, machine, count_devices_per_node(evidence, machine))


def find_ring_gbs(evidence: Evidence, machine: str, rings: int) -> float:
    """Return the bandwidth of each of several concurrent rings of eight ranks."""
    links = evidence.load_links(machine)
    return find_bandwidth(links, place_axis({AxisName.X: 8, AxisName.Y: rings}, "x", links))


def divide_ring_bandwidths(evidence: Evidence, machine: str) -> float:
    """Return the bandwidth of one of two concurrent rings over that of a single one."""
    return find_ring_gbs(evidence, machine, 2) / find_ring_gbs(evidence, machine, 1)


# Runs that need too much memory: 40 bytes per edge and 12 per input feature, times c / P, compared with the memory of a
# device of Summit without 1 GB, which the libraries take. Both GB are 2^30 bytes.


def is_out_of_memory(evidence: Evidence, dataset: str, ranks: int, replicas: int = 1) -> bool:
    """Return whether the adjacency and the dense matrices exceed the memory of a rank."""
    edges, n = count_stored_edges(evidence, dataset), count_vertices(evidence, dataset)
    needed = (40 * edges + 12 * n * count_features(evidence, dataset)) * replicas / ranks
    return needed > (find_device_memory(evidence, "summit") - 1) * GIB


def list_rank_counts_without_memory(evidence: Evidence, dataset: str) -> list[int]:
    """List the numbers of ranks, of 4 and 16, with too little memory."""
    return [ranks for ranks in (4, 16) if is_out_of_memory(evidence, dataset, ranks)]


# Figures.


def count_layers_of_vertices(evidence: Evidence, runs: Selection) -> int:
    """Count the layers as the paper does: L layers of vertices have L - 1 weight matrices between them."""
    (convolutions,) = evidence.list_values(runs, "layers")
    return int(convolutions) + 1


def find_largest_run_on_one_node(evidence: Evidence, runs: Selection, machine: str) -> int:
    """Return the largest number of ranks that fits on a node."""
    devices = count_devices_per_node(evidence, machine)
    return max(ranks for ranks in list_rank_counts(evidence, runs) if ranks <= devices)


def pair_rank_counts(evidence: Evidence, runs: Selection) -> list[str]:
    """List the numbers of ranks of 2D and 3D that a figure shows side by side."""
    squares, cubes = (
        list_rank_counts(evidence, runs.narrow(strategy=name)) for name in ("cagnet-2d", "cagnet-3d")
    )
    return [f"{p}/{q}" if p != q else str(p) for p, q in zip(squares, cubes, strict=False)]


@in_unit("percent")
def find_feature_growth(evidence: Evidence, *datasets: str) -> float:
    """Return the mean percentage by which the widths of all layers grow as the hidden width does, from 16 to 64."""
    return mean(
        100 * (64 - 16) / (count_features(evidence, name) + 16 + count_classes(evidence, name))
        for name in datasets
    )


@in_unit("epoch/s")
def find_epochs_per_second(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the epochs per second."""
    return 1 / evidence.time_epoch(runs).seconds


@in_unit("s")
def find_longest_epoch(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the longest epoch among all strategies and numbers of ranks."""
    specs = evidence.list_runs(runs, any_grid=True)
    lines = [
        evidence.time_line(runs.narrow(strategy=name))
        for name in sorted({spec.strategy.name for spec in specs})
    ]
    return find_largest_estimate(epochs.seconds for line in lines for epochs in line.values())


def list_scaling_limits_at_36(evidence: Evidence, *datasets: str) -> list[bool]:
    """List whether 2D's epochs on each dataset become faster up to 36 ranks, and not by 5 percent on 64."""

    def has_limit(line: Selection) -> bool:
        counts = [ranks for ranks in list_rank_counts(evidence, line) if ranks <= 64]
        times = {ranks: evidence.time_epoch(line.narrow(ranks=ranks)) for ranks in counts}
        last, before = times.pop(64).single.seconds, times[36].single.seconds
        return is_falling(times) and not last < 0.95 * before

    return [has_limit(FIGURE_1.narrow(strategy="cagnet-2d", dataset=dataset)) for dataset in datasets]


def is_never_faster_than_15d(evidence: Evidence, *datasets: str) -> bool:
    """Return whether 2D never has a faster epoch than 1.5D."""
    return not any(
        is_faster(evidence, runs, runs.narrow(strategy="cagnet-1.5d"))
        for dataset in datasets
        for line in [FIGURE_1.narrow(dataset=dataset, strategy="cagnet-2d")]
        for ranks in list_rank_counts(evidence, line)
        for runs in [line.narrow(ranks=ranks)]
    )


def has_crossover_on_amazon(evidence: Evidence) -> bool:
    """Return whether 2D is faster on Amazon at 25 ranks, and 3D at 125."""
    two, three = (
        FIGURE_3.narrow(strategy=name, dataset="cagnet-amazon") for name in ("cagnet-2d", "cagnet-3d")
    )
    return is_faster(evidence, two.narrow(ranks=25), three.narrow(ranks=27)) and is_faster(
        evidence, three.narrow(ranks=125), two.narrow(ranks=121)
    )


def list_communication_gains(evidence: Evidence, *datasets: str) -> list[float]:
    """List the percentages by which 3D's communication scales better than 2D's, by dataset."""

    def scale(strategy: str, dataset: str, few: int, many: int) -> float:
        runs = FIGURE_3.narrow(strategy=strategy, dataset=dataset)
        times = [evidence.time_epoch(runs.narrow(ranks=ranks)) for ranks in (few, many)]
        return times[0].communication_seconds / times[1].communication_seconds

    return [
        100 * (scale("cagnet-3d", name, 27, 125) / scale("cagnet-2d", name, 25, 121) - 1) for name in datasets
    ]


@in_unit("percent")
def find_smallest_communication_gain(evidence: Evidence, *datasets: str) -> float:
    """Return the smallest of these percentages."""
    return min(list_communication_gains(evidence, *datasets))


@in_unit("percent")
def find_largest_communication_gain(evidence: Evidence, *datasets: str) -> float:
    """Return the largest of these percentages."""
    return max(list_communication_gains(evidence, *datasets))


# Partitions.


@in_unit("percent")
def find_rows_saved_percent(evidence: Evidence, dataset: str, parts: int, *, twin: str) -> float:
    """Return how many fewer rows of others the parts of METIS need together than random block rows."""
    metis, random = (sum(evidence.read_cut(dataset, way, parts, twin).needed) for way in ("metis", "random"))
    return 100 * (1 - metis / random)


FORMULAS: Formulas = {
    "CAG-001": Formula(
        divide_growth_of_saving,
        (("cagnet-1d", "64"), TWO_D),
        (("cagnet-1d", "256"), ("cagnet-2d", "16x16")),
        dataset="cagnet-amazon",
        hidden=16,
        growth=sqrt(256 / 64),
    ),
    "CAG-002": Formula(
        divide_growth_of_saving,
        (TWO_D, THREE_D),
        (("cagnet-2d", "27x27"), ("cagnet-3d", "9x9x9")),
        dataset="reddit",
        hidden=64,
        growth=(729 / 64) ** (1 / 6),
    ),
    "CAG-003": Formula(divide_broadcast_words_of_1d_and_15d),
    "CAG-004": Formula(divide_broadcast_calls_of_1d_and_15d),
    "CAG-005": Formula(divide_input_memory_of_15d_and_1d),
    "CAG-006": Formula(divide_broadcast_words, ONE_D, 1),
    "CAG-007": Formula(divide_gradient_words, ONE_D, "all_reduce"),
    "CAG-008": Formula(divide_broadcast_words, ONE_AND_A_HALF_D, 2),
    "CAG-009": Formula(divide_reduction_words_of_15d),
    "CAG-010": Formula(divide_dense_broadcast_words_of_2d),
    "CAG-011": Formula(divide_sparse_words, TWO_D, 8),
    "CAG-012": Formula(divide_gradient_words, TWO_D, "all_gather"),
    "CAG-013": Formula(divide_dense_words_of_3d),
    "CAG-014": Formula(divide_sparse_words, THREE_D, 16),
    "CAG-015": Formula(divide_calls, ONE_D, log2(64) + 2 * 64),
    "CAG-016": Formula(divide_calls, ONE_AND_A_HALF_D, 2 * 16 * log2(16)),
    "CAG-017": Formula(divide_calls, TWO_D, 5 * sqrt(64) + log2(64)),
    "CAG-018": Formula(divide_calls, THREE_D, 4 * CUBE_ROOT),
    "CAG-019": Formula(divide_partial_sums_of_3d),
    "CAG-020": Formula(divide_dense_broadcast_words_of_2d_by_1d),
    "CAG-021": Formula(find_rows_saved_percent, "reddit", 64, twin=PARTITIONED_TWIN),
    "CAG-023": Formula(count_vertices, "reddit"),
    "CAG-024": Formula(count_nonzeros, "reddit"),
    "CAG-025": Formula(count_features, "reddit"),
    "CAG-026": Formula(count_classes, "reddit"),
    "CAG-027": Formula(count_vertices, "cagnet-amazon"),
    "CAG-028": Formula(count_stored_edges, "cagnet-amazon"),
    "CAG-029": Formula(count_features, "cagnet-amazon"),
    "CAG-030": Formula(count_classes, "cagnet-amazon"),
    "CAG-031": Formula(count_vertices, "cagnet-protein"),
    "CAG-032": Formula(count_stored_edges, "cagnet-protein"),
    "CAG-033": Formula(count_features, "cagnet-protein"),
    "CAG-034": Formula(count_classes, "cagnet-protein"),
    "CAG-036": Formula(count_layers_of_vertices, FIGURE_1),
    "CAG-038": Formula(count_ranks_per_node, "summit"),
    "CAG-039": Formula(find_device_memory, "summit"),
    "CAG-040": Formula(find_hardware, "summit", "sockets"),
    "CAG-041": Formula(count_devices_per_socket, "summit"),
    "CAG-042": Formula(find_intra_node_bandwidth, "summit"),
    "CAG-043": Formula(find_hardware_bandwidth, "summit", "gbs_between_sockets"),
    "CAG-044": Formula(find_hardware_bandwidth, "summit", "gbs_from_socket_to_nic"),
    "CAG-045": Formula(find_node_bandwidth, "summit"),
    "CAG-046": Formula(find_socket_bandwidth, "summit"),
    "CAG-049": Formula(find_largest_run_on_one_node, FIGURE_1, "summit"),
    "CAG-050": Formula(find_setting_of_datasets, FIGURE_1, "epochs", "reddit", "cagnet-amazon"),
    "CAG-051": Formula(find_setting, FIGURE_1.narrow(dataset="cagnet-protein"), "epochs"),
    "CAG-052": Formula(list_rank_counts_without_memory, "cagnet-amazon"),
    "CAG-053": Formula(list_rank_counts_without_memory, "cagnet-protein"),
    "CAG-054": Formula(
        find_epochs_per_second, FIGURE_1.narrow(strategy="cagnet-1.5d", dataset="reddit", ranks=4)
    ),
    "CAG-055": Formula(divide_broadcast_words_of_15d_and_1d),
    "CAG-056": Formula(find_setting, FIGURE_1.narrow(dataset="reddit"), "ranks"),
    "CAG-057": Formula(find_setting, FIGURE_1.narrow(dataset="cagnet-amazon"), "ranks"),
    "CAG-058": Formula(find_setting, FIGURE_1.narrow(dataset="cagnet-protein"), "ranks"),
    "CAG-059": Formula(find_setting, FIGURE_2.narrow(dataset="cagnet-amazon"), "ranks"),
    "CAG-060": Formula(find_setting, FIGURE_2.narrow(dataset="cagnet-protein"), "ranks"),
    "CAG-061": Formula(pair_rank_counts, FIGURE_3.narrow(dataset="cagnet-amazon")),
    "CAG-062": Formula(pair_rank_counts, FIGURE_3.narrow(dataset="cagnet-protein")),
    "CAG-063": Formula(find_longest_epoch, FIGURE_1.narrow(dataset="reddit")),
    "CAG-064": Formula(find_longest_epoch, FIGURE_1.narrow(dataset="cagnet-amazon")),
    "CAG-065": Formula(find_longest_epoch, FIGURE_1.narrow(dataset="cagnet-protein")),
    "CAG-066": Formula(find_longest_epoch, FIGURE_2.narrow(dataset="cagnet-amazon")),
    "CAG-067": Formula(find_longest_epoch, FIGURE_2.narrow(dataset="cagnet-protein")),
    "CAG-068": Formula(find_longest_epoch, FIGURE_3.narrow(dataset="cagnet-amazon")),
    "CAG-069": Formula(find_longest_epoch, FIGURE_3.narrow(dataset="cagnet-protein")),
    "CAG-070": Formula(is_out_of_memory, "cagnet-amazon", 16, 4),
    "CAG-071": Formula(is_out_of_memory, "cagnet-protein", 36, 4),
    "CAG-072": Formula(find_common_setting, "hidden", FIGURE_1, FIGURE_2),
    "CAG-073": Formula(find_setting, FIGURE_3, "hidden"),
    "CAG-074": Formula(find_feature_growth, *GRAPHS),
    "CAG-075": Formula(list_scaling_limits_at_36, *GRAPHS),
    "CAG-076": Formula(is_never_faster_than_15d, *GRAPHS),
    "CAG-077": Formula(divide_local_degrees, "reddit"),
    "CAG-079": Formula(find_setting, FIGURE_3.narrow(dataset="cagnet-amazon"), "epochs"),
    "CAG-080": Formula(find_setting, FIGURE_3.narrow(dataset="cagnet-protein"), "epochs"),
    "CAG-081": Formula(find_setting, FIGURE_3.narrow(strategy="cagnet-2d"), "ranks"),
    "CAG-082": Formula(find_setting, FIGURE_3.narrow(strategy="cagnet-3d"), "ranks"),
    "CAG-083": Formula(
        is_scaling, *(FIGURE_3.narrow(strategy="cagnet-3d", dataset=name) for name in GRAPHS[1:])
    ),
    "CAG-084": Formula(find_smallest_communication_gain, *GRAPHS[1:]),
    "CAG-085": Formula(find_largest_communication_gain, *GRAPHS[1:]),
    "CAG-086": Formula(has_crossover_on_amazon),
    "CAG-087": Formula(divide_ring_bandwidths, "summit"),
    "CAG-088": Formula(find_bandwidth_per_device, "perlmutter"),
}
