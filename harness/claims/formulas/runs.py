"""The times and accuracies of the papers' runs, and comparisons of runs.

The epochs of runs are compared at points, each a graph, a model and a number of ranks that the runs have in common.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import fmean
from typing import Literal

from harness.base.errors import UserError
from harness.claims.arguments import Runs
from harness.claims.estimates import (
    Choices,
    EpochTimes,
    Estimate,
    UntestableClaim,
    average,
    enclose,
    find_largest_estimate,
    find_smallest_estimate,
    is_falling,
)
from harness.claims.evidence import Evidence
from harness.claims.formula import formula
from harness.claims.selection import Selection, Settings
from harness.ledger import MOVING, SAMPLING, Direction, Key, Phase

Take = Literal["single", "smallest", "largest", "mean", "range"]
"""What becomes of several estimates. A single one must not have others next to it."""
COMBINE: dict[Take, Callable[[Iterable[Estimate]], Estimate]] = {
    "single": enclose,
    "smallest": find_smallest_estimate,
    "largest": find_largest_estimate,
    "mean": average,
    "range": enclose,
}
Part = Literal["sampling", "communication", "computation"]
PARTS: dict[Part, Callable[[Key], bool]] = {
    "sampling": lambda key: key.phase in SAMPLING,
    "communication": lambda key: key.op in MOVING and key.phase not in SAMPLING,
    "computation": lambda key: key.op not in MOVING and key.phase not in SAMPLING,
}
"""The parts of an epoch. Communication and computation are those outside sampling."""
SAMPLED = {"distdgl", "massivegnn", "salient"}
"""The systems that evaluate by sampling, as in training (ScaleGNN, section VII-B).

Their evaluations here multiply the whole graph instead, so those of the paper are predicted from the sampling, the
fetching and the forward pass of training.
"""


def combine(estimates: Iterable[Estimate], take: Take) -> Estimate:
    """Combine several estimates into one."""
    found = list(estimates)
    if take == "single" and len(found) > 1:
        raise UserError(
            f"there are {len(found)} estimates: say which to take, smallest, largest, mean or range"
        )
    return COMBINE[take](found)


def split(evidence: Evidence, runs: Selection, *keys: str) -> list[Selection]:
    """Split runs by some of their settings."""
    return [runs.narrow(**point) for point in evidence.list_points(runs, *keys)]


# Single runs. `printed_runs` knows these functions, and which column of the table `runs` each returns.


@formula("s")
def find_epoch_seconds(evidence: Evidence, runs: Runs) -> Estimate:
    """Return the epoch time."""
    return evidence.time_epoch(runs).seconds


@formula("s")
def find_evaluation_seconds(evidence: Evidence, runs: Runs) -> Estimate:
    """Return the time of an evaluation of the whole graph, by sampling if the paper's system does so.

    A sampled evaluation is an epoch without its backward pass, for all vertices: the paper names neither its batch nor
    its vertices.
    """
    if not SAMPLED.issuperset(evidence.list_values(runs, "strategy")):
        return evidence.time_evaluation(runs).seconds
    (dataset,) = evidence.list_values(runs, "dataset")
    facts = evidence.load_facts(dataset)
    seconds = evidence.time_epoch(runs).compute_seconds_under(
        lambda key: key.direction == Direction.FORWARD and key.phase not in (Phase.SYNC, Phase.OPTIMIZE)
    )
    return seconds * (facts.vertices / facts.training)


@formula("s")
def find_seconds_to_target(evidence: Evidence, runs: Runs) -> float:
    """Return the seconds of training until the runs reached their target accuracy."""
    return evidence.read_measured(runs, "seconds_to_target")


@formula("percent")
def find_accuracy_percent(evidence: Evidence, runs: Runs) -> float:
    """Return the last test accuracy of the runs."""
    return 100 * evidence.read_measured(runs, "accuracy_test")


# Epochs.


@formula("epoch/s")
def find_epochs_per_second(evidence: Evidence, runs: Runs) -> Estimate:
    """Return the epochs per second."""
    return 1 / evidence.time_epoch(runs).seconds


@formula("s")
def find_longest_epoch(evidence: Evidence, runs: Runs) -> Estimate:
    """Return the longest epoch among all strategies and numbers of ranks."""
    points = split(evidence, runs, "strategy", "ranks")
    return find_largest_estimate(evidence.time_epoch(point).seconds for point in points)


@formula("percent")
def find_share(evidence: Evidence, part: Part, runs: Runs) -> Estimate:
    """Return the share of a part in the epoch; over several numbers of ranks, its range."""
    lines = evidence.time_line(runs).values()
    return enclose(times.compute_percent_under(PARTS[part]) for times in lines)


# Speed-ups.


def divide_epochs_at_points(
    evidence: Evidence, runs: Selection, baselines: Iterable[Selection]
) -> list[tuple[Settings, Estimate]]:
    """Return the ratio of each baseline's epoch to the epoch of the runs, at each point of the runs."""
    points = evidence.list_points(runs, "dataset", "kind", "ranks")
    return [
        (point, evidence.time_epoch(baseline.narrow(**point)) / evidence.time_epoch(runs.narrow(**point)))
        for baseline in baselines
        for point in points
    ]


