"""The quantities that several papers print. Each function computes one from the evidence."""

from collections.abc import Sequence
from math import ceil

from harness.claims.estimates import Choices, Estimate, is_falling
from harness.claims.evidence import Evidence, require
from harness.claims.formula import Value
from harness.claims.printed_units import in_unit
from harness.claims.selection import Selection

# Datasets: the counts that a card expects, which a build checks.


def count_vertices(evidence: Evidence, dataset: str) -> int:
    """Count the vertices of a dataset."""
    return require(evidence.load_card(dataset).expected.n, f"expected.n (dataset {dataset})")


def count_edges(evidence: Evidence, dataset: str) -> int:
    """Count the edges, each once in an undirected graph."""
    return require(evidence.load_card(dataset).edges, f"a count of edges (dataset {dataset})")


def count_stored_edges(evidence: Evidence, dataset: str) -> int:
    """Count the edges that the dataset's file stores."""
    return require(evidence.load_card(dataset).expected.stored, f"expected.stored (dataset {dataset})")


def count_directed_edges(evidence: Evidence, dataset: str) -> int:
    """Count the edges without loops, an undirected edge in both directions."""
    return require(evidence.load_card(dataset).expected.nnz_sym, f"expected.nnz_sym (dataset {dataset})")


def count_nonzeros(evidence: Evidence, dataset: str) -> int:
    """Count the nonzeros of A, loops included."""
    return require(evidence.load_card(dataset).nonzeros, f"expected.nnz_adj (dataset {dataset})")


def count_training_vertices(evidence: Evidence, dataset: str) -> int:
    """Count the vertices of the training split."""
    return require(evidence.load_card(dataset).expected.training, f"expected.training (dataset {dataset})")


def count_features(evidence: Evidence, dataset: str) -> int:
    """Count the input features of a vertex."""
    return evidence.load_facts(dataset).features


def count_classes(evidence: Evidence, dataset: str) -> int:
    """Count the classes of a dataset."""
    return evidence.load_card(dataset).classes


def count_twice_stored_edges(evidence: Evidence, dataset: str) -> int:
    """Count both directions of the stored edges."""
    return 2 * count_stored_edges(evidence, dataset)


def halve_stored_edges(evidence: Evidence, dataset: str) -> float:
    """Count each stored edge once where the file has both directions."""
    return count_stored_edges(evidence, dataset) / 2


def count_distinct_edges(evidence: Evidence, dataset: str) -> int:
    """Count the stored edges less one for each pair that is stored in both directions."""
    return count_stored_edges(evidence, dataset) - count_directed_edges(evidence, dataset) // 2


def average_nonzeros_per_vertex(evidence: Evidence, dataset: str) -> float:
    """Return the nonzeros of A over the vertices."""
    return count_nonzeros(evidence, dataset) / count_vertices(evidence, dataset)


def average_degree(evidence: Evidence, dataset: str) -> float:
    """Return the stored edges over the vertices."""
    return count_stored_edges(evidence, dataset) / count_vertices(evidence, dataset)


def average_degree_both_ways(evidence: Evidence, dataset: str) -> float:
    """Return both directions of the stored edges over the vertices."""
    return count_twice_stored_edges(evidence, dataset) / count_vertices(evidence, dataset)


def count_batches_of_rounded(evidence: Evidence, dataset: str, batch: int) -> int:
    """Count the mini-batches of the training split, whose size is rounded to 100,000 vertices as in the paper."""
    return ceil(round(count_training_vertices(evidence, dataset), -5) / batch)


def count_batches_of_all(evidence: Evidence, dataset: str, batch: int) -> int:
    """Count the mini-batches of all vertices."""
    return ceil(count_vertices(evidence, dataset) / batch)


def find_common_features(evidence: Evidence, *datasets: str) -> Value:
    """Return the number of input features that the datasets share."""
    return simplify([count_features(evidence, dataset) for dataset in datasets])


def find_common_classes(evidence: Evidence, *datasets: str) -> Value:
    """Return the number of classes that the datasets share."""
    return simplify([count_classes(evidence, dataset) for dataset in datasets])


# Machines: what a card says.


def count_devices_per_node(evidence: Evidence, machine: str, per_device: int = 1) -> int:
    """Count the devices of a node, of which each GPU has `per_device`."""
    return evidence.load_links(machine).devices_per_node // per_device


def count_nics_per_node(evidence: Evidence, *machines: str) -> Value:
    """Count the network interfaces of a node, the same on all machines."""
    return simplify([len(evidence.load_slurm(machine).interfaces) for machine in machines])


@in_unit("GiB")
def find_device_memory(evidence: Evidence, machine: str, per_gpu: int = 1) -> float:
    """Return the memory of a GPU of `per_gpu` devices."""
    memory = require(evidence.load_machine(machine).memory_gb, f"memory_gb (machine {machine})")
    return per_gpu * memory


@in_unit("Tflop/s")
def find_peak_tflops(evidence: Evidence, machine: str, per_gpu: int = 1) -> float:
    """Return the peak in float32 of a GPU of `per_gpu` devices."""
    return per_gpu * evidence.load_rates(machine).tflops.value


@in_unit("GiB/s")
def find_node_bandwidth(evidence: Evidence, machine: str, parts: int = 1) -> float:
    """Return the bandwidth of a node, divided by its `parts`."""
    return evidence.load_links(machine).node_gbs.value / parts


def find_hardware(evidence: Evidence, machine: str, key: str) -> float:
    """Return a fact about the machine that only claims use."""
    return require(evidence.load_machine(machine).hardware.get(key), f"hardware.{key} (machine {machine})")