@formula()
def find_speedup(evidence: Evidence, runs: Runs, *baselines: Runs, take: Take = "single") -> Estimate:
    """Return the epoch of each baseline over that of the runs, at each of their points."""
    return combine((ratio for _, ratio in divide_epochs_at_points(evidence, runs, baselines)), take)


@formula()
def find_throughput_gain(evidence: Evidence, runs: Runs, *baselines: Runs, take: Take = "single") -> Estimate:
    """Return the throughput of full-graph training over mini-batches, as a range over what G3 may count.

    DGL counts labelled vertices, as its examples print; full-graph training counts them too, or all vertices.
    """
    ratios = divide_epochs_at_points(evidence, runs, baselines)

    def count_per_label(point: Settings) -> float:
        facts = evidence.load_facts(str(point["dataset"]))
        return facts.vertices / facts.training

    of_labels = combine((ratio for _, ratio in ratios), take)
    if not evidence.has_open_units:
        return of_labels
    return enclose([of_labels, combine((ratio * count_per_label(point) for point, ratio in ratios), take)])


@formula()
def find_speedup_growth(
    evidence: Evidence, deep: Runs, deep_baseline: Runs, shallow: Runs, shallow_baseline: Runs
) -> Estimate:
    """Return the speed-up of a deep model over the mean speed-up of shallow ones. A unit of throughput cancels."""
    return find_speedup(evidence, deep, deep_baseline) / find_speedup(
        evidence, shallow, shallow_baseline, take="mean"
    )


@formula()
def find_received_growth(
    evidence: Evidence, deep: Runs, deep_baseline: Runs, shallow: Runs, shallow_baseline: Runs
) -> float:
    """Return the same growth if epochs were as long as what a rank receives: a count, without a machine's constants."""

    def compare(runs: Selection, baseline: Selection) -> float:
        points = evidence.list_points(runs, "dataset", "kind", "ranks")
        return fmean(
            _count_received(evidence, baseline.narrow(**point))
            / _count_received(evidence, runs.narrow(**point))
            for point in points
        )

    return compare(deep, deep_baseline) / compare(shallow, shallow_baseline)


def _count_received(evidence: Evidence, runs: Selection) -> float:
    prediction = evidence.time_epoch(runs).single.prediction
    if prediction is None:
        raise UntestableClaim("elements are taken from predictions, and this run was measured")
    return prediction.elements_received


@formula()
def find_scaling(evidence: Evidence, runs: Runs, *, take: Take = "single") -> Estimate:
    """Return the epoch on the fewest ranks over that on the most, for each graph and model."""
    ends = (_time_ends(evidence, line) for line in split(evidence, runs, "dataset", "kind"))
    return combine((few / many for few, many in ends), take)


def _time_ends(evidence: Evidence, line: Selection) -> tuple[EpochTimes, EpochTimes]:
    """Return the epochs on the fewest and on the most ranks."""
    counts = evidence.list_values(line, "ranks")
    few, many = (evidence.time_epoch(line.narrow(ranks=ranks)) for ranks in (counts[0], counts[-1]))
    return few, many


@formula("percent")
def find_parallel_efficiency(evidence: Evidence, runs: Runs) -> Estimate:
    """Return the speed-up over the ideal one, from the fewest ranks to each larger number."""
    few, *larger = evidence.list_values(runs, "ranks")
    return enclose(
        evidence.time_epoch(runs.narrow(ranks=few))
        / evidence.time_epoch(runs.narrow(ranks=many))
        * (100 * few / many)
        for many in larger
    )


@formula("percent")
def find_percent_saved(evidence: Evidence, runs: Runs, baseline: Runs) -> Estimate:
    """Return the percentage of the baseline's epoch that the runs save.

    It has no interval: that of a small difference has both signs, and contains every printed value.
    """
    ratio = evidence.time_epoch(runs) / evidence.time_epoch(baseline)
    return 100 * (1 - replace(ratio, low=ratio.least, high=ratio.largest))


@formula()
def find_evaluation_speedup(evidence: Evidence, runs: Runs, baseline: Runs) -> Estimate:
    """Return the evaluation of the baseline over that of the runs."""
    if SAMPLED.issuperset(evidence.list_values(baseline, "strategy")):
        return find_evaluation_seconds(evidence, baseline) / evidence.time_evaluation(runs).seconds
    return evidence.time_evaluation(baseline) / evidence.time_evaluation(runs)