@in_unit("GB/s")
def find_hardware_bandwidth(evidence: Evidence, machine: str, key: str) -> float:
    """Return a bandwidth among the facts that only claims use."""
    return find_hardware(evidence, machine, key)


@in_unit("GiB")
def find_hardware_memory(evidence: Evidence, machine: str, key: str) -> float:
    """Return a size of memory among the facts that only claims use."""
    return find_hardware(evidence, machine, key)


# Settings of the papers' experiments.


def find_setting(evidence: Evidence, runs: Selection, key: str) -> Value:
    """Return the value of a setting in the selected runs; all values, ascending, if they differ."""
    return simplify(evidence.list_values(runs, key))


def find_smallest(evidence: Evidence, runs: Selection, key: str, place: int = 0) -> Value:
    """Return the smallest value of a setting, or the one at `place` counted from the smallest."""
    value: Value = evidence.list_values(runs, key)[place]
    return value


def find_largest(evidence: Evidence, runs: Selection, key: str) -> Value:
    """Return the largest value of a setting."""
    return find_smallest(evidence, runs, key, -1)


def find_common_setting(evidence: Evidence, key: str, *selections: Selection) -> Value:
    """Return the value of a setting that all selections share."""
    return simplify([find_setting(evidence, runs, key) for runs in selections])


def find_setting_of_datasets(evidence: Evidence, runs: Selection, key: str, *datasets: str) -> Value:
    """Return the value of a setting that the selected runs share on these datasets."""
    return find_common_setting(evidence, key, *(runs.narrow(dataset=dataset) for dataset in datasets))


@in_unit("ms")
def find_setting_milliseconds(evidence: Evidence, runs: Selection, key: str) -> float:
    """Return a time among the settings."""
    (milliseconds,) = evidence.list_values(runs, key)
    return float(milliseconds)


@in_unit("percent")
def find_percent(evidence: Evidence, runs: Selection, key: str) -> float:
    """Return a share among the settings in percent."""
    (share,) = evidence.list_values(runs, key)
    return 100 * float(share)


def list_rank_counts(evidence: Evidence, runs: Selection) -> list[int]:
    """List the numbers of ranks of the selected runs, ascending."""
    return evidence.list_values(runs, "ranks")


def simplify(values: Sequence[object]) -> Value:
    """Return the one value of several equal ones; otherwise the different values, each once."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else different  # type: ignore[return-value]


# Statements.


def is_printed_at_most(evidence: Evidence, smaller: str, larger: str) -> bool:
    """Return whether the number of one claim is at most that of another."""
    return evidence.read_printed(smaller) <= evidence.read_printed(larger)


def divide_printed(evidence: Evidence, one: str, other: str) -> float:
    """Return the ratio of the numbers of two claims."""
    return evidence.read_printed(one) / evidence.read_printed(other)


# Times and accuracies of runs. `printed_runs` knows these functions, and which column of the table `runs` each returns.


@in_unit("s")
def find_epoch_seconds(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the epoch time."""
    return evidence.time_epoch(runs).seconds


@in_unit("s")
def find_evaluation_seconds(evidence: Evidence, runs: Selection) -> Estimate:
    """Return the time of an evaluation of the whole graph."""
    return evidence.time_evaluation(runs).seconds


@in_unit("s")
def find_seconds_to_target(evidence: Evidence, runs: Selection) -> float:
    """Return the seconds of training until the runs reached their target accuracy."""
    return evidence.read_measured(runs, "seconds_to_target")


@in_unit("percent")
def find_accuracy_percent(evidence: Evidence, runs: Selection) -> float:
    """Return the last test accuracy of the runs."""
    return 100 * evidence.read_measured(runs, "accuracy_test")


# Comparisons of runs.


def divide_epoch_times(evidence: Evidence, slower: Selection, faster: Selection) -> Estimate:
    """Return the speed-up of the epochs of some runs over others."""
    return evidence.time_epoch(slower) / evidence.time_epoch(faster)


def divide_evaluation_times(evidence: Evidence, slower: Selection, faster: Selection) -> Estimate:
    """Return the speed-up of evaluations."""
    return evidence.time_evaluation(slower) / evidence.time_evaluation(faster)


def divide_seconds_to_target(evidence: Evidence, slower: Selection, faster: Selection) -> float:
    """Return the speed-up of the time to the target accuracy."""
    return find_seconds_to_target(evidence, slower) / find_seconds_to_target(evidence, faster)


@in_unit("points")
def subtract_accuracies(evidence: Evidence, better: Selection, worse: Selection) -> float:
    """Return the gain of accuracy in percentage points."""
    return find_accuracy_percent(evidence, better) - find_accuracy_percent(evidence, worse)


def is_faster(evidence: Evidence, one: Selection, other: Selection) -> bool:
    """Return whether the epochs of one selection are faster than those of another. No setting may be open."""
    return evidence.time_epoch(one).single.seconds < evidence.time_epoch(other).single.seconds


def list_faster(evidence: Evidence, one: Selection, other: Selection) -> list[bool]:
    """List whether the epochs of one selection are faster than those of another, for each choice of open settings."""
    pairs = evidence.time_epoch(one).match(evidence.time_epoch(other))
    return [first.seconds < second.seconds for first, second in pairs]


def is_faster_for_choices(evidence: Evidence, one: Selection, other: Selection) -> Choices:
    """Return whether the epochs of one selection are faster, for each choice of the open settings."""
    return Choices(tuple(list_faster(evidence, one, other)))


def is_scaling(evidence: Evidence, *lines: Selection) -> bool:
    """Return whether every epoch of each line is faster than the one on fewer ranks."""
    return all(is_falling(evidence.time_line(line)) for line in lines)