@formula()
def find_speedup_to_target(evidence: Evidence, runs: Runs, baseline: Runs) -> float:
    """Return the seconds to the target accuracy of the baseline over those of the runs."""
    return find_seconds_to_target(evidence, baseline) / find_seconds_to_target(evidence, runs)


@formula("percent")
def find_communication_gain(
    evidence: Evidence, runs: Runs, baseline: Runs, *, take: Literal["smallest", "largest"]
) -> float:
    """Return by how many percent the runs' communication scales better than the baseline's, among the graphs.

    Each is the communication on the fewest ranks over that on the most.
    """

    def scale(line: Selection) -> float:
        few, many = _time_ends(evidence, line)
        return few.communication_seconds / many.communication_seconds

    graphs = evidence.list_points(runs, "dataset")
    gains = [100 * (scale(runs.narrow(**each)) / scale(baseline.narrow(**each)) - 1) for each in graphs]
    return min(gains) if take == "smallest" else max(gains)


# Which runs are faster.


def list_faster(evidence: Evidence, one: Selection, other: Selection) -> list[bool]:
    """List whether the epochs of one selection are faster than those of another, for each choice of open settings."""
    pairs = evidence.time_epoch(one).match(evidence.time_epoch(other))
    return [first.seconds < second.seconds for first, second in pairs]


@formula()
def is_faster(evidence: Evidence, one: Runs, other: Runs) -> Choices:
    """Return whether the epochs of one selection are faster, for each choice of the open settings."""
    return Choices(tuple(list_faster(evidence, one, other)))


@formula()
def is_never_faster(evidence: Evidence, runs: Runs, others: Runs) -> bool:
    """Return whether the runs have no faster epoch than the others on the same graph and number of ranks."""
    points = evidence.list_points(runs, "dataset", "ranks")
    return not any(
        any(list_faster(evidence, runs.narrow(**point), others.narrow(**point))) for point in points
    )


@formula()
def has_crossover(
    evidence: Evidence, one_on_few: Runs, other_on_few: Runs, one_on_many: Runs, other_on_many: Runs
) -> Choices:
    """Return whether the one is faster on few ranks and the other on many, for each choice of the open settings."""
    few = list_faster(evidence, one_on_few, other_on_few)
    many = list_faster(evidence, other_on_many, one_on_many)
    return Choices(tuple(first and second for first, second in zip(few, many, strict=True)))


@formula()
def is_scaling(evidence: Evidence, runs: Runs) -> Choices:
    """Return whether on every graph more ranks have faster epochs, for each choice of the strategy."""
    return Choices(
        tuple(
            all(is_falling(evidence.time_line(line)) for line in split(evidence, of_strategy, "dataset"))
            for of_strategy in split(evidence, runs, "strategy")
        )
    )


@formula()
def stops_scaling(evidence: Evidence, runs: Runs) -> Choices:
    """Return whether some epoch is not faster on more ranks, for each choice of the strategy."""
    return Choices(tuple(not value for value in is_scaling(evidence, runs).values))


@formula()
def list_scaling_limits(evidence: Evidence, runs: Runs) -> list[bool]:
    """List whether the epochs on each graph become faster up to the last number of ranks, and not by 5 % on that."""

    def has_limit(line: Selection) -> bool:
        times = evidence.time_line(line)
        *counts, last = times
        limit = times[counts[-1]].single.seconds
        return is_falling({ranks: times[ranks] for ranks in counts}) and not (
            times[last].single.seconds < 0.95 * limit
        )

    return [has_limit(line) for line in split(evidence, runs, "dataset")]


# Accuracies.


@formula("points")
def find_accuracy_gain(evidence: Evidence, runs: Runs, baseline: Runs) -> float:
    """Return the percentage points by which the runs are more accurate than the baseline."""
    return find_accuracy_percent(evidence, runs) - find_accuracy_percent(evidence, baseline)


@formula()
def is_about_as_accurate(evidence: Evidence, runs: Runs, percent: float, within: float) -> bool:
    """Return whether the accuracy differs from a given one by less than some percentage points."""
    return abs(find_accuracy_percent(evidence, runs) - percent) < within


@formula()
def list_same_accuracies(evidence: Evidence, runs: Runs, baseline: Runs) -> list[bool]:
    """List whether the accuracies on each graph differ by less than one percentage point."""
    graphs = evidence.list_values(runs, "dataset")
    pairs = ((runs.narrow(dataset=graph), baseline.narrow(dataset=graph)) for graph in graphs)
    return [abs(find_accuracy_gain(evidence, *pair)) < 1 for pair in pairs]


@formula()
def list_rank_counts_below(evidence: Evidence, runs: Runs, percent: float) -> list[int]:
    """List the numbers of ranks on which the accuracy stays below a target."""
    counts = evidence.list_values(runs, "ranks")
    return [ranks for ranks in counts if find_accuracy_percent(evidence, runs.narrow(ranks=ranks)) < percent]
